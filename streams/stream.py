"""The public object of a stream. It appends facts, reads positions and waits for them.

``append`` and ``reserve`` work in the caller's transaction, also inside nested ``atomic`` blocks, and from any thread.
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

        The ``with`` block runs in the caller's transaction, or in a new one if there is none. The IDs are complete once
        the outermost transaction is known to have ended. Raises ``BadCount``, ``WriterNameTaken``,
        ``WriterNotAllowed``, ``WriterFenced``.
        """
        return Reservation(self, count, using)

    def append(self, *facts: Fact, using: str | None = None) -> list[int]:
        """Appends facts of one row, each under its own ID. Returns the IDs, which are positive and ascending.

        Appends in the caller's transaction if there is one, and readers then see the facts after its commit. Raises
        ``BadCount`` if no facts are given. Raises ``ForeignFact`` if a fact is of another stream, already has an ID, or
        is given twice. Both are raised before any ID is reserved.
        """
        return append_facts(self, facts, using)

    async def aappend(self, *facts: Fact, using: str | None = None) -> list[int]:
        """Does the same as ``append``, for async code.

        Runs in the thread that asgiref uses for synchronous database code.
        """
        return await sync_to_async(self.append, thread_sensitive=True)(*facts, using=using)

    # --- positions ------------------------------------------------------------------------------------------------

    def current(self, using: str | None = None) -> Current:
        """Returns the stream's current positions, by one query.

        The result has a minimum and a maximum. Use the minimum as a position for which another process waits: every
        fact up to it is complete. The maximum is the position that is announced. It is higher if an idle writer has
        moved its own position to the highest ID that it has seen announced.
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
