"""A transaction in which IDs were reserved, until it is known how it ended."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from streams.core.bound import BoundStream
from streams.core.tracker import PositionTracker

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

__all__ = ["OpenTransaction", "Watcher"]


class Watcher(Protocol):
    """The writer, as far as a transaction needs it."""

    def watch(self, transaction: OpenTransaction) -> None:
        """Look after it until its end is known."""

    def ask(self, transaction: OpenTransaction) -> None:
        """Ask the database how it ended; called from anywhere."""

    def announce_soon(self) -> None:
        """A position rose."""


class OpenTransaction:
    """An outermost transaction in which IDs were reserved, and what is to be completed when it ends."""

    def __init__(self, writer: Watcher, number: int) -> None:
        self.writer = writer
        self.number = number  # PostgreSQL's
        self.opened_at = time.monotonic()
        #: How it ended is known, and its IDs are complete.
        self.ended = False
        #: The connection has left it, though perhaps nobody knows yet how it ended.
        self.left = False
        #: Called with "was it written?" when it ends, before its IDs are complete; quick, and never raising.
        self.at_end: list[Callable[[bool], None]] = []
        self._pending: list[tuple[BoundStream, PositionTracker, list[int]]] = []
        self._lock = threading.Lock()

    @classmethod
    def of(cls, connection: BaseDatabaseWrapper, writer: Watcher, number: int) -> OpenTransaction:
        """The record of the connection's transaction of that number; enters the hook when there is none yet.

        Under manual transaction management Django keeps hooks beyond COMMIT, so hooks of other numbers belong to
        transactions that have ended: they are taken out, and the database is asked about those.
        """
        hooks: list[Any] = connection.run_on_commit
        for entry in list(hooks):
            hook = entry[1]
            if isinstance(hook, _CommitHook) and hook.record.writer is writer:
                if hook.record.number == number:
                    return hook.record
                hooks.remove(entry)
        record = cls(writer, number)
        writer.watch(record)
        hooks.insert(0, (set(), _CommitHook(record), False))
        if not (connection.in_atomic_block and connection.commit_on_exit):
            writer.ask(record)  # the hook may come much later than the COMMIT, so keep asking
        return record

    def own(self, stream: BoundStream, tracker: PositionTracker, ids: list[int]) -> None:
        """These IDs are complete when the transaction ends."""
        with self._lock:
            self._pending.append((stream, tracker, ids))

    def pending(self) -> dict[str, int]:
        """Stream -> smallest ID that waits for this transaction."""
        with self._lock:
            lowest: dict[str, int] = {}
            for stream, _, ids in self._pending:
                lowest[stream.name] = min(ids[0], lowest.get(stream.name, ids[0]))
            return lowest

    def end(self, *, written: bool) -> None:
        """The transaction has ended: complete its IDs. Later calls do nothing."""
        with self._lock:
            self.ended = self.left = True
            pending, self._pending = self._pending, []
            at_end, self.at_end = self.at_end, []
        for effect in at_end:
            effect(written)
        moved = [tracker.complete(ids, written=written) for _, tracker, ids in pending]
        if any(moved):
            self.writer.announce_soon()


class _CommitHook:
    """What Django calls after COMMIT; being freed without that call is the sign of any other end."""

    def __init__(self, record: OpenTransaction) -> None:
        self.record = record
        weakref.finalize(self, _hook_dropped, record).atexit = False

    def __call__(self) -> None:
        self.record.end(written=True)


def _hook_dropped(record: OpenTransaction) -> None:
    record.left = True
    if not record.ended:
        record.writer.ask(record)
