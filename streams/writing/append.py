"""Appends facts in one round trip: append lock, lease check, IDs and rows go to the server in one message.

This module gives the same guarantees as ``streams.writing.reservation``. A first statement takes the append lock,
unless an earlier append of the transaction took it. A second statement takes IDs and inserts the rows. The second
statement does so only if the lock is held, the lease is the current one, and the IDs are new. Otherwise it inserts
nothing and returns no row. The statement raises no error, because an error would break the caller's transaction. The
caller then uses a ``Reservation``, which is slower. The reservation takes another lock, or raises the error that says
why nothing was inserted.

* Inside the caller's transaction, the message also returns the transaction's number. After that the IDs are treated
  like the IDs of any reservation.
* Without a transaction of the caller, the message is a transaction of its own, and is committed when the answer
  arrives. Until then the IDs are unknown. The tracker knows that a request for IDs is open, and holds the position
  back. If no answer arrives, neither the outcome nor the IDs are known. Then a ``Doubt`` is left for the control loop,
  which finds out the outcome (``streams.writing.in_doubt``).

Several facts are sent as one array for each column. So the statement is the same for any number of facts, and is
planned once.

A ``Reservation`` is also used in each of these cases:

* The facts belong to several tables, or have side effects.
* Some of the facts leave a column to its default, and others do not.
* There are more than ``MOST_FACTS`` facts.
* The transaction's isolation level is above READ COMMITTED.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections
from django.db.models.expressions import DatabaseDefault

from streams.conf import stream_settings
from streams.core.declaration import quoted
from streams.db import driver, testcase
from streams.errors import BadCount, ForeignFact
from streams.facts import take_related_keys
from streams.writing import append_lock
from streams.writing.in_doubt import NOT_LATE, Doubt, exchange_is_over, is_rolled_back
from streams.writing.insert import IF_STORED, converted, fields_to_fill, plain_item_type, plain_type
from streams.writing.process import current_writer
from streams.writing.reservation import LARGEST_COUNT, Reservation
from streams.writing.side_effects import has_effects
from streams.writing.transaction import OpenTransaction
from streams.writing.writer import Tenure, WriterProcess

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import Field

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
    connection = connections[alias]
    message = None if has_effects(stream, facts) else _message(facts, connection)
    if message is None and beside:
        driver.send_together(connection, beside)
    elif message is not None:
        appending = _Appending(stream, connection, beside)
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
    stream, that already has an ID, or that is given twice. Raises ``ValueError`` if a related object was not saved.
    """
    if not 1 <= len(facts) <= LARGEST_COUNT:
        raise BadCount(
            f"Stream {stream.name}: append() was given {len(facts)} facts; give it 1 to {LARGEST_COUNT}, and do not call it "
            f"when there is nothing to append."
        )
    models = stream.models
    for fact in facts:
        if type(fact) not in models:
            raise stream.foreign(fact)
        if getattr(fact, fact.id_field) is not None:
            raise ForeignFact(
                f"Stream {stream.name}: a {type(fact).__name__} given to append() has ID {getattr(fact, fact.id_field)} "
                f"already, so it was appended before or its ID was made up. Make a new object for each fact; to choose IDs, "
                f"use reserve() and write()."
            )
        take_related_keys(fact)
    if len(facts) > 1 and len({id(fact) for fact in facts}) < len(facts):
        raise ForeignFact(
            f"Stream {stream.name}: append() was given the same object twice; each fact has an ID of its own, so make "
            f"an object for each."
        )


# --- the message --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Message:
    """The parts of a statement that inserts facts: their model, the columns that are set, and the values of the parameters."""

    model: type[Fact]
    columns: list[int]
    count: int
    values: list[Any]
    """Of one fact: its values. Of several: the values of each column one after the other."""
    places: list[str]
    """Of several facts: the placeholders of each column."""


@dataclass(frozen=True, slots=True)
class _Column:
    """A column that holds content of the fact, that is, neither its ID nor its writer.

    Values have a cast, because PostgreSQL does not infer the types of a SELECT from the table. The cast is written as
    ``CAST``. A ``::`` binds closer than the sign of a number, so the least smallint would be out of range.
    """

    attribute: str
    field: Field[Any, Any]
    sql_type: str
    plain: type | None
    """Values of this type need no conversion."""
    plain_items: type | None
    """Lists of values of this type need no conversion."""

    @property
    def is_array(self) -> bool:
        """True if the column's values are arrays.

        The arrays of several facts are sent as text, because PostgreSQL's array of arrays needs arrays of one length.
        """
        return self.sql_type.endswith("]")

    @property
    def type_of_several(self) -> str:
        """The SQL type of an array of the column's values, one value for each of several facts."""
        return "text[]" if self.is_array else f"{self.sql_type}[]"

    def converted(self, value: Any, connection: BaseDatabaseWrapper) -> Any:
        """Returns a value of the column in the form that the driver needs."""
        if value is None or type(value) is self.plain:
            return value
        if self.plain_items is not None and type(value) is list and {*map(type, value)} <= {self.plain_items}:
            return value
        return converted(self.field, value, connection)

    def several(
        self, values: Sequence[Any], kinds: set[type], connection: BaseDatabaseWrapper
    ) -> tuple[str, list[Any]]:
        """Returns the SQL of an array of this column's values of several facts, and the values for its placeholders.

        ``kinds`` are the Python types of the values. If no value needs a conversion, the driver gets the whole array as
        one value. That saves time, because the driver needs time for each value.
        """
        if kinds == {self.plain}:
            return "%s", [_array(values)]
        items = self.plain_items
        if items is not None and kinds == {list} and {*map(type, chain.from_iterable(values))} <= {items}:
            return "%s", [_array([_array(value) for value in values])]
        place = f"CAST(CAST(%s AS {self.sql_type}) AS text)" if self.is_array else "%s"
        places = ", ".join([place] * len(values))
        return f"CAST(ARRAY[{places}] AS {self.type_of_several})", [self.converted(one, connection) for one in values]


def _array(values: Sequence[Any]) -> str:
    """Returns an array of texts, integers or booleans as PostgreSQL writes it.

    There must be no NULL among the values: a setting of the server (``array_nulls``) may turn a NULL into a text.
    """
    if not values or type(values[0]) is not str:
        return f"{{{','.join(map(str, values))}}}"
    joined = '","'.join(values)
    if "\\" in joined or joined.count('"') > 2 * (len(values) - 1):
        joined = '","'.join([value.replace("\\", "\\\\").replace('"', '\\"') for value in values])
    return f'{{"{joined}"}}'


class _Content(NamedTuple):
    """The columns of a model that hold content of its facts."""

    columns: tuple[_Column, ...]
    values: Callable[[Fact], tuple[Any, ...]]
    """Returns the fact's ID and the values of these columns."""


@cache
def _content(model: type[Fact]) -> _Content:
    ours = {model.id_field, "instance_name"}
    columns = [
        _Column(field.attname, field, _type(field), plain_type(field), plain_item_type(field))
        for field in fields_to_fill(model)
        if field.attname not in ours
    ]
    # Of one attribute `attrgetter` returns no tuple, and a model may have no content.
    return _Content(
        tuple(columns), attrgetter("instance_name", model.id_field, *[column.attribute for column in columns])
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
    """Returns the columns and values for one statement that inserts all these facts.

    Returns None if a single statement cannot insert all of them.
    """
    model = type(facts[0])
    if len(facts) > MOST_FACTS or len({*map(type, facts)}) > 1:
        return None
    content = _content(model)
    message = _Message(model, [], len(facts), [], [])
    if len(facts) == 1:
        _, _, *given = content.values(facts[0])
        for number, (value, column) in enumerate(zip(given, content.columns, strict=True)):
            kind = type(value)
            if kind is not DatabaseDefault:  # the column is left to its default
                message.columns.append(number)
                message.values.append(value if kind is column.plain else column.converted(value, connection))
        return message
    _, _, *by_column = zip(*map(content.values, facts), strict=True)
    for number, (values, column) in enumerate(zip(by_column, content.columns, strict=True)):
        kinds = {*map(type, values)}
        if DatabaseDefault not in kinds:
            place, sent = column.several(values, kinds, connection)
            message.columns.append(number)
            message.places.append(place)
            message.values.extend(sent)
        elif len(kinds) > 1:
            return None
    return message


#: Takes the append lock. A statement of its own, so that the next statement has a snapshot that began after the lock was
#: granted (``_RESERVE`` in ``reservation`` says why).
_LOCK = append_lock.TAKE.replace("%(key)s", "%s")
#: Yields no row if the lock was not free, if the lease is not the current one, or if the transaction keeps one snapshot. Then
#: no ID is taken and nothing is inserted.
_HELD = (
    "FROM streams_instance AS held WHERE held.name = %s AND held.lease = %s"
    f" AND current_setting('transaction_isolation') = 'read committed' AND {append_lock.HELD_HERE}"
)


@cache
def _sql(stream: BoundStream, model: type[Fact], columns: tuple[int, ...], *, several: bool, alone: bool) -> str:
    """Returns the statement that checks the lease, takes IDs and inserts the rows.

    * If ``several`` is false, the statement inserts one fact, and returns its ID. The parameters are, in order: the
      values, the writer's name, the lease, the highest ID that was given out before, and the writer's name again.
    * If ``several`` is true, the statement returns the number of facts, and an array of their IDs. The parameters are,
      in order: the number of facts, the writer's name, the lease, the highest ID that was given out before, and the
      values.

    If ``alone`` is true, the statement is for a transaction of its own, and has one more parameter after the lease: the
    lock key of the message. Otherwise the statement also returns the number of the caller's transaction.

    The statement fails if the stored rows differ from the given values (``streams.writing.insert``).
    """
    content = [_content(model).columns[n] for n in columns]
    columns_by_attribute = {field.attname: quoted(str(field.column)) for field in fields_to_fill(model)}
    attributes = (model.id_field, "instance_name", *(column.attribute for column in content))
    names = ", ".join(columns_by_attribute[attribute] for attribute in attributes)
    writer_column = columns_by_attribute["instance_name"]
    minus = "-" if stream.declaration.backward else ""
    held = _HELD + (f" AND {NOT_LATE}" if alone else "")
    # A sequence that was set back by hand gives out IDs again that the position has passed. No follower would read facts under
    # these IDs. So nothing is inserted unless the IDs lie above all IDs that this process knew (``Reservation`` has the error).
    insert = f"INSERT INTO {quoted(model._meta.db_table)} ({names}) "
    nextval = f"nextval('{stream.declaration.sequence}')"
    number = "" if alone else ", pg_current_xact_id()::text::bigint"
    id_given = f"{minus}{columns_by_attribute[model.id_field]}"
    if not several:
        places = "".join(f", CAST(%s AS {column.sql_type})" for column in content)
        drawn = f"(SELECT {nextval} AS id, held.name {held} OFFSET 0) AS drawn"
        # ``currval`` is the ID that ``nextval`` has given this session last.
        stored = f"{id_given} = currval('{stream.declaration.sequence}') AND {writer_column} = %s"
        checked = IF_STORED.format(stored=stored, value=id_given, found=f"0 * {id_given} || ' of 1'")
        return (
            f"{insert}SELECT {minus}drawn.id, drawn.name{places} FROM {drawn} WHERE drawn.id > %s "
            f"RETURNING {checked}{number}"
        )
    # The n-th fact takes the n-th ID of an array. With nextval() in each row, the plan would decide which fact gets which ID.
    ids = f"ARRAY(SELECT {nextval} FROM generate_series(1, CAST(%s AS integer)))"
    arrays = ", ".join(f"CAST(%s AS {column.type_of_several})" for column in content)
    given = f"unnest({arrays}) WITH ORDINALITY" if content else "generate_subscripts(taken.ids, 1)"
    values = (f"CAST(c{n} AS {one.sql_type})" if one.is_array else f"c{n}" for n, one in enumerate(content))
    shown = "".join(f", {value}" for value in values)
    aliases = "".join(f"c{n}, " for n in range(len(content)))
    as_given = "id BETWEEN ids[1] AND ids[cardinality(ids)] AND writer = name"
    checked = IF_STORED.format(
        stored="found = cardinality(ids)", value="found", found="found || ' of ' || cardinality(ids)"
    )
    return (
        f"WITH drawn AS MATERIALIZED (SELECT held.name, {ids} AS ids {held}), "
        f"taken AS MATERIALIZED (SELECT name, ids FROM drawn WHERE %s < ALL (ids)), "
        f"stored AS ({insert}SELECT {minus}taken.ids[n], taken.name{shown} FROM taken, {given} AS given ({aliases}n) "
        f"RETURNING {id_given} AS id, {writer_column} AS writer), "
        f"counted AS (SELECT count(*) FILTER (WHERE {as_given}) AS found FROM stored, taken) "
        f"SELECT {checked}, ids{number} FROM taken, counted"
    )


# --- sending it ---------------------------------------------------------------------------------------------------


class _Appending:
    """One call of ``append_facts``, on one connection."""

    def __init__(
        self, stream: BoundStream, connection: BaseDatabaseWrapper, beside: Sequence[driver.Statement]
    ) -> None:
        self.stream = stream
        self.beside = beside
        self.connection = connection
        self.writer: WriterProcess = current_writer(connection.alias)
        self.tenure: Tenure
        self.tracker: PositionTracker
        self.tenure, self.tracker = self.writer.enter(stream)

    def run(self, message: _Message) -> list[int]:
        """Sends the message and returns the IDs, ascending.

        Returns an empty list if nothing was inserted. Then the caller must use a ``Reservation``, which finds out why
        nothing was inserted.
        """
        if self.connection.in_atomic_block or not self.connection.get_autocommit():
            return self._in_callers_transaction(message)
        if driver.transaction_status(self.connection.connection) != driver.IDLE:
            return []  # a BEGIN was executed by hand
        return self._alone(message)

    def _send(self, message: _Message, fetch: Fetch, *lock_of_message: int) -> tuple[list[int], int]:
        """Sends the message. Returns the IDs, ascending, and the number of the caller's transaction.

        Returns no IDs if nothing was inserted.
        """
        several = message.count > 1
        columns = tuple(message.columns)
        sql = _sql(self.stream, message.model, columns, several=several, alone=bool(lock_of_message))
        name, lease = self.tenure.name, self.tenure.lease
        if several:
            places = ["%s"] * (4 + len(lock_of_message)) + message.places
            values = [message.count, name, lease, *lock_of_message, fetch.above, *message.values]
        else:
            places = []
            values = [*message.values, name, lease, *lock_of_message, fetch.above, name]
        again = driver.is_repeated(self.connection, sql)
        statements = [*self.beside, driver.Statement(sql, values, again, places)]
        # An earlier append of the transaction took the lock. If a rollback to a savepoint has released it since, it has also
        # reverted the setting that the statement reads. Then nothing is inserted here, and a ``Reservation`` takes the lock.
        if lock_of_message or not OpenTransaction.has_appended(self.connection, self.writer):
            statements.insert(-1, driver.Statement(_LOCK, [self.tenure.append_key], again))
        rows = driver.send_together(self.connection, statements)
        if not rows:
            return [], 0
        first, *others = rows[0]
        if several:
            first, *others = others
        return (first if several else [first]), (others[0] if others else 0)

    def _in_callers_transaction(self, message: _Message) -> list[int]:
        """Sends the message inside the caller's transaction, and records its IDs as pending until the transaction ends.

        If the server reports an error, no row of the message can be committed.
        """
        fetch = self.tracker.begin_fetch(message.count, time.monotonic())
        ids: list[int] | None = None
        owned = False
        try:
            ids, number = self._send(message, fetch)
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
            record = OpenTransaction.of(self.connection, self.writer, number)
            record.own(self.stream, self.tracker, ids)
            testcase.record_append(self.connection, self.stream.name, ids[0])
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
        return given is not None and not given.closed and driver.transaction_status(given) in driver.OPEN

    def _end_with_transaction(self, fetch: Fetch) -> None:
        """Keeps the request for IDs (``fetch``) open until the caller's transaction ends.

        An open request holds the position back.

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
            ids, _ = self._send(message, fetch, key)
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
