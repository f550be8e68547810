"""Appends facts in one round trip: append lock, lease check, IDs and rows go to the server in one message.

The guarantees of ``streams.writing.reservation`` hold here too. A first statement takes the append lock. A second
statement takes IDs and inserts the rows, on condition that the lease is the current one. If the lease was lost, the second
statement inserts nothing and returns no row. It raises no error, which would break the caller's transaction. The caller
then uses a ``Reservation``, which is slower and raises the error that says why.

* Inside the caller's transaction, the message also returns the transaction's number. After that the IDs are treated like
  those of any reservation.
* Without a transaction of the caller, the message is a transaction of its own, and is committed when the answer arrives.
  Until then the IDs are unknown, so the open fetch holds the position back. If no answer arrives, neither the outcome nor
  the IDs are known. Then a ``Doubt`` is left for the control loop, which finds out (``streams.writing.in_doubt``).

A ``Reservation`` is also used in these cases: the facts belong to several tables, only some of them leave a column to its
default, there are more than ``MOST_FACTS`` of them, they have side effects, or the transaction's isolation level is above
READ COMMITTED.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from django.db import connections
from django.db.models.expressions import DatabaseDefault

from streams.conf import stream_settings
from streams.db import driver
from streams.errors import BadCount, ForeignFact
from streams.writing.in_doubt import NOT_LATE, Doubt, exchange_is_over, is_rolled_back
from streams.writing.insert import PLAIN_VALUES, fields_to_fill
from streams.writing.process import current_writer
from streams.writing.reservation import LARGEST_COUNT, Reservation
from streams.writing.side_effects import has_effects
from streams.writing.transaction import OpenTransaction
from streams.writing.writer import Tenure, WriterProcess

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import Field, Model

    from streams.core.bound import BoundStream
    from streams.core.tracker import Fetch, PositionTracker
    from streams.facts import Fact

__all__ = ["append_facts", "check_new_facts"]

#: Most facts of one message. More are appended with a ``Reservation``, by several statements.
MOST_FACTS = 1_000

_LENGTHS = re.compile(r"\(\s*\d+(\s*,\s*\d+)*\s*\)")


def append_facts(
    stream: BoundStream, facts: Sequence[Fact], using: str | None, beside: Sequence[driver.Statement] = ()
) -> list[int]:
    """Appends facts that have one row each. Returns their IDs, positive and ascending, in the order of the facts.

    Uses the caller's transaction if one is open, else a transaction of its own. Sets ID and writer on the facts.
    ``beside`` are statements to execute first, in the same message. Their results are discarded, and the caller must have
    a transaction open. Raises ``BadCount`` or ``ForeignFact`` before anything is sent.
    """
    check_new_facts(stream, facts)
    alias = using or stream_settings().database
    message = None if has_effects(stream, facts) else _message(facts, connections[alias])
    if message is None and beside:
        driver.send_together(connections[alias], beside)
    elif message is not None:
        appending = _Appending(stream, alias, beside)
        ids = appending.run(message)
        if ids:
            sign, name = stream.sign, appending.tenure.name
            for fact, number in zip(facts, ids, strict=True):
                setattr(fact, fact.id_field, number * sign)
                fact.instance_name = name
                fact._state.adding, fact._state.db = False, alias
            return ids
    with Reservation(stream, len(facts), using) as reservation:
        reservation.write_directly(*facts)
        return reservation.ids


def check_new_facts(stream: BoundStream, facts: Sequence[Fact]) -> None:
    """Raises an error unless these objects can be appended to the stream.

    Raises ``BadCount`` if there are no facts or too many. Raises ``ForeignFact`` for an object that is not a fact of this
    stream, that already has an ID, or that is given twice.
    """
    if not 1 <= len(facts) <= LARGEST_COUNT:
        raise BadCount(
            f"Stream {stream.name}: append() was given {len(facts)} facts; give it 1 to {LARGEST_COUNT}, and do not call it "
            f"when there is nothing to append."
        )
    for fact in facts:
        if type(fact) not in stream.models:
            raise stream.foreign(fact)
        if getattr(fact, fact.id_field) is not None:
            raise ForeignFact(
                f"Stream {stream.name}: a {type(fact).__name__} given to append() has ID {getattr(fact, fact.id_field)} "
                f"already, so it was appended before or its ID was made up. Make a new object for each fact; to choose IDs, "
                f"use reserve() and write()."
            )
    if len(facts) > 1 and len({id(fact) for fact in facts}) < len(facts):
        raise ForeignFact(
            f"Stream {stream.name}: append() was given the same object twice; each fact has an ID of its own, so make "
            f"an object for each."
        )


# --- the message --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Message:
    """The facts to insert by one statement: their model, the columns that are set, and all values in order."""

    model: type[Model]
    columns: tuple[int, ...]
    count: int
    values: list[Any]


@dataclass(frozen=True, slots=True)
class _Column:
    """A column that holds content of the fact, that is, neither its ID nor its writer.

    ``place`` is the column's placeholder in the statement. It has a cast, because PostgreSQL does not infer the types of
    a VALUES list or a SELECT from the table.
    """

    attribute: str
    field: Field[Any, Any]
    place: str
    plain: type | None
    """Values of this type need no conversion."""


@cache
def _content(model: type[Fact]) -> tuple[_Column, ...]:
    ours = {model.id_field, "instance_name"}
    return tuple(
        _Column(field.attname, field, f"%s::{_type(field)}", PLAIN_VALUES.get(field.get_internal_type()))
        for field in fields_to_fill(model)
        if field.attname not in ours
    )


def _type(field: Field[Any, Any]) -> str:
    """Returns the column's type in PostgreSQL without its length.

    A cast to ``varchar(5)`` would silently shorten a longer value. Without the length in the cast, the column raises an
    error.
    """
    declared = field.db_type(connections[stream_settings().database]) or "text"
    bare = _LENGTHS.sub("", declared)
    return re.sub(r"^char\b", "bpchar", bare)


def _message(facts: Sequence[Fact], connection: BaseDatabaseWrapper) -> _Message | None:
    """Returns the message that inserts the facts, or None if one statement cannot insert them all."""
    model = type(facts[0])
    if len(facts) > MOST_FACTS:
        return None
    content = _content(model)
    values: list[Any] = []
    given: tuple[int, ...] | None = None
    for fact in facts:
        if type(fact) is not model:
            return None
        row = [getattr(fact, column.attribute) for column in content]
        set_here = tuple([n for n, value in enumerate(row) if not isinstance(value, DatabaseDefault)])
        if given is not None and set_here != given:
            return None
        given = set_here
        for n in set_here:
            value, column = row[n], content[n]
            plain = value is None or type(value) is column.plain
            values.append(value if plain else column.field.get_db_prep_save(value, connection))
    return _Message(model, given or (), len(facts), values)


#: Takes the append lock. A statement of its own, so that the next statement has a snapshot that began after the lock was
#: granted (``_RESERVE`` in ``reservation`` says why).
_LOCK = "SELECT pg_advisory_xact_lock_shared(%s::bigint)"
#: Yields no row if the lease is not the current one, or if the transaction keeps one snapshot. Then no ID is taken and
#: nothing is inserted.
_HELD = (
    "FROM streams_instance AS held WHERE held.name = %s AND held.lease = %s"
    " AND current_setting('transaction_isolation') = 'read committed'"
)


@cache
def _sql(stream: BoundStream, model: type[Fact], columns: tuple[int, ...], count: int, *, alone: bool) -> str:
    """Returns the statement that checks the lease, takes IDs and inserts the rows.

    If ``alone`` is true, the statement is for a transaction of its own, and returns no transaction number. The parameters
    are, in order: the values, the writer's name, the lease and, if ``alone`` is true, the lock key of the message.
    """
    content = [_content(model)[n] for n in columns]
    columns_by_attribute = {field.attname: field.column for field in fields_to_fill(model)}
    attributes = (model.id_field, "instance_name", *(column.attribute for column in content))
    names = ", ".join(f'"{columns_by_attribute[attribute]}"' for attribute in attributes)
    id_column = columns_by_attribute[model.id_field]
    minus = "-" if stream.declaration.backward else ""
    held = _HELD + (f" AND {NOT_LATE}" if alone else "")
    insert = f'INSERT INTO "{model._meta.db_table}" ({names}) '
    nextval = f"nextval('{stream.declaration.sequence}')"
    places = "".join(f", {column.place}" for column in content)
    if count == 1:
        body = f"{insert}SELECT {minus}{nextval}, held.name{places} {held}"
    else:
        # The n-th fact takes the n-th ID of an array. With nextval() in each row, the plan would decide which fact gets which ID.
        ids = f"ARRAY(SELECT {nextval} FROM generate_series(1, {count}))"
        rows = ", ".join(f"({n}{places})" for n in range(1, count + 1))
        given = "".join(f", given.c{n}" for n in range(len(content)))
        aliases = "".join(f", c{n}" for n in range(len(content)))
        body = (
            f"WITH given (n{aliases}) AS (VALUES {rows}), taken AS MATERIALIZED (SELECT held.name, {ids} AS ids {held}) "
            f"{insert}SELECT {minus}taken.ids[given.n], taken.name{given} FROM taken, given"
        )
    number = "" if alone else ", pg_current_xact_id()::text::bigint"
    return f'{body} RETURNING {minus}"{id_column}"{number}'


# --- sending it ---------------------------------------------------------------------------------------------------


class _Appending:
    """One call of ``append_facts``, on one connection."""

    def __init__(self, stream: BoundStream, alias: str, beside: Sequence[driver.Statement] = ()) -> None:
        self.stream = stream
        self.beside = beside
        self.connection = connections[alias]
        self.writer: WriterProcess = current_writer(alias)
        self.tenure: Tenure
        self.tracker: PositionTracker
        self.tenure, self.tracker = self.writer.enter(stream)

    def run(self, message: _Message) -> list[int]:
        """Sends the message and returns the IDs, ascending.

        Returns an empty list if nothing was inserted. Then the caller must use a ``Reservation``, which finds out why.
        """
        if self.connection.in_atomic_block or not self.connection.get_autocommit():
            return self._in_callers_transaction(message)
        if self.connection.connection.get_transaction_status() != driver.IDLE:
            return []  # a BEGIN was executed by hand
        return self._alone(message)

    def _send(self, message: _Message, *lock_of_message: int) -> list[tuple[int, ...]]:
        sql = _sql(self.stream, message.model, message.columns, message.count, alone=bool(lock_of_message))
        again = bool(self.beside) and message.count == 1  # prepare it: these callers append often
        values = [*message.values, self.tenure.name, self.tenure.lease, *lock_of_message]
        lock = driver.Statement(_LOCK, [self.tenure.append_key], again)
        return driver.send_together(self.connection, [*self.beside, lock, driver.Statement(sql, values, again)])

    def _in_callers_transaction(self, message: _Message) -> list[int]:
        """Sends the message inside the caller's transaction, and records its IDs as pending until the transaction ends.

        If the server reports an error, no row of the message can be committed.
        """
        fetch = self.tracker.begin_fetch(message.count, time.monotonic())
        ids: list[int] | None = None
        owned = False
        try:
            rows = self._send(message)
            ids = sorted(row[0] for row in rows)
        finally:
            # If there is neither an answer nor an error of the server, the call was interrupted, for example by a signal. The
            # caller may still commit rows whose IDs are unknown here.
            if ids is None and self._may_commit():
                self._end_with_transaction(fetch)
            else:
                self._end_fetch(fetch, ids or ())
        if not ids:
            return ids
        try:
            record = OpenTransaction.of(self.connection, self.writer, rows[0][1])
            record.own(self.stream, self.tracker, ids)
            owned = True
        finally:
            # The rows are inserted, so the end of the transaction decides what becomes of them. Without a record this process
            # would never learn how the transaction ended. So the connection is closed, which rolls the transaction back.
            if not owned:
                self.connection.close()
                self.tracker.complete(ids, written=False)
        return ids

    def _end_fetch(self, fetch: Fetch, ids: Sequence[int] = ()) -> None:
        if self.tracker.end_fetch(fetch, ids):
            self.writer.announce_soon()

    def _may_commit(self) -> bool:
        """Returns true if the caller's transaction can still commit: its connection is open and no statement in it failed."""
        given = self.connection.connection
        return given is not None and not given.closed and given.get_transaction_status() in driver.OPEN

    def _end_with_transaction(self, fetch: Fetch) -> None:
        """Keeps the fetch open until the caller's transaction ends. An open fetch holds the position back.

        For a call that was interrupted before the answer arrived: there may be rows under IDs that this process does
        not know. If the transaction's number cannot be read, the connection is closed, which rolls the transaction
        back.
        """
        known = False
        try:
            with self.connection.cursor() as cursor:
                cursor.execute("SELECT pg_current_xact_id()::text::bigint")
                record = OpenTransaction.of(self.connection, self.writer, cursor.fetchone()[0])
            record.at_end.append(lambda _: self._end_fetch(fetch))
            known = True
        finally:
            if not known:
                self.connection.close()
                self._end_fetch(fetch)

    def _alone(self, message: _Message) -> list[int]:
        """Sends the message as a transaction of its own. If the answer is lost, leaves a ``Doubt`` for the control loop."""
        key = next(self.writer.in_doubt.lock_keys)
        fetch = self.tracker.begin_fetch(message.count, time.monotonic())
        ids: list[int] | None = None
        try:
            ids = sorted(row[0] for row in self._send(message, key))
        except BaseException as error:
            if is_rolled_back(error, self.connection):
                ids = []
            raise
        finally:
            if ids is None:
                # The answer is lost. The fetch stays open and holds the position below the unknown IDs.
                over = exchange_is_over(self.connection)
                self.writer.in_doubt.doubt(Doubt(self.stream, self.tracker, fetch, key, over))
            elif self.tracker.settle(fetch, ids):
                self.writer.announce_soon()
        return ids
