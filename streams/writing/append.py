"""Appends facts by one INSERT, sent with the writer's name in one message.

The triggers of the tables hold the stream until the transaction ends (``streams.holds``), so nothing else is to be done. In
the caller's transaction the facts are complete when that ends. Otherwise the message is a transaction of its own.

Several facts are sent as one array for each column. So the statement is the same for any number of facts, and is
planned once.

A ``Reservation`` is used instead if one statement cannot insert all the facts: if they belong to several tables or need older
rows deleted, if only some of them leave a column to its default, and above ``MOST_FACTS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections
from django.db.models import AutoField
from django.db.models.expressions import DatabaseDefault

from streams.conf import stream_settings
from streams.core.declaration import quoted
from streams.db import driver, testcase
from streams.errors import BadCount, ForeignFact
from streams.facts import prepare_for_insert
from streams.holds.hold import WRITE_AS
from streams.reading.hints import hint_after_commit
from streams.writing.given_out import given_out, record_given_out
from streams.writing.insert import IF_STORED, Column, columns_to_fill, fields_to_fill
from streams.writing.name import name_for
from streams.writing.reservation import LARGEST_COUNT, Reservation

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from streams.core.bound import BoundStream
    from streams.facts import Fact

#: Most facts of one message. More are appended with a ``Reservation``, by several statements.
MOST_FACTS = 1_000

_NAME_WRITER = f"SELECT {WRITE_AS.replace('%(writer)s', '%s')}"


def append_facts(
    stream: BoundStream, facts: Sequence[Fact], using: str | None, beside: Sequence[driver.Statement] = ()
) -> list[int]:
    """Appends facts that have one row each. Returns their IDs, positive and ascending, in the order of the facts.

    Uses the caller's transaction if one is open, else a transaction of its own. Sets ID, writer and automatic key on the facts.
    ``beside`` are statements to execute first, in the same message. Their results are discarded, and the caller must have
    a transaction open. Raises ``BadCount`` or ``ForeignFact`` before anything is sent.
    """
    check_new_facts(stream, facts)
    alias = using or stream_settings().database
    connection = connections[alias]
    name = name_for(stream)
    message = None if stream.keeps_newest else _message(facts, connection)
    if message is None and beside:
        driver.send_together(connection, beside)
    ids, keys = ([], []) if message is None else _send(stream, message, connection, beside, name)
    if not ids:  # or nothing was inserted: a reservation raises the error that says why
        with Reservation(stream, len(facts), using) as reservation:
            reservation.write_directly(*facts)
            return reservation.ids
    record_given_out(stream, connection, ids)
    sign = stream.sign
    for fact, number, key in zip(facts, ids, keys or [None] * len(ids), strict=True):
        setattr(fact, fact.id_field, number * sign)
        fact.instance_name = name
        if key is not None:
            fact.pk = key
        fact._state.adding, fact._state.db = False, alias
    testcase.record_append(connection, stream.name, ids[0])
    hint_after_commit(connection, stream.name)
    return ids


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
    for fact in facts:
        stream.check_class(fact)
        if getattr(fact, fact.id_field) is not None:
            raise ForeignFact(
                f"Stream {stream.name}: a {type(fact).__name__} given to append() has ID {getattr(fact, fact.id_field)} "
                f"already, so it was appended before or its ID was made up. Make a new object for each fact; to choose IDs, "
                f"use reserve() and write()."
            )
        prepare_for_insert(fact)
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


class _Content(NamedTuple):
    """The columns of a model that hold content of its facts."""

    columns: tuple[Column, ...]
    values: Callable[[Fact], tuple[Any, ...]]
    """Returns the fact's ID and the values of these columns."""


@cache
def _content(model: type[Fact]) -> _Content:
    ours = {model.id_field, "instance_name"}
    columns = [column for column in columns_to_fill(model) if column.attribute not in ours]
    # Of one attribute `attrgetter` returns no tuple, and a model may have no content.
    return _Content(
        tuple(columns), attrgetter("instance_name", model.id_field, *[column.attribute for column in columns])
    )


def _message(facts: Sequence[Fact], connection: BaseDatabaseWrapper) -> _Message | None:
    """Returns None if a single statement cannot insert all of them."""
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


# --- sending it ---------------------------------------------------------------------------------------------------


@cache
def _sql(stream: BoundStream, model: type[Fact], columns: tuple[int, ...], *, several: bool) -> str:
    """Returns the statement that inserts the rows, if their IDs are new.

    Returns no row if nothing was inserted. The parameters are the writer, the values, and an ID that was given out before.

    * If ``several`` is false, the statement inserts one fact, and returns its ID and its automatic key, or null if it has none.
    * If ``several`` is true, it returns two arrays of these. The number of facts is one more parameter, and takes the place
      of the values if there are none. The statement fails if only some of the rows are inserted.
    """
    content = [_content(model).columns[n] for n in columns]
    columns_by_attribute = {field.attname: quoted(str(field.column)) for field in fields_to_fill(model)}
    attributes = (model.id_field, "instance_name", *(column.attribute for column in content))
    names = ", ".join(columns_by_attribute[attribute] for attribute in attributes)
    minus = "-" if stream.declaration.backward else ""
    insert = f"INSERT INTO {quoted(model._meta.db_table)} ({names}) "
    nextval = f"nextval('{stream.declaration.sequence}')"
    id_given = f"{minus}{columns_by_attribute[model.id_field]}"
    pk = model._meta.pk
    key = quoted(str(pk.column)) if isinstance(pk, AutoField) else "NULL::bigint"
    if not several:
        places = "".join(f", CAST(%s AS {column.sql_type})" for column in content)
        # OFFSET 0: one nextval, whose value is both inserted and compared.
        return (
            f"{insert}SELECT {minus}drawn.id, CAST(%s AS text){places} FROM (SELECT {nextval} AS id OFFSET 0) AS drawn "
            f"WHERE drawn.id > %s RETURNING {id_given}, {key}"
        )
    arrays = ", ".join(f"CAST(%s AS {column.type_of_several})" for column in content)
    given = f"unnest({arrays}) WITH ORDINALITY" if content else "generate_series(1, CAST(%s AS integer))"
    values = (f"CAST(c{n} AS {column.sql_type})" if column.is_array else f"c{n}" for n, column in enumerate(content))
    shown = "".join(f", {value}" for value in values)
    aliases = "".join(f"c{n}, " for n in range(len(content)))
    # Each OFFSET 0 keeps the planner from moving nextval to where it is called in another order, or twice for a row.
    checked = IF_STORED.format(
        stored="cardinality(ids) = CAST(%s AS integer)", value="1", found="cardinality(ids) || ' of the'"
    )
    in_order = f"SELECT * FROM {given} AS given ({aliases}n) ORDER BY n OFFSET 0"
    return (
        f"WITH stored AS ({insert}SELECT {minus}drawn.id, CAST(%s AS text){shown} "
        f"FROM (SELECT {nextval} AS id, given.* FROM ({in_order}) AS given OFFSET 0) AS drawn WHERE drawn.id > %s "
        f"RETURNING {id_given} AS id, {key} AS key), "
        f"found AS (SELECT array_agg(id ORDER BY id) AS ids, array_agg(key ORDER BY id) AS keys FROM stored) "
        f"SELECT ids, keys FROM found WHERE ids IS NOT NULL AND {checked} = 1"
    )


def _send(
    stream: BoundStream,
    message: _Message,
    connection: BaseDatabaseWrapper,
    beside: Sequence[driver.Statement],
    name: str,
) -> tuple[list[int], list[Any]]:
    """Returns the IDs, ascending, and the automatic keys. Returns no ID if nothing was inserted."""
    above, several = given_out(stream, connection), message.count > 1
    sql = _sql(stream, message.model, tuple(message.columns), several=several)
    places: list[str] = []
    values = [name, *message.values, above]
    if several:
        places = ["%s", *(message.places or ["%s"]), "%s", "%s"]
        values = [name, *(message.values or [message.count]), above, message.count]
    again = driver.is_repeated(connection, sql)
    named = driver.Statement(_NAME_WRITER, [name], again, ["%s"] if several else ())
    rows = driver.send_together(connection, [*beside, named, driver.Statement(sql, values, again, places)])
    if not rows:
        return [], []
    ids, keys = rows[0]
    return (list(ids), list(keys)) if several else ([ids], [keys])
