"""Finds out how transactions ended whose end is unknown, by evidence from the database, never by a guess or a timeout.

There are two kinds, and the control loop asks about both.

**A transaction of the caller's** whose commit hook was not called, or not for a second. Its number is known:
``pg_xact_status`` returns how it ended.

**A message that is its own transaction** and whose answer was lost. Neither its IDs nor its number are known. Each such
message takes, shared, a lock that no other message takes (``NOT_LATE``), in the statement that takes IDs and inserts:

1. A sends the message with lock 7. The connection breaks. The message may be finished, running, or still on its way.
2. The control loop tries to get lock 7, exclusively, without waiting. While the message runs it fails, and is repeated.
   The fetch of A holds the position below the IDs meanwhile.
3. It gets the lock, so the message is not running. Its transaction has ended, or it has not taken the lock yet.
4. It keeps the lock. A message that arrives now does not get it, so it takes no ID and inserts nothing.
5. So the table now holds all that the message will ever have committed. Those IDs are complete.

The lock is released only if the connection is whole: then the message cannot be under way any more. Kept locks end with
the control connection. If there are many, the process takes a new lease, whose check refuses late messages as well.

The alternative, a new lease for every lost answer, would stop the appends of all threads until all of their open
transactions have ended (``docs/decisions/009-lost-answers.md``).
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streams.core.bound import BoundStream
from streams.core.tracker import Fetch, PositionTracker
from streams.db import driver
from streams.runtime.logs import get_logger
from streams.writing.transaction import OpenTransaction

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

__all__ = ["MOST_LOCKS_KEPT", "NOT_LATE", "Doubt", "InDoubt", "exchange_is_over", "is_rolled_back"]

log = get_logger(__name__)
#: A transaction open for longer than this is asked about, in case its hook is never called.
ASK_AFTER_SECONDS = 1.0
#: A transaction that seemed to have ended but has not is asked about again after this.
ASK_AGAIN_SECONDS = 0.02
#: So many locks of lost messages are kept under one lease; the server's table of locks is not large.
MOST_LOCKS_KEPT = 200

#: The condition of a message that is its own transaction. Its parameter is a number of ``InDoubt.lock_keys``.
NOT_LATE = "pg_try_advisory_xact_lock_shared(%s)"
_OUTCOMES = "SELECT n, pg_xact_status(n::text::xid8) FROM unnest(%s::bigint[]) AS n"
_NEVER_GIVEN = "22023"  # SQLSTATE for the number of a transaction that lies in the future
#: Takes a transaction number itself: numbers above it were never given out.
_OUTCOMES_OF_GIVEN = """
SELECT n, CASE WHEN n < pg_current_xact_id()::text::bigint THEN pg_xact_status(n::text::xid8) END
FROM unnest(%s::bigint[]) AS n
"""
_OPERATOR_INTERVENED = "57"  # class of SQLSTATE: an administrator or a time limit interfered, perhaps after the commit


@dataclass(frozen=True, slots=True)
class Doubt:
    """A message that was its own transaction and whose answer was lost."""

    stream: BoundStream
    tracker: PositionTracker
    fetch: Fetch
    lock_key: int
    #: The connection is whole, so the message cannot be under way any more.
    exchange_is_over: bool


def exchange_is_over(connection: BaseDatabaseWrapper) -> bool:
    """Returns true if the server is ready for the next message, outside of a transaction."""
    given = connection.connection
    return given is not None and not given.closed and given.get_transaction_status() == driver.IDLE


def is_rolled_back(error: BaseException, connection: BaseDatabaseWrapper) -> bool:
    """Returns true if the server itself reported that the message failed, and is ready for the next.

    False for errors of class 57 (operator intervention), which the server may report after the commit, and for errors
    without a code.
    """
    code = getattr(error.__cause__, "pgcode", None) or _OPERATOR_INTERVENED
    return not code.startswith(_OPERATOR_INTERVENED) and exchange_is_over(connection)


class InDoubt:
    """The open transactions of a writer, and its messages without an answer. Other threads add them, the control loop asks."""

    def __init__(self, wake: Callable[[], None]) -> None:
        #: Lock keys that no other process uses: each process counts from a random number below 2^62.
        self.lock_keys = itertools.count(secrets.randbits(62))
        #: Locks of lost messages that the present control connection keeps.
        self.locks_kept = 0
        self._wake = wake
        self._open: dict[int, OpenTransaction] = {}
        self._asked: deque[OpenTransaction] = deque()
        self._ask_due = 0.0
        self._doubts: list[Doubt] = []

    # --- called by other threads ----------------------------------------------------------------------------------

    def watch(self, record: OpenTransaction) -> None:
        """Keeps a transaction until its end is known."""
        self._open[id(record)] = record

    def ask(self, record: OpenTransaction) -> None:
        """Has the database asked at once how the transaction ended. May be called by the garbage collector: takes no lock."""
        self._asked.append(record)
        self._ask_due = 0.0
        self._wake()

    def doubt(self, doubt: Doubt) -> None:
        """Has a message settled at once whose answer was lost."""
        self._doubts.append(doubt)
        self._wake()

    # --- called by the background thread --------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Returns true if no end is unknown."""
        return not self._doubts and all(record.ended for record in list(self._open.values()))

    def due(self, now: float) -> list[float]:
        """Returns the times at which to ask again, on the monotonic clock."""
        return [self._ask_due] * bool(self._asked) + [now + ASK_AGAIN_SECONDS] * bool(self._doubts)

    def open_transactions(self) -> list[OpenTransaction]:
        """Returns the transactions whose end is unknown, and forgets the others."""
        for key, record in list(self._open.items()):
            if record.ended:
                self._open.pop(key, None)
        return list(self._open.values())

    def ask_outcomes(self, cursor: Any, now: float) -> None:
        """Asks how transactions ended, and completes the IDs of those that did.

        Asks about those given to ``ask``, and about those that are open for longer than ``ASK_AFTER_SECONDS``.
        """
        if now < self._ask_due:
            return
        self._ask_due = now + ASK_AGAIN_SECONDS
        lost = [self._asked.popleft() for _ in range(len(self._asked))]
        old = time.monotonic() - ASK_AFTER_SECONDS
        open_for_long = [record for record in list(self._open.values()) if record.opened_at < old]
        ask = {id(record): record for record in (*lost, *open_for_long) if not record.ended}
        outcomes = _outcomes(cursor, sorted({record.number for record in ask.values()})) if ask else {}
        for record in ask.values():
            status = outcomes.get(record.number)
            if status != "in progress":
                record.end(written=status == "committed")
        self._asked += {id(record): record for record in lost if not record.ended}.values()

    def settle(self, cursor: Any, writer: str, trackers: Mapping[str, PositionTracker]) -> None:
        """Settles doubts, as the module describes. ``cursor`` is of the control connection, which keeps the locks.

        Doubts of an earlier lease are only removed. Taking the new lease settled them: no transaction of the old one is
        open, and the table was read after that.
        """
        for doubt in list(self._doubts):
            if trackers.get(doubt.stream.name) is not doubt.tracker or self._settle(cursor, doubt, writer):
                self._doubts.remove(doubt)

    def _settle(self, cursor: Any, doubt: Doubt, writer: str) -> bool:
        """Completes what a message committed. Returns false if the message is still running."""
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [doubt.lock_key])
        if not cursor.fetchone()[0]:
            return False
        # Only now: a commit between reading the table and getting the lock would be missed.
        rows = doubt.stream.ids_from(cursor, doubt.fetch.above + 1)
        doubt.tracker.settle(doubt.fetch, [number for name, number in rows if name == writer])
        if doubt.exchange_is_over:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [doubt.lock_key])
        else:
            self.locks_kept += 1
            log.warning("writer.append_in_doubt_settled", writer=writer, stream=doubt.stream.name)
        return True


def _outcomes(cursor: Any, numbers: list[int]) -> dict[int, str | None]:
    """Returns ``{number: status}`` as ``pg_xact_status`` gives it.

    None stands for a transaction before a crash or a restore, of which the server knows nothing any more.
    """
    try:
        cursor.execute(_OUTCOMES, [numbers])
    except driver.DatabaseError as error:
        if error.pgcode != _NEVER_GIVEN:
            raise
        cursor.execute(_OUTCOMES_OF_GIVEN, [numbers])
    return dict(cursor.fetchall())
