"""What a stream is, as plain data (pure).

A declaration says how a stream is called, which tables hold its facts and how one table row becomes the row that
travels on the wire. The Django model binds to it, the wire and Spark read it; none of them describes a stream again.
Assumes nothing but Python: no Django, no database.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["MAIN_PROCESS", "Column", "ColumnKind", "FactTable", "StreamDeclaration"]


#: What the main process is called on the wire of 1.43, always.
MAIN_PROCESS = "master"


class ColumnKind(StrEnum):
    """The types a column of a fact may have."""

    TEXT = "text"
    BIGINT = "bigint"
    BOOLEAN = "boolean"
    JSON = "json"
    JSON_TEXT = "json text"
    """Text that is compact ASCII JSON already, as it travels; ``streams.core.json_codec`` writes it."""
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

    ``row`` turns the values of ``columns``, in that order, into the JSON value that travels in RDATA.
    ``where`` is an extra SQL condition for a table that serves several streams; ``then_by`` is the column that orders the
    rows of one fact, empty when a fact has one row at most. With ``newest_per`` the table keeps only the newest row for
    each value of that column: an older one vanishes, and never changes under its ID. ``more`` are columns for those who read
    the table itself (Spark); they do not travel.
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
        """The columns that travel, then the others."""
        return self.columns + self.more


@dataclass(frozen=True, slots=True)
class StreamDeclaration:
    """A stream: its name, the union of tables that back it, and the sequence its IDs come from.

    Rows of different tables with equal ID belong to one fact and are sent in the order of ``tables``.
    The IDs of a ``backward`` stream are negative in its tables and positive everywhere else.
    A stream is not ``trimmable`` when its tables are the data itself and not only the news of it.
    Streams may share a sequence: then the position of each moves when one of them is written.
    The facts of an ``in_memory`` stream live as long as its writers: it begins anew, at position 0, when a writer comes to it
    and no other lives. Its tables are UNLOGGED.
    A stream that is ``announced_as`` one name goes over the wire under that name, whoever wrote, in the order of its IDs: a 1.43
    client keeps one position of it, and asks the process of that name for what it missed.
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
        """Where the stream is before its first fact: the first ID is one more."""
        return 0 if self.in_memory else 1

    @property
    def sign(self) -> int:
        """Factor between an ID in the tables and the same ID everywhere else."""
        return -1 if self.backward else 1
