"""What an import reads: parts of sources, and the rows that they give (pure).

A source (a file, a database) is cut into *parts*, each of which a task reads by itself. Every row gets its number within the
part, counted from 1; what cannot be had comes out as a ``BrokenLine``, never as an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

__all__ = ["HEAD_BYTES", "TOLD", "BrokenLine", "Form", "Line", "Part", "PassedLines"]

HEAD_BYTES = 300
"""How much of a broken line is kept."""
TOLD = ("event_id", "room_version", "outlier", "rejected_reason", "soft_failed", "stream_ordering")
"""What a source may tell of an event besides its JSON: keys of a JSON Lines wrapper, columns of a table."""


class Form(StrEnum):
    """What a source is; told by its content, never by its name."""

    LINES = "lines"
    GZIP = "gzip"
    ZSTD = "zstd"
    PARQUET = "parquet"
    POSTGRESQL = "postgresql"
    SQLITE = "sqlite"


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a source; ``path`` opens it, ``name`` is what people see (no password).

    ``start`` and ``end`` are offsets of plain lines (lines that begin in ``start <= offset < end``), row groups of Parquet, and
    stream orderings of a database; ``end`` None: all the rest. ``rows`` is how many rows it has, where that is known without
    reading. ``snapshot`` is the view of a database that all its parts share.
    """

    file: int
    path: str
    start: int = 0
    end: int | None = None
    form: Form = Form.LINES
    name: str = ""
    rows: int | None = None
    snapshot: str | None = None


class Line(msgspec.Struct, frozen=True, gc=False):
    """A line without its line feed, or an event's bytes with what the source tells of it in columns of their own."""

    number: int
    content: bytes
    told: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class BrokenLine:
    """A line that cannot be had: why, and its first bytes."""

    number: int
    reason: str
    detail: str
    head: bytes


@dataclass(frozen=True, slots=True)
class PassedLines:
    """Up to this number there are lines that nobody asked for."""

    number: int
