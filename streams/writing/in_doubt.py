"""Finds out how transactions ended whose end is unknown, by evidence from the database, never by a guess or a timeout.

There are two kinds of such transactions, and the control loop examines both.

**A transaction of the caller** whose commit hook was not called, or that is open for more than a second. Its number is
known, so ``pg_xact_status`` returns how it ended.

**A message that is its own transaction** and whose answer was lost. Neither its IDs nor its number are known. Each such
message has an advisory lock that no other message uses. The statement that takes IDs and inserts rows takes this lock in
shared mode, without waiting, and does nothing if the lock is not granted (``NOT_LATE``). An example:

1. A sends the message with lock 7. The connection breaks. The message may be finished, running, or still on its way.
2. The control loop tries to get lock 7 in exclusive mode, without waiting. While the message is running, the attempt
   fails and is repeated. Meanwhile A's open request for IDs holds the position below the unknown IDs.
3. The control loop gets the lock, so the message is not running: its transaction has ended, or it has not begun.
4. The control loop keeps the lock. If the message arrives only now, it does not get the lock, takes no ID and inserts
   nothing.
5. So the table now holds all rows that the message will ever have committed, and their IDs are complete.

The lock is released at once only if the connection of the message is still usable. Then the message cannot be on its
way any more. Other locks are kept until the control connection ends. If the process keeps many such locks, it takes a
new lease, whose check refuses late messages as well.

The alternative, a new lease for every lost answer, would stop the appends of all threads until all of their open
transactions have ended (``docs/decisions/009-lost-answers.md``).
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
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
#: If a transaction is open for longer than this, the database is asked about it, in case its hook is never called.
ASK_AFTER_SECONDS = 1.0
#: If a transaction was expected to have ended but has not, the database is asked again after this time.
ASK_AGAIN_SECONDS = 0.02
#: Most locks of lost messages that are kept under one lease. The server's table of locks is not large.
MOST_LOCKS_KEPT = 200

#: SQL condition of a message that is its own transaction: true if the message gets its lock, that is, if the control loop
#: has not taken it. The parameter is a number from ``InDoubt.lock_keys``.
NOT_LATE = "pg_try_advisory_xact_lock_shared(%s)"
_OUTCOMES = "SELECT n, pg_xact_status(n::text::xid8) FROM unnest(%s::bigint[]) AS n"
_NEVER_GIVEN = "22023"  # SQLSTATE for the number of a transaction that lies in the future
#: Takes a transaction number of its own: transaction numbers above it were never given out.
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
    #: True if the connection is still usable. Then the message cannot be on its way to the server any more.
    exchange_is_over: bool


def exchange_is_over(connection: BaseDatabaseWrapper) -> bool:
    """Returns true if the connection is ready for the next message, and no transaction is open on it."""
    given = connection.connection
    return given is not None and not given.closed and driver.transaction_status(given) == driver.IDLE


def is_rolled_back(error: BaseException, connection: BaseDatabaseWrapper) -> bool:
    """Returns true if this error proves that the message was rolled back.

    The error proves this if the server reported it and is ready for the next message.

    Returns false for errors of class 57 (operator intervention), which the server may report after the commit, and for
    errors without a code.
    """
    code = driver.sqlstate(error) or _OPERATOR_INTERVENED
    return not code.startswith(_OPERATOR_INTERVENED) and exchange_is_over(connection)


class InDoubt:
    """The open transactions of a writer, and its messages without an answer.

    Other threads add transactions and messages. The control loop asks the database how these ended.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        #: Lock keys that no other message uses. They are random: ``pg_locks`` shows the key of each message to every role, so a
        #: role that may only read could hold the next numbers, and the end of a message without an answer would stay unknown.
        self.lock_keys: Iterator[int] = iter(lambda: secrets.randbits(62), None)
        #: The number of locks of lost messages that the present control connection keeps.
        self.locks_kept = 0
        self._wake = wake
        self._open: dict[int, OpenTransaction] = {}
        self._asked: deque[OpenTransaction] = deque()
        self._ask_due = 0.0
        self._doubts: list[Doubt] = []

    # --- called by other threads ----------------------------------------------------------------------------------

    def watch(self, record: OpenTransaction) -> None:
        """Adds an open transaction. The transaction is kept until its end is known."""
        self._open[id(record)] = record

    def ask(self, record: OpenTransaction) -> None:
        """Makes the control loop ask the database at once how the transaction ended.

        Takes no lock, so the garbage collector may call it, too.
        """
        self._asked.append(record)
        self._ask_due = 0.0
        self._wake()

    def doubt(self, doubt: Doubt) -> None:
        """Adds a message whose answer was lost, and wakes the control loop to find out how the message ended."""
        self._doubts.append(doubt)
        self._wake()

    # --- called by the control loop -------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Returns true if the end of every transaction and every message is known."""
        return not self._doubts and all(record.ended for record in list(self._open.values()))

    def due(self, now: float) -> list[float]:
        """Returns the times of the monotonic clock at which the database is to be asked again. Empty if nothing is due."""
        return [self._ask_due] * bool(self._asked) + [now + ASK_AGAIN_SECONDS] * bool(self._doubts)

    def open_transactions(self) -> list[OpenTransaction]:
        """Returns the transactions whose end is unknown. Removes all transactions whose end is known."""
        for key, record in list(self._open.items()):
            if record.ended:
                self._open.pop(key, None)
        return list(self._open.values())

    def ask_outcomes(self, cursor: Any, now: float) -> None:
        """Asks the database how transactions ended, and completes the IDs of the transactions that have ended.

        Asks about the transactions that were passed to ``ask``, and about the transactions that are open for longer
        than ``ASK_AFTER_SECONDS``.
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
        """Finds out how the messages ended whose answer was lost, as the module describes.

        ``cursor`` must belong to the control connection, which keeps the locks. Messages of an earlier lease are
        removed without a query. These messages had ended when the new lease was taken, and the trackers of the new
        lease were started from the table after that.
        """
        for doubt in list(self._doubts):
            if trackers.get(doubt.stream.name) is not doubt.tracker or self._settle(cursor, doubt, writer):
                self._doubts.remove(doubt)

    def _settle(self, cursor: Any, doubt: Doubt, writer: str) -> bool:
        """Completes the IDs that a message committed. Returns false if the message is still running."""
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [doubt.lock_key])
        if not cursor.fetchone()[0]:
            return False
        # The table is read only now. If it were read first, a commit just before the lock was granted would be missed.
        rows = doubt.stream.ids_from(cursor, doubt.fetch.above + 1)
        doubt.tracker.settle(doubt.fetch, [number for name, number in rows if name == writer])
        if doubt.exchange_is_over:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [doubt.lock_key])
        else:
            self.locks_kept += 1
            log.warning("writer.append_in_doubt_settled", writer=writer, stream=doubt.stream.name)
        return True


def _outcomes(cursor: Any, numbers: list[int]) -> dict[int, str | None]:
    """Returns ``{number: status}`` with the status that ``pg_xact_status`` returns for each transaction number.

    The status is None if the server knows nothing of the transaction any more, for example after a crash or a restore.
    """
    try:
        cursor.execute(_OUTCOMES, [numbers])
    except driver.DatabaseError as error:
        if driver.sqlstate(error) != _NEVER_GIVEN:
            raise
        cursor.execute(_OUTCOMES_OF_GIVEN, [numbers])
    return dict(cursor.fetchall())
