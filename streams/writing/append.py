"""Appending facts in one round trip: append lock, lease check, IDs and rows in one message to the server.

``streams.writing.reservation`` tells the promises, and they are kept here: the lock is granted before the lease is looked at,
in a statement of its own, and the lease stands in the condition of the very statement that takes IDs and inserts. So facts of a
lost lease are not refused by an error that would break the caller's transaction: nothing is inserted, no row comes back, and
the slower way in steps (``Reservation``) finds out why.

* In the caller's transaction the message brings its number too; from there all is as for any reservation.
* Without one, the message is its own transaction: when the answer comes, it is committed. IDs that are not known yet are
  covered by the fetch, which holds the position back until then. When the answer does not come, neither outcome nor IDs are
  known: a ``Doubt``, which the background thread settles by evidence (``streams.writing.in_doubt``).

Facts of several tables, facts of which only some leave a column to its default, very many facts, and transactions with a
frozen snapshot take the way in steps.
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

#: More facts than this go in steps: several statements.
MOST_FACTS = 1_000

_LENGTHS = re.compile(r"\(\s*\d+(\s*,\s*\d+)*\s*\)")


def append_facts(
    stream: BoundStream, facts: Sequence[Fact], using: str | None, beside: Sequence[driver.Statement] = ()
) -> list[int]:
    """Append facts of one row each, in the caller's transaction or one of their own; their IDs (positive), ascending.

    ``beside`` are statements with values in order that go with the message, before the facts, and whose answers nobody needs;
    the caller has a transaction open then. Refuses facts that cannot be appended before anything is done: ``BadCount``,
    ``ForeignFact``.
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
    """Raise ``BadCount`` for none or too many, ``ForeignFact`` for what is no new fact of this stream."""
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
    """What is to be inserted: the statement's parts that depend on the facts, and their values."""

    model: type[Model]
    columns: tuple[int, ...]
    count: int
    values: list[Any]


@dataclass(frozen=True, slots=True)
class _Column:
    """A column with content of the fact, and how a value's type is told where no column tells it."""

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
    """The column's type without its length: a cast to that would cut a value that the column refuses."""
    declared = field.db_type(connections[stream_settings().database]) or "text"
    bare = _LENGTHS.sub("", declared)
    return re.sub(r"^char\b", "bpchar", bare)


def _message(facts: Sequence[Fact], connection: BaseDatabaseWrapper) -> _Message | None:
    """None when the facts do not fit into one statement."""
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


_LOCK = "SELECT pg_advisory_xact_lock_shared(%s::bigint)"
_HELD = (
    "FROM streams_instance AS held WHERE held.name = %s AND held.lease = %s"
    " AND current_setting('transaction_isolation') = 'read committed'"
)


@cache
def _sql(stream: BoundStream, model: type[Fact], columns: tuple[int, ...], count: int, *, alone: bool) -> str:
    """The statement after the lock; parameters as they stand: values, name, lease, lock of the message (``alone``).

    Several facts take their IDs from an array by number, so that which fact has which ID is not left to the plan.
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
    """One append on one connection."""

    def __init__(self, stream: BoundStream, alias: str, beside: Sequence[driver.Statement] = ()) -> None:
        self.stream = stream
        self.beside = beside
        self.connection = connections[alias]
        self.writer: WriterProcess = current_writer(alias)
        self.tenure: Tenure
        self.tracker: PositionTracker
        self.tenure, self.tracker = self.writer.enter(stream)

    def run(self, message: _Message) -> list[int]:
        """The IDs; none when nothing was inserted, for a reason that the way in steps finds."""
        if self.connection.in_atomic_block or not self.connection.get_autocommit():
            return self._in_callers_transaction(message)
        if self.connection.connection.get_transaction_status() != driver.IDLE:
            return []  # somebody said BEGIN by hand
        return self._alone(message)

    def _send(self, message: _Message, *lock_of_message: int) -> list[tuple[int, ...]]:
        sql = _sql(self.stream, message.model, message.columns, message.count, alone=bool(lock_of_message))
        again = bool(self.beside) and message.count == 1  # whoever appends so does it often
        values = [*message.values, self.tenure.name, self.tenure.lease, *lock_of_message]
        lock = driver.Statement(_LOCK, [self.tenure.append_key], again)
        return driver.send_together(self.connection, [*self.beside, lock, driver.Statement(sql, values, again)])

    def _in_callers_transaction(self, message: _Message) -> list[int]:
        """Nothing is committed by the message, so an error of the server leaves nothing behind."""
        fetch = self.tracker.begin_fetch(message.count, time.monotonic())
        ids: list[int] | None = None
        owned = False
        try:
            rows = self._send(message)
            ids = sorted(row[0] for row in rows)
        finally:
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
            # The rows are there, so only the transaction's end could tell; without a record nobody asks, so break it.
            if not owned:
                self.connection.close()
                self.tracker.complete(ids, written=False)
        return ids

    def _end_fetch(self, fetch: Fetch, ids: Sequence[int] = ()) -> None:
        if self.tracker.end_fetch(fetch, ids):
            self.writer.announce_soon()

    def _may_commit(self) -> bool:
        """The caller's transaction is as whole as before: no error of the server ended the message."""
        given = self.connection.connection
        return given is not None and not given.closed and given.get_transaction_status() in driver.OPEN

    def _end_with_transaction(self, fetch: Fetch) -> None:
        """An interrupt hid the answer: there may be rows under IDs that nobody knows, so the position waits for their commit."""
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
                over = exchange_is_over(self.connection)
                self.writer.in_doubt.doubt(Doubt(self.stream, self.tracker, fetch, key, over))
            elif self.tracker.settle(fetch, ids):
                self.writer.announce_soon()
        return ids
