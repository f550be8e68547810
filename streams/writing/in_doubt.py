"""Transactions whose end the server's answers do not tell: found out by evidence, never by a guess or a time.

There are two of them, and the background thread asks about both.

**A transaction of the caller's** whose commit hook did not come, or does not come for a second. Its number is known:
``pg_xact_status`` tells how it ended.

**A message that is its own transaction** and whose answer is lost. Neither its IDs nor its number are known. Each such
message takes, shared, a lock that no other message takes (``NOT_LATE``), in the statement that takes IDs and inserts:

1. A sends the message with lock 7. The connection breaks. The message may be done, at work, or still on its way.
2. The background thread asks for lock 7, exclusively, and does not wait. While the message is at work it does not get
   it, and asks again. The fetch of A holds the position below the IDs meanwhile.
3. It gets the lock: the message is not at work. Its transaction has ended, or it has not taken the lock yet.
4. It keeps the lock: a message that arrives now gets none, so it takes no ID and inserts nothing.
5. So what the table holds now is all that the message will ever have committed. Those IDs are complete.

The lock goes back only when the connection is whole: then the message cannot be under way any more. Kept locks go with the
control connection. When there are many, the process takes a new lease, whose condition keeps late messages out as well.

Every lost answer could take a new lease instead. It would stop the appends of all threads until all of their open
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
#: A transaction open for longer than this is asked about, in case its hook never comes.
ASK_AFTER_SECONDS = 1.0
#: A transaction that seemed to have ended but has not is asked about again after this.
ASK_AGAIN_SECONDS = 0.02
#: So many locks of lost messages are kept under one lease; the server's table of locks is not large.
MOST_LOCKS_KEPT = 200

#: The condition of a message that is its own transaction; its value is a number of ``InDoubt.lock_keys``.
NOT_LATE = "pg_try_advisory_xact_lock_shared(%s)"
_OUTCOMES = "SELECT n, pg_xact_status(n::text::xid8) FROM unnest(%s::bigint[]) AS n"
_NEVER_GIVEN = "22023"  # SQLSTATE for the number of a transaction that lies in the future
#: Takes a number of its own: what lies above was never given out.
_OUTCOMES_OF_GIVEN = """
SELECT n, CASE WHEN n < pg_current_xact_id()::text::bigint THEN pg_xact_status(n::text::xid8) END
FROM unnest(%s::bigint[]) AS n
"""
_OPERATOR_INTERVENED = "57"  # class of SQLSTATE: an administrator's or a time limit's word may come after the commit


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
    """Returns whether the server is ready for the next message, outside of a transaction."""
    given = connection.connection
    return given is not None and not given.closed and given.get_transaction_status() == driver.IDLE


def is_rolled_back(error: BaseException, connection: BaseDatabaseWrapper) -> bool:
    """Returns whether the server itself said that the message failed, and is ready for the next."""
    code = getattr(error.__cause__, "pgcode", None) or _OPERATOR_INTERVENED
    return not code.startswith(_OPERATOR_INTERVENED) and exchange_is_over(connection)


class InDoubt:
    """The open transactions of a writer, and messages without an answer; other threads add, the background thread asks."""

    def __init__(self, wake: Callable[[], None]) -> None:
        #: Numbers that no other process uses: each starts somewhere among 2^62.
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
        """Look after a transaction until its end is known."""
        self._open[id(record)] = record

    def ask(self, record: OpenTransaction) -> None:
        """Ask the database how it ended, at once. May be called by the garbage collector: takes no lock."""
        self._asked.append(record)
        self._ask_due = 0.0
        self._wake()

    def doubt(self, doubt: Doubt) -> None:
        """Find out, at once, what a message did whose answer was lost."""
        self._doubts.append(doubt)
        self._wake()

    # --- called by the background thread --------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether the end of everything is known."""
        return not self._doubts and all(record.ended for record in list(self._open.values()))

    def due(self, now: float) -> list[float]:
        """Times at which to ask again."""
        return [self._ask_due] * bool(self._asked) + [now + ASK_AGAIN_SECONDS] * bool(self._doubts)

    def open_transactions(self) -> list[OpenTransaction]:
        """Those whose end is not known; the others are forgotten."""
        for key, record in list(self._open.items()):
            if record.ended:
                self._open.pop(key, None)
        return list(self._open.values())

    def ask_outcomes(self, cursor: Any, now: float) -> None:
        """Complete the IDs of transactions that have ended."""
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
        """Settle doubts, as the module tells; ``cursor`` is of the control connection, which keeps the locks.

        Those of an earlier lease were settled by taking the new one: nothing of the old is open, and the table was read.
        """
        for doubt in list(self._doubts):
            if trackers.get(doubt.stream.name) is not doubt.tracker or self._settle(cursor, doubt, writer):
                self._doubts.remove(doubt)

    def _settle(self, cursor: Any, doubt: Doubt, writer: str) -> bool:
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
    """What the server says of transactions; None of those of before a crash or a restore that it has forgotten."""
    try:
        cursor.execute(_OUTCOMES, [numbers])
    except driver.DatabaseError as error:
        if error.pgcode != _NEVER_GIVEN:
            raise
        cursor.execute(_OUTCOMES_OF_GIVEN, [numbers])
    return dict(cursor.fetchall())
