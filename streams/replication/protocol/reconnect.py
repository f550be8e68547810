"""Waiting times of a follower before it connects again (pure).

A server that sent positions before the connection ended is probably restarting. The follower tries such a server again
at once, and then at least once a second. Another server may accept connections and close them before it sent a
position. Such a server is full, refuses us, or is another program. The follower tries it again after longer and longer
times.
"""

from __future__ import annotations

import enum

FIRST_SECONDS = 0.1
LONGEST_SECONDS = 1.0
LONGEST_USELESS_SECONDS = 30.0
#: A connection that lasted this long sets the waiting time back to the first one.
STEADY_SECONDS = 5.0


class Outcome(enum.Enum):
    """The outcome of an attempt to follow a server."""

    UNREACHABLE = enum.auto()
    """There was no connection."""
    USELESS = enum.auto()
    """The connection was closed before the server sent a position."""
    USED = enum.auto()
    """The server sent positions, and the connection was lost later."""


class Backoff:
    """The waiting times of one follower."""

    def __init__(self) -> None:
        self._next_seconds = FIRST_SECONDS

    def seconds_after(self, outcome: Outcome, lasted_seconds: float) -> float:
        """Returns the seconds to wait after an attempt with this outcome. The attempt lasted ``lasted_seconds``.

        The waiting time doubles with each attempt, up to a limit that depends on the outcome. After a steady connection
        the waiting time starts again at `FIRST_SECONDS`.
        """
        longest = LONGEST_USELESS_SECONDS if outcome is Outcome.USELESS else LONGEST_SECONDS
        if outcome is Outcome.USED and lasted_seconds >= STEADY_SECONDS:
            self._next_seconds = FIRST_SECONDS
        wait_seconds = min(self._next_seconds, longest)
        self._next_seconds = min(wait_seconds * 2, longest)
        return wait_seconds
