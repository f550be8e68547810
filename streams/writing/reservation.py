"""Reserves IDs for facts inside the caller's transaction, and completes them when it is known how that transaction ended.

Django calls hooks after a commit. It has no hook for a rollback, and it drops the hooks of a rolled-back savepoint. Three
measures together find out how every transaction ends:

* A commit hook is added to the connection's list with an *empty* set of savepoints. Rolling back a savepoint drops only
  hooks that were registered under it, so this hook stays until the outermost transaction ends.
* When Django discards the list (rollback, close, an error in another hook), the hook object is freed. The finaliser of
  this object has the control loop ask the database how the transaction ended (``pg_xact_status`` of the transaction's
  number).
* The control loop asks about every transaction that stays open for a while. This question covers manual transaction
  management and a connection that was lost during COMMIT.

So an ID becomes complete only when Django calls the hook after COMMIT returned, or when the database has answered.

The lease is checked in each reservation, after the append lock was granted (see ``_RESERVE``). A transaction that keeps
one snapshot (REPEATABLE READ, SERIALIZABLE) would read an old lease. In such a transaction the check uses the control
connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from django.db import connections, transaction

from streams.conf import stream_settings
from streams.db import driver, testcase
from streams.errors import BadCount, ForeignFact, ReservationEnded, ReservationNotOpen, SequenceBehind, WriterFenced
from streams.facts import take_related_keys
from streams.writing import append_lock
from streams.writing.insert import insert_facts
from streams.writing.process import current_writer
from streams.writing.side_effects import apply_side_effects, has_effects
from streams.writing.transaction import OpenTransaction
from streams.writing.writer import Tenure, WriterProcess

if TYPE_CHECKING:
    from django.db.models import Model

    from streams.core.bound import BoundStream
    from streams.core.tracker import PositionTracker
    from streams.facts import Fact

    Insert = Callable[[Mapping[type[Model], Sequence[Fact]]], None]

__all__ = ["LARGEST_COUNT", "Reservation", "given_out_before"]

LARGEST_COUNT = 1_000_000

# A statement of its own after the one that takes the lock, because it must see what was committed before. Example: A holds lease
# 7. B takes the name: B raises the lease to 8, commits, and finds that no session holds the append lock. Then A gets the lock. In
# one statement, A's snapshot could be older than B's commit, so that A would read lease 7 and append under it. With two
# statements A reads lease 8 and is refused.
_RESERVE = f"""
SELECT {append_lock.HELD_HERE}, pg_current_xact_id()::text::bigint, fresh,
       CASE WHEN {append_lock.HELD_HERE} AND (NOT fresh OR lease = %(lease)s::bigint)
            THEN ARRAY(SELECT nextval(%(sequence)s::text::regclass) FROM generate_series(1, %(count)s::integer)) END
FROM (SELECT current_setting('transaction_isolation') = 'read committed' AS fresh) AS snapshot
     LEFT JOIN streams_instance ON name = %(name)s::text
"""
_LEASE_AGAIN = f"""
SELECT {append_lock.HELD_HERE}, current_setting('transaction_isolation') = 'read committed',
       (SELECT lease FROM streams_instance WHERE name = %(name)s)
"""
_LEASE = "SELECT lease FROM streams_instance WHERE name = %s"


class Reservation:
    """A context manager that reserves IDs for facts of one stream. A reservation can be entered once.

    ``Stream.reserve`` makes reservations.

    Takes the IDs in the caller's transaction. If no transaction is open, the ``with`` block is a transaction of its
    own. Raises ``BadCount`` unless ``count`` is 1 to 1,000,000.
    """

    def __init__(self, stream: BoundStream, count: int, using: str | None) -> None:
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= LARGEST_COUNT:
            raise BadCount(f"Stream {stream.name}: cannot reserve {count!r} IDs; ask for 1 to {LARGEST_COUNT} at once.")
        self.stream = stream
        self._ids: list[int] = []
        self._count = count
        self._using = using or stream_settings().database
        self._connection = connections[self._using]
        self._atomic: transaction.Atomic | None = None
        self._record: OpenTransaction
        self._writer: WriterProcess
        self._tenure: Tenure
        self._reserved: frozenset[int] = frozenset()
        self._unused: Iterator[int] = iter(())

    @property
    def ids(self) -> list[int]:
        """The reserved IDs, positive and ascending. Raises ``ReservationNotOpen`` before the ``with`` block is entered."""
        if not self._ids:
            raise self._not_open("nothing is reserved before the with block is entered")
        return self._ids

    def __enter__(self) -> Self:
        if self._ids:
            raise self._not_open("it was entered before")
        writer = self._writer = current_writer(self._using)
        tenure, tracker = writer.enter(self.stream)
        if not self._connection.in_atomic_block and self._connection.get_autocommit():
            self._atomic = transaction.atomic(using=self._using)
            self._atomic.__enter__()
        try:
            self._reserve(writer, tenure, tracker)
        except BaseException as error:
            if self._atomic is not None:
                self._atomic.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def _reserve(self, writer: WriterProcess, tenure: Tenure, tracker: PositionTracker) -> None:
        fetch = tracker.begin_fetch(self._count, time.monotonic())
        ids: list[int] = []
        owned = False
        try:
            number, fresh, taken = self._take_ids(writer, tenure)
            if min(taken) <= fetch.above:
                raise given_out_before(self.stream, min(taken), fetch.above)
            ids = taken
        finally:
            if tracker.end_fetch(fetch, ids):
                writer.announce_soon()
        try:
            self._record = OpenTransaction.of(self._connection, writer, number)
            self._record.own(self.stream, tracker, ids)
            testcase.record_append(self._connection, self.stream.name, ids[0])
            owned = True
        finally:
            if not owned and tracker.complete(ids, written=False):  # no caller got these IDs, so no row has them
                writer.announce_soon()
        self._ids, self._tenure = ids, tenure
        self._reserved, self._unused = frozenset(ids), iter(ids)
        if not fresh:
            # The transaction's snapshot may show an old lease. Now that the append lock is held, read the lease outside of it.
            self._check_lease(writer)

    def _take_ids(self, writer: WriterProcess, tenure: Tenure) -> tuple[int, bool, list[int]]:
        values = {
            "key": tenure.append_key,
            "lease": tenure.lease,
            "name": tenure.name,
            "sequence": self.stream.declaration.sequence,
            "count": self._count,
        }
        number, fresh, ids = self._send_locked(_RESERVE, values, again=True)
        if ids is None:
            raise self._lost(writer, tenure)
        return number, fresh, ids

    def _send_locked(self, statement: str, values: Mapping[str, Any], *, again: bool) -> tuple[Any, ...]:
        """Sends one message with two statements: the one that takes the append lock, and ``statement``.

        Returns the columns of the row of ``statement`` except the first.

        The first column of ``statement`` must be true if the transaction holds the append lock. If the column is false,
        somebody else held the lock, and ``statement`` did nothing. Then it is sent once more, with a statement that takes
        a lock of the same writer under a random number instead. ``again`` is true if the statement is executed many
        times, so that it is worth preparing.
        """
        for take in (append_lock.TAKE, append_lock.TAKE_ANOTHER):
            statements = [driver.Statement(text, values, again) for text in (take, statement)]
            ((is_held, *row),) = driver.send_together(self._connection, statements)
            if is_held:
                break
        return tuple(row)

    def _check_lease(self, writer: WriterProcess) -> None:
        """Raises ``WriterFenced`` unless the lease is the current one, as read on the control connection."""
        with writer.control_cursor() as cursor:
            cursor.execute(_LEASE, [self._tenure.name])
            row = cursor.fetchone()
        if row is None or row[0] != self._tenure.lease:
            raise self._lost(writer, self._tenure)

    def _not_open(self, what: str) -> ReservationNotOpen:
        return ReservationNotOpen(
            f"Stream {self.stream.name}: this reservation cannot be used: {what}. Write "
            f"`with stream.reserve({self._count}) as reservation:` and use it inside, once."
        )

    @staticmethod
    def _lost(writer: WriterProcess, tenure: Tenure) -> WriterFenced:
        """Fences the process after it lost its lease, and returns the error to raise.

        Does not fence the process if it has taken a newer lease meanwhile.
        """
        writer.fenced("its lease is no longer the current one", tenure.lease)
        return writer.fenced_error()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._atomic is not None:
            self._atomic.__exit__(kind, error, trace)

    def write(self, *facts: Fact) -> None:
        """Inserts rows under the reserved IDs.

        Rows without an ID get the reserved IDs in order. A later call continues with the next unused ID. If a fact has
        several rows, the caller must set its ID on each of them. Raises ``ReservationEnded`` once the transaction is
        over, and ``ForeignFact`` for a row of another stream or an ID that this reservation did not reserve.
        """
        self._check_open()
        self._hold_append_lock()
        self.write_directly(*facts)

    def write_directly(self, *facts: Fact) -> None:
        """Inserts rows as ``write`` does, but does not take the append lock again, which saves a round trip.

        The caller must not have used the connection since the reservation was entered.
        """
        self.write_with(self._insert_each, *facts)

    def write_with(self, insert: Insert, *facts: Fact) -> None:
        """Lets the caller's function ``insert`` insert the rows, for callers that send other statements together with the insert.

        ``insert`` is called once with ``{model: rows}``. These rows already have their IDs and their writer. Otherwise
        the same holds as for ``write_directly``.
        """
        without_id = [fact for fact in facts if self._is_without_id(fact)]
        try:
            self._insert(facts, insert)
        except BaseException:
            for fact in without_id:  # so that the same object can be given to another attempt
                setattr(fact, fact.id_field, None)
            raise
        for fact in facts:
            fact._state.adding, fact._state.db = False, self._using

    def _is_without_id(self, fact: Fact) -> bool:
        """Returns true if the row has no ID yet. Raises ``ForeignFact`` for an object that is not a new row of this stream."""
        if type(fact) not in self.stream.models:
            raise self.stream.foreign(fact)
        if not fact._state.adding:
            raise self._twice(fact)
        take_related_keys(fact)
        return getattr(fact, fact.id_field) is None

    def _twice(self, fact: Fact) -> ForeignFact:
        return ForeignFact(
            f"Stream {self.stream.name}: a {type(fact).__name__} was given twice (ID {getattr(fact, fact.id_field)}); "
            f"make a new object for each row."
        )

    def _insert_each(self, by_model: Mapping[type[Model], Sequence[Fact]]) -> None:
        for model, rows in by_model.items():
            insert_facts(self._connection, model, rows)

    def _insert(self, facts: Sequence[Fact], insert: Insert) -> None:
        by_model: dict[type[Model], list[Fact]] = {}
        seen: set[int] = set()
        for fact in facts:
            if id(fact) in seen:
                raise self._twice(fact)
            seen.add(id(fact))
            self._give_id(fact)
            fact.instance_name = self._tenure.name
            by_model.setdefault(type(fact), []).append(fact)
        insert(by_model)
        if has_effects(self.stream, facts):
            apply_side_effects(self.stream, self._connection, self._record, facts)

    def _give_id(self, fact: Fact) -> None:
        sign = self.stream.sign
        given = getattr(fact, fact.id_field)
        number = next(self._unused, None) if given is None else given * sign
        if number is None or number not in self._reserved:
            raise ForeignFact(
                f"Stream {self.stream.name}: ID {given} was not reserved here (reserved: {self.ids[0]} to {self.ids[-1]}); "
                f"reserve as many IDs as there are facts."
            )
        setattr(fact, fact.id_field, number * sign)

    def _check_open(self) -> None:
        if not self._ids:
            raise self._not_open("nothing is reserved before the with block is entered")
        if self._record.ended or (not self._connection.in_atomic_block and self._connection.get_autocommit()):
            raise ReservationEnded(
                f"Stream {self.stream.name}: the transaction that reserved {self.ids[0]} to {self.ids[-1]} is over, so these "
                f"IDs are complete and no row may be written under them. Reserve again in the new transaction."
            )

    def _hold_append_lock(self) -> None:
        """Takes the append lock once more, because a rollback to a savepoint may have released the lock.

        Raises ``WriterFenced`` unless the lease is still the current one.
        """
        # A rollback to a savepoint releases the locks that were taken after the savepoint, perhaps also the append lock. Then
        # B may take the name and conclude that no transaction is open, while rows are still to be written here.
        values = {"key": self._tenure.append_key, "name": self._tenure.name}
        fresh, lease = self._send_locked(_LEASE_AGAIN, values, again=False)
        if not fresh:
            self._check_lease(self._writer)
        elif lease != self._tenure.lease:
            raise self._lost(self._writer, self._tenure)


def given_out_before(stream: BoundStream, number: int, above: int) -> SequenceBehind:
    """Returns the error for a sequence that was set back.

    The sequence gave out the ID ``number``, although it had given out ``above`` before, which is at least as high.
    """
    return SequenceBehind(
        f"Stream {stream.name}: the sequence {stream.declaration.sequence} gave out ID {number}, but {above} was given out "
        f"before: somebody set the sequence back, or gave it a cache. Nothing was appended, because followers have passed "
        f"this ID. Run: manage.py check_streams --repair"
    )
