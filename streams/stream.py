"""A stream as users hold it in their hands: to append, to read where it is, to wait.

``append`` and ``reserve`` work in the caller's transaction, nested ``atomic`` blocks included, from any thread; ``aappend`` is
for async code. Reading goes through ``streams.reading.rows``.
"""

from __future__ import annotations

from asgiref.sync import sync_to_async

from streams.core.bound import BoundStream
from streams.core.tokens import VectorToken
from streams.facts import Fact
from streams.waiting.current import Current, current
from streams.waiting.wait import Token, await_for, wait_for
from streams.writing.append import append_facts
from streams.writing.reservation import Reservation

__all__ = ["Stream"]


class Stream(BoundStream):
    """A declared stream with the models of its tables; one object per stream and process."""

    # --- write ----------------------------------------------------------------------------------------------------

    def reserve(self, count: int = 1, using: str | None = None) -> Reservation:
        """Reserve IDs for ``count`` facts; a context manager that gives the reservation.

        Inside it the caller's transaction is open (one is opened when there is none). The IDs are complete once the
        outermost transaction is known to have ended. Raises ``BadCount``, ``WriterNameTaken``, ``WriterNotAllowed``,
        ``WriterFenced``.
        """
        return Reservation(self, count, using)

    def append(self, *facts: Fact, using: str | None = None) -> list[int]:
        """Append facts, one row each, each under its own ID; returns the IDs (positive), ascending.

        In the caller's transaction if there is one: readers see the facts after its commit. Refuses, before anything is
        reserved, no facts at all (``BadCount``), and facts of other streams, with an ID or given twice (``ForeignFact``).
        """
        return append_facts(self, facts, using)

    async def aappend(self, *facts: Fact, using: str | None = None) -> list[int]:
        """``append`` for async code; runs in the thread that Django keeps for database work."""
        return await sync_to_async(self.append, thread_sensitive=True)(*facts, using=using)

    # --- where it is ----------------------------------------------------------------------------------------------

    def current(self, using: str | None = None) -> Current:
        """Both ends of "current", by name: the minimum view to wait for, the maximum view that is announced. One query."""
        return current(self, using)

    def wait_for(self, token: Token, timeout_seconds: float = 5.0, using: str | None = None) -> VectorToken:
        """Block until this process sees everything that the token (a position, a vector or its text) covers.

        Returns where the stream is then. Raises ``WaitTimedOut``, ``TokenError``, ``EpochChanged``; see
        ``streams.waiting.wait``.
        """
        return wait_for(self, token, timeout_seconds, using)

    async def await_for(self, token: Token, timeout_seconds: float = 5.0, using: str | None = None) -> VectorToken:
        """``wait_for`` for async code."""
        return await await_for(self, token, timeout_seconds, using)
