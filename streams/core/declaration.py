"""Declares streams as plain data (pure).

A declaration has the stream's name, the tables that hold its facts, and the function that turns a table row into the row
that goes over the wire. The Django model, the wire and Spark all read it, so that a stream is described once. Assumes
nothing but Python: no Django, no database.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["MAIN_PROCESS", "Column", "ColumnKind", "FactTable", "StreamDeclaration"]


#: The name that the main process always has on the wire of 1.43.
MAIN_PROCESS = "master"


class ColumnKind(StrEnum):
    """The types that a column of a fact may have."""

    TEXT = "text"
    BIGINT = "bigint"
    BOOLEAN = "boolean"
    JSON = "json"
    JSON_TEXT = "json text"
    """Text that is compact ASCII JSON already, as it is sent. ``streams.core.json_codec`` writes it."""
    TEXT_ARRAY = "text[]"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a fact table."""

    name: str
    kind: ColumnKind
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class FactTable:
    """One table that holds facts of a stream.

    ``row`` turns the values of ``columns``, in that order, into the JSON value of an RDATA line. ``where`` is an extra
    SQL condition, for a table that several streams share. ``then_by`` is the column that orders the rows of one fact,
    empty if a fact has at most one row. With ``newest_per``, the table keeps only the newest row for each value of that
    column. Older rows are deleted, and no row ever changes under its ID. ``more`` are columns for readers of the table
    itself (Spark). They are not sent.
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

    @property
    def stored(self) -> tuple[Column, ...]:
        """The columns that are sent, then the others."""
        return self.columns + self.more


@dataclass(frozen=True, slots=True)
class StreamDeclaration:
    """A stream: its name, the tables whose union holds its facts, and the sequence of its IDs.

    Rows of different tables with equal ID belong to one fact, and are sent in the order of ``tables``. The IDs of a
    ``backward`` stream are negative in its tables and positive everywhere else. A stream is not ``trimmable`` if its
    tables are the data itself, not only the news about it. Streams may share a sequence: then the position of each moves
    when one of them is written.

    The facts of an ``in_memory`` stream live as long as its writers. It starts again at position 0 when a writer enters
    it and no other lives. Its tables are UNLOGGED.

    A stream that is ``announced_as`` one name is sent under that name, whichever writer wrote, in the order of its IDs.
    This is for clients of 1.43, which keep one position of it and ask the process of that name for facts that they
    missed.
    """

    name: str
    tables: tuple[FactTable, ...]
    sequence: str
    backward: bool = False
    trimmable: bool = True
    in_memory: bool = False
    announced_as: str = ""

    @property
    def empty_position(self) -> int:
        """The position of the stream before its first fact. The first ID is one more."""
        return 0 if self.in_memory else 1

    @property
    def sign(self) -> int:
        """The factor between an ID in the tables and the same ID everywhere else: -1 for a backward stream, else 1."""
        return -1 if self.backward else 1
