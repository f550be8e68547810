"""How long a follower waits before it comes back (pure).

A server that was followed and is gone is tried again at once, then up to once a second: it is probably being restarted. One
that takes connections and closes them before it has said anything of use is full, refuses us, or is something else: it is left
alone for longer and longer.
"""

from __future__ import annotations

import enum

__all__ = ["Backoff", "Outcome"]

FIRST_SECONDS = 0.1
LONGEST_SECONDS = 1.0
LONGEST_USELESS_SECONDS = 30.0
#: A connection that held for so long was a good one.
STEADY_SECONDS = 5.0


class Outcome(enum.Enum):
    """How an attempt ended."""

    UNREACHABLE = enum.auto()
    """There was no connection."""
    USELESS = enum.auto()
    """It was closed before the server told a position."""
    USED = enum.auto()
    """The server told positions, and the connection was lost later."""


class Backoff:
    """The waiting times of one follower."""

    def __init__(self) -> None:
        self._next_seconds = FIRST_SECONDS

    def seconds_after(self, outcome: Outcome, lasted_seconds: float) -> float:
        """How long to wait after an attempt that ended so and lasted so long."""
        longest = LONGEST_USELESS_SECONDS if outcome is Outcome.USELESS else LONGEST_SECONDS
        if outcome is Outcome.USED and lasted_seconds >= STEADY_SECONDS:
            self._next_seconds = FIRST_SECONDS
        wait_seconds = min(self._next_seconds, longest)
        self._next_seconds = min(wait_seconds * 2, longest)
        return wait_seconds
