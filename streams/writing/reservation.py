"""Reserves IDs for facts inside the caller's transaction: IDs first, rows of several tables later.

The transaction holds the stream below the reserved IDs until it ends (``streams.holds``). So there is nothing to complete: IDs
without rows are passed when the transaction has ended, however it ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from django.db import connections, transaction

from streams.conf import stream_settings
from streams.db import driver, testcase
from streams.errors import BadCount, ForeignFact, ReservationEnded, ReservationNotOpen
from streams.facts import prepare_for_insert
from streams.holds.hold import WRITE_AS, hold_sql, remembered_sql
from streams.holds.installed_sql import class_of
from streams.reading.hints import hint_after_commit
from streams.writing.given_out import given_out, not_above, record_given_out
from streams.writing.insert import insert_facts
from streams.writing.name import name_for, writer_name
from streams.writing.newest_rows import keep_newest

if TYPE_CHECKING:
    from django.db.models import Model

    from streams.core.bound import BoundStream
    from streams.facts import Fact

LARGEST_COUNT = 1_000_000
_NAME_WRITER = f"SELECT {WRITE_AS}"
_NEXT_IDS = "ARRAY(SELECT nextval(%(sequence{n})s::text::regclass) FROM generate_series(1, %(count{n})s::integer))"
_REMEMBERED = f"SELECT {remembered_sql()}"


def reserve_ids(
    counts: Sequence[tuple[BoundStream, int]], using: str, others: Sequence[tuple[str, int]] = ()
) -> tuple[str, list[list[int]]]:
    """Holds streams and reserves IDs for facts of them, in the caller's transaction and in one message.

    Returns the name of the writer, and for each stream its IDs, positive and ascending. The caller inserts the rows under this
    name. Unlike ``Reservation``, nothing examines the rows but the triggers of the tables. ``others`` are sequences that belong
    to no stream, with the number of IDs to take from each; their IDs follow those of the streams. Without ``counts`` nothing is
    reserved.
    """
    if not counts:
        return writer_name(), []
    connection, streams = connections[using], [stream for stream, _ in counts]
    (name,) = {name_for(stream) for stream in streams}
    above = [given_out(stream, connection) for stream in streams]
    wanted: dict[str, object] = {}
    sequences = [*((stream.declaration.sequence, count) for stream, count in counts), *others]
    for n, (sequence, count) in enumerate(sequences):
        wanted |= {f"sequence{n}": sequence, f"count{n}": count}
    statements = [
        driver.Statement(_NAME_WRITER, {"writer": name}),
        *(driver.Statement(hold_sql(stream.declaration), {}) for stream in streams),
        driver.Statement("SELECT " + ", ".join(_NEXT_IDS.format(n=n) for n in range(len(sequences))), wanted),
    ]
    (reserved,) = driver.send_together(connection, statements)
    for stream, ids, least in zip(streams, reserved[: len(streams)], above, strict=True):
        if ids[0] <= least:
            raise not_above(stream, connection, least)
        record_given_out(stream, connection, ids)
        testcase.record_append(connection, stream.name, ids[0])
        hint_after_commit(connection, stream.name)
    return name, list(reserved)


class Reservation:
    """A context manager that reserves IDs for facts of one stream. A reservation can be entered once.

    ``Stream.reserve`` makes reservations.

    The IDs are reserved in the caller's transaction. If no transaction is open, the ``with`` block is a transaction of
    its own. Raises ``BadCount`` unless ``count`` is 1 to 1,000,000.
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
        self._name = ""
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
        if not self._connection.in_atomic_block and self._connection.get_autocommit():
            self._atomic = transaction.atomic(using=self._using)
            self._atomic.__enter__()
        try:
            self._name, (self._ids,) = reserve_ids([(self.stream, self._count)], self._using)
        except BaseException as error:
            if self._atomic is not None:
                self._atomic.__exit__(type(error), error, error.__traceback__)
            raise
        self._reserved, self._unused = frozenset(self._ids), iter(self._ids)
        return self

    def _not_open(self, problem: str) -> ReservationNotOpen:
        return ReservationNotOpen(
            f"Stream {self.stream.name}: this reservation cannot be used: {problem}. Write "
            f"`with stream.reserve({self._count}) as reservation:` and use it inside, once."
        )

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
        self._check_held()
        self.write_directly(*facts)

    def write_directly(self, *facts: Fact) -> None:
        """Inserts rows as ``write`` does, but does not examine whether the IDs are still held, which saves a round trip.

        The caller must not have used the connection since the reservation was entered.
        """
        without_id = [fact for fact in facts if self._is_without_id(fact)]
        try:
            self._insert(facts)
        except BaseException:
            for fact in without_id:  # so that the same object can be given to another attempt
                setattr(fact, fact.id_field, None)
            raise
        for fact in facts:
            fact._state.adding, fact._state.db = False, self._using

    def _is_without_id(self, fact: Fact) -> bool:
        self.stream.check_class(fact)
        if not fact._state.adding:
            raise self._given_twice(fact)
        prepare_for_insert(fact)
        return getattr(fact, fact.id_field) is None

    def _given_twice(self, fact: Fact) -> ForeignFact:
        return ForeignFact(
            f"Stream {self.stream.name}: a {type(fact).__name__} was given twice (ID {getattr(fact, fact.id_field)}); "
            f"make a new object for each row."
        )

    def _insert(self, facts: Sequence[Fact]) -> None:
        by_model: dict[type[Model], list[Fact]] = {}
        seen: set[int] = set()
        for fact in facts:
            if id(fact) in seen:
                raise self._given_twice(fact)
            seen.add(id(fact))
            self._give_id(fact)
            fact.instance_name = self._name
            by_model.setdefault(type(fact), []).append(fact)
        for model, rows in by_model.items():
            insert_facts(self._connection, model, rows)
        if self.stream.keeps_newest:
            keep_newest(self.stream, self._connection, facts)

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

    def _check_held(self) -> None:
        # A rollback to a savepoint takes back what was held and named after the savepoint.
        if not self._ids:
            raise self._not_open("nothing is reserved before the with block is entered")
        values = {"writer": self._name, "stream": self.stream.name, "class": class_of(self._name)}
        named = driver.Statement(_NAME_WRITER, values)
        ((bound,),) = driver.send_together(self._connection, [named, driver.Statement(_REMEMBERED, values)])
        # A bound above the IDs is that of a later hold. A reader may have passed these IDs since.
        if bound is None or bound >= self._ids[0]:
            raise ReservationEnded(
                f"Stream {self.stream.name}: the transaction or savepoint that reserved {self._ids[0]} to {self._ids[-1]} is "
                f"over, so no row may be written under these IDs. Reserve again."
            )
