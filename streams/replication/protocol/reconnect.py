"""Waiting times of a follower before it connects again (pure).

A server that sent positions and then went away is probably restarting. It is tried again at once, and then up to once a
second. A server that accepts connections, but closes them before it sent a position, is full, refuses us, or is another
program. It is tried again after longer and longer times.
"""

from __future__ import annotations

import enum

__all__ = ["Backoff", "Outcome"]

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
        """Returns the seconds to wait after an attempt with that outcome, which lasted ``lasted_seconds``.

        The time doubles with each attempt, up to a limit that depends on the outcome. After a steady connection it
        starts again at `FIRST_SECONDS`.
        """
        longest = LONGEST_USELESS_SECONDS if outcome is Outcome.USELESS else LONGEST_SECONDS
        if outcome is Outcome.USED and lasted_seconds >= STEADY_SECONDS:
            self._next_seconds = FIRST_SECONDS
        wait_seconds = min(self._next_seconds, longest)
        self._next_seconds = min(wait_seconds * 2, longest)
        return wait_seconds
