"""Defines the parts of a source, and the lines that are read from a part (pure).

A source is a file or a database. It is divided into *parts*, and each part is read by one task. Each line or row has a
number within its part, from 1. A line or row that cannot be read is a ``BrokenLine``, never an exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

__all__ = ["HEAD_BYTES", "TOLD", "BrokenLine", "Form", "Line", "Part", "PassedLines"]

HEAD_BYTES = 300
"""The most bytes of a broken line that are kept."""
TOLD = ("event_id", "room_version", "outlier", "rejected_reason", "soft_failed", "stream_ordering")
"""Values beside an event's JSON that a source may give: keys of a JSON Lines wrapper, or columns of a table."""


class Form(StrEnum):
    """The format of a source. It is determined by the content, never by the name."""

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
    part in which it begins. ``rows`` is the number of rows, if it is known without reading. ``snapshot`` is the
    exported snapshot of a PostgreSQL database that all its parts share.
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
    """A line without its line feed, or the JSON of an event in a table.

    For an event in a table, ``told`` holds the values of the columns beside the JSON.
    """

    number: int
    content: bytes
    told: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class BrokenLine:
    """A line that cannot be read: the reason, the detail, and its first bytes."""

    number: int
    reason: str
    detail: str
    head: bytes


@dataclass(frozen=True, slots=True)
class PassedLines:
    """A marker with the number of lines read so far, including those that were skipped."""

    number: int
