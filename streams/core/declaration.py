"""Declares streams as plain data (pure).

A declaration has the stream's name, and the tables that hold its facts. The declaration also has the function that
turns a table row into the row that is sent. The Django model, the replication server and Spark all read the
declaration, so a stream is described only once. This module needs neither Django nor a database.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

#: The instance name that the main process always has in the replication protocol of Synapse 1.43.
MAIN_PROCESS = "master"


class ColumnKind(StrEnum):
    """The types that a column of a fact may have."""

    TEXT = "text"
    BIGINT = "bigint"
    BOOLEAN = "boolean"
    JSON = "json"
    JSON_TEXT = "json text"
    """Text that already is compact ASCII JSON, in the form in which it is sent. ``streams.core.json_codec`` writes it."""
    TEXT_ARRAY = "text[]"
    DECIMAL = "numeric"
    FLOAT = "double precision"
    DATETIME = "timestamptz"
    DATE = "date"
    TIME = "time"
    DURATION = "interval"
    UUID = "uuid"
    BINARY = "bytea"
    ADDRESS = "inet"
    ARRAY = "array"
    """An array whose elements are not text. ``Column.item`` is the kind of its elements."""


#: Kinds of columns that ``FactTable.newest_per`` may name, and their types in PostgreSQL.
NEWEST_PER_KINDS = {ColumnKind.TEXT: "text", ColumnKind.BIGINT: "bigint", ColumnKind.UUID: "uuid"}


def quoted(name: str) -> str:
    """Returns the name of a table or column in quotes, for SQL.

    Names come from models, so they may have capitals and blanks, or be words of SQL. A system check refuses names that
    have no such form (``streams.E036``).
    """
    return f'"{name}"'


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a fact table.

    ``field`` is the name of the column's value in a row that is a JSON object. ``field`` is empty if it would equal
    ``name``. ``item`` is the kind of the elements of an ``ARRAY``.
    """

    name: str
    kind: ColumnKind
    nullable: bool = False
    field: str = ""
    item: ColumnKind | None = None

    @property
    def key(self) -> str:
        return self.field or self.name


@dataclass(frozen=True, slots=True)
class FactTable:
    """One table that holds facts of a stream.

    ``row`` turns the values of ``columns``, in that order, into the JSON value of an RDATA line. ``where`` is an extra
    SQL condition, for a table that several streams share. ``then_by`` is the column that orders the rows of one fact.
    ``then_by`` is empty if a fact has at most one row. If ``newest_per`` names a column, the table keeps only the
    newest row for each value of that column: older rows are deleted, and no row is ever updated. ``more`` are columns
    that are not sent. These columns are for programs that read the table itself, such as Spark.
    """

    name: str
    columns: tuple[Column, ...]
    row: Callable[[Sequence[Any]], Any] = list
    id_column: str = "stream_id"
    writer_column: str = "instance_name"
    received_column: str = "received_at"
    where: str = ""
    then_by: str = "id"
    newest_per: str = ""
    more: tuple[Column, ...] = ()

    def __hash__(self) -> int:
        return hash(self.name)  # of all fields it would take longer than most of what caches keep for a table

    @property
    def stored(self) -> tuple[Column, ...]:
        return self.columns + self.more


@dataclass(frozen=True, slots=True)
class StreamDeclaration:
    """A stream: its name, the tables whose union holds its facts, and the sequence of its IDs.

    Rows of different tables with the same ID belong to one fact, and are sent in the order of ``tables``. The IDs of a
    ``backward`` stream are negative in its tables and positive everywhere else. A stream is ``trimmable`` if its facts
    are only a log of changes to data that is stored elsewhere. Streams may share a sequence. Then an append to one of
    these streams moves the positions of all of them.

    The facts of an ``in_memory`` stream are kept for minutes. Its tables are UNLOGGED, so a crash of the server empties them.
    Its sequence goes on.

    If ``announced_as`` is a name, all facts of the stream are sent under that name, in the order of their IDs, whichever
    writer appended them. Clients of Synapse 1.43 need this: they keep only one position for such a stream, and request
    missed facts from the process of that name.

    ``version`` is the version of the row of a stream whose rows are JSON objects (``streams.core.named_rows``). ``key``
    names the field by which facts belong together. ``key`` is empty for a stream without a key.
    """

    name: str
    tables: tuple[FactTable, ...]
    sequence: str
    backward: bool = False
    trimmable: bool = True
    in_memory: bool = False
    announced_as: str = ""
    version: int = 1
    key: str = ""

    @property
    def empty_position(self) -> int:
        """The position of the stream before its first fact. The ID of the first fact is one more."""
        return 0 if self.in_memory else 1

    @property
    def sign(self) -> int:
        """-1 for a backward stream, whose tables hold negated IDs, else 1.

        An ID is converted in both directions by multiplication with this number.
        """
        return -1 if self.backward else 1
