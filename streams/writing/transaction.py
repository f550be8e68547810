"""Records of the transactions in which IDs were reserved. A record is kept until the end of its transaction is known."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from streams.core.bound import BoundStream
from streams.core.tracker import PositionTracker
from streams.db import testcase

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

__all__ = ["OpenTransaction", "Watcher"]


#: The record of the transaction that a ``TestCase`` keeps open on a connection.
_of_tests: weakref.WeakKeyDictionary[BaseDatabaseWrapper, OpenTransaction] = weakref.WeakKeyDictionary()


class Watcher(Protocol):
    """The methods of a writer that an ``OpenTransaction`` calls."""

    def watch(self, transaction: OpenTransaction) -> None:
        """Keeps the record until the transaction's end is known."""

    def ask(self, transaction: OpenTransaction) -> None:
        """Makes the control loop ask the database how the transaction ended.

        May be called from any thread and by the garbage collector.
        """

    def announce_soon(self) -> None:
        """Makes the control loop announce positions that have risen."""


class OpenTransaction:
    """The record of an outermost transaction: the IDs that were reserved in it, and the callbacks for its end."""

    def __init__(self, writer: Watcher, number: int) -> None:
        self.writer = writer
        self.number = number  # PostgreSQL's, 64 bits
        self.opened_at = time.monotonic()
        #: True once the end of the transaction is known.
        self.ended = False
        #: True once the connection has left the transaction. How it ended may still be unknown.
        self.left = False
        #: Functions to call with ``written`` when the end is known, before the IDs are complete. They must be quick and never
        #: raise.
        self.at_end: list[Callable[[bool], None]] = []
        self._pending: list[tuple[BoundStream, PositionTracker, list[int]]] = []
        self._lock = threading.Lock()

    @staticmethod
    def has_appended(connection: BaseDatabaseWrapper, writer: Watcher) -> bool:
        """Returns true if the writer has reserved IDs before in the ``atomic`` block that is open on the connection.

        Returns false if this is not certain: in a test's transaction, and under manual transaction management.
        """
        if not (connection.in_atomic_block and connection.commit_on_exit):
            return False
        hooks: list[Any] = connection.run_on_commit
        return any(type(hook) is _CommitHook and hook.record.writer is writer for _, hook, _ in hooks)

    @classmethod
    def of(cls, connection: BaseDatabaseWrapper, writer: Watcher, number: int) -> OpenTransaction:
        """Returns the record of the transaction with that number, which is open on the connection.

        If there is no record yet, makes one and registers its commit hook.
        """
        if testcase.is_in_test(connection):
            return cls._of_test(connection, writer, number)
        if _of_tests:
            _leave_test(connection)
        hooks: list[Any] = connection.run_on_commit
        for entry in list(hooks):
            hook = entry[1]
            if isinstance(hook, _CommitHook) and hook.record.writer is writer:
                if hook.record.number == number:
                    return hook.record
                # Under manual transaction management Django keeps hooks beyond COMMIT. A hook with another number belongs to a
                # transaction that has ended. Removing the hook frees it, and its finaliser asks how that transaction ended.
                hooks.remove(entry)
        record = cls(writer, number)
        writer.watch(record)
        # The empty set of savepoints keeps the hook when a savepoint is rolled back. It is inserted first to run before others.
        hooks.insert(0, (set(), _CommitHook(record), False))
        if not (connection.in_atomic_block and connection.commit_on_exit):
            writer.ask(record)  # the hook may come much later than the COMMIT, so keep asking
        return record

    @classmethod
    def _of_test(cls, connection: BaseDatabaseWrapper, writer: Watcher, number: int) -> OpenTransaction:
        """Returns the record of a test's transaction.

        The record has no hook, because ``captureOnCommitCallbacks`` would call and count the hook.

        The control loop asks how the transaction ended, as it does for any transaction that is open for long.
        """
        record = _of_tests.get(connection)
        if record is None or record.number != number or record.writer is not writer:
            _leave_test(connection)
            record = _of_tests[connection] = cls(writer, number)
            writer.watch(record)
        return record

    def own(self, stream: BoundStream, tracker: PositionTracker, ids: list[int]) -> None:
        """Adds IDs that become complete when the transaction ends.

        ``ids`` must be ascending, and above the IDs that were added for the stream before.
        """
        with self._lock:
            for _, known, added in self._pending:
                if known is tracker:
                    added.extend(ids)
                    return
            self._pending.append((stream, tracker, [*ids]))

    def pending(self) -> dict[str, int]:
        """Returns ``{stream: smallest ID of this transaction that is not complete}``."""
        with self._lock:
            lowest: dict[str, int] = {}
            for stream, _, ids in self._pending:
                lowest[stream.name] = min(ids[0], lowest.get(stream.name, ids[0]))
            return lowest

    def end(self, *, written: bool) -> None:
        """Calls the callbacks, then completes the IDs, as committed (``written``) or rolled back. Later calls do nothing."""
        with self._lock:
            self.ended = self.left = True
            pending, self._pending = self._pending, []
            at_end, self.at_end = self.at_end, []
        # This is done before the IDs are complete: a caller that these IDs wake must not find cached values that are older.
        for effect in at_end:
            effect(written)
        moved = [tracker.complete(ids, written=written) for _, tracker, ids in pending]
        if any(moved):
            self.writer.announce_soon()


def _leave_test(connection: BaseDatabaseWrapper) -> None:
    """Records that the transaction of the previous ``TestCase`` has ended.

    Django calls no hook at the end of such a transaction.
    """
    record = _of_tests.pop(connection, None)
    if record is not None:
        _hook_dropped(record)


class _CommitHook:
    """The hook that Django calls after COMMIT.

    If Django drops the hook without a call, the control loop asks the database how the transaction ended.
    """

    def __init__(self, record: OpenTransaction) -> None:
        self.record = record

    def __del__(self) -> None:
        if not sys.is_finalizing():
            _hook_dropped(self.record)

    def __call__(self) -> None:
        self.record.end(written=True)


def _hook_dropped(record: OpenTransaction) -> None:
    record.left = True
    if not record.ended:
        record.writer.ask(record)
