"""The public object of a stream: to append facts, read positions and wait for them.

``append`` and ``reserve`` work in the caller's transaction, nested ``atomic`` blocks included, from any thread.
``aappend`` is for async code. Rows are read through ``streams.reading.rows``.
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
        """Returns a reservation of IDs for ``count`` facts, which is a context manager.

        Inside it the caller's transaction is open (one is opened if there is none). The IDs are complete once the
        outermost transaction is known to have ended. Raises ``BadCount``, ``WriterNameTaken``, ``WriterNotAllowed``,
        ``WriterFenced``.
        """
        return Reservation(self, count, using)

    def append(self, *facts: Fact, using: str | None = None) -> list[int]:
        """Appends facts, one row each, each under its own ID. Returns the IDs (positive), ascending.

        In the caller's transaction if there is one: readers see the facts after its commit. Before anything is reserved,
        raises ``BadCount`` for no facts at all, and ``ForeignFact`` for facts of other streams, with an ID or given
        twice.
        """
        return append_facts(self, facts, using)

    async def aappend(self, *facts: Fact, using: str | None = None) -> list[int]:
        """Does the same as ``append``, for async code, in the thread that Django keeps for database work."""
        return await sync_to_async(self.append, thread_sensitive=True)(*facts, using=using)

    # --- where it is ----------------------------------------------------------------------------------------------

    def current(self, using: str | None = None) -> Current:
        """Returns the stream's positions in both senses of "current"; one query.

        The minimum view is the one to wait for, the maximum view the one that is announced.
        """
        return current(self, using)

    def wait_for(self, token: Token, timeout_seconds: float = 5.0, using: str | None = None) -> VectorToken:
        """Blocks until this process sees everything that the token (a position, a vector or its text) covers.

        Returns the stream's position at that time. Raises ``WaitTimedOut``, ``TokenError``, ``EpochChanged``; see
        ``streams.waiting.wait``.
        """
        return wait_for(self, token, timeout_seconds, using)

    async def await_for(self, token: Token, timeout_seconds: float = 5.0, using: str | None = None) -> VectorToken:
        """Does the same as ``wait_for``, for async code."""
        return await await_for(self, token, timeout_seconds, using)
