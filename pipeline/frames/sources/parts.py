"""Defines the parts of a source, and the lines that are read from a part (pure).

A source is a file or a database. It is divided into *parts*, and each part is read by one task. Each line or row has a
number within its part, from 1. A line or row that cannot be read is a ``BrokenLine``, never an exception.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

__all__ = ["GIVEN_COLUMNS", "HEAD_BYTES", "BrokenLine", "Form", "Line", "Part", "PassedLines", "lines_before"]

HEAD_BYTES = 300
"""The largest number of bytes of a broken line that are kept."""
GIVEN_COLUMNS = ("event_id", "room_version", "outlier", "rejected_reason", "soft_failed", "stream_ordering")
"""Values beside an event's JSON that a source may give: keys of a JSON Lines wrapper, or columns of a table."""


class Form(StrEnum):
    """The format of a source. The content of the source determines it, not the name of the file."""

    LINES = "lines"
    GZIP = "gzip"
    ZSTD = "zstd"
    PARQUET = "parquet"
    POSTGRESQL = "postgresql"
    SQLITE = "sqlite"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a source. ``path`` opens the source. ``name`` is for display, without a password.

    ``file`` is the number of the source. ``start`` and ``end`` are byte offsets of a plain file, row groups of Parquet,
    or stream orderings of a database. ``end`` is exclusive; None means the end of the source. A line belongs to the
    part in which it begins. ``rows`` is the number of rows in the part, if it is known without reading the part.
    ``snapshot`` is the name of an exported snapshot, which all parts of a PostgreSQL database share. ``parts`` is the
    number of parts into which a Parquet file is divided.
    """

    file: int
    path: str
    start: int = 0
    end: int | None = None
    form: Form = Form.LINES
    name: str = ""
    rows: int | None = None
    snapshot: str | None = None
    parts: int = 1


class Line(msgspec.Struct, frozen=True, gc=False):
    """A line or a row with an event. ``content`` has the bytes of the line without line feed, or the JSON of the row.

    For a row of a table, ``given`` maps the names of the other columns to their values. For a line, ``given`` is None.
    """

    number: int
    content: bytes
    given: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class BrokenLine:
    """A line that cannot be read: the reason, details of the reason, and the first bytes of the line."""

    number: int
    reason: str
    detail: str
    head: bytes


@dataclass(frozen=True, slots=True)
class PassedLines:
    """A marker with the number of lines read so far, including lines that were skipped."""

    number: int


def lines_before(parts: Sequence[Part], lines: Sequence[int]) -> list[int]:
    """Returns, for each part, the number of lines before the part in the same source. ``lines`` are those of each part."""
    found, counted = [], 0
    for number, part in enumerate(parts):
        counted = 0 if number == 0 or parts[number - 1].file != part.file else counted + lines[number - 1]
        found.append(counted)
    return found
