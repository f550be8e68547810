"""Renders the tables of the live page for terminals (pure), as aligned plain lines or as cells for ``rich``.

Clients choose their own names. So control characters, which a terminal would interpret, are written as escapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from replsite.live_rows.cells import Cell, Column, Group, Row
from streams.runtime.amounts import duration
from streams.runtime.text import safe_text


@dataclass(frozen=True, slots=True)
class Content:
    """The live page for a terminal: the headline with its severity, and the tables as columns and groups."""

    headline: str
    severity: str
    tables: Sequence[tuple[Sequence[Column], Sequence[Group]]]
    as_of: datetime


def _text_of(cell: Cell, now: datetime) -> str:
    text = cell["text"]
    if "at" in cell:
        text = f"{duration((now - datetime.fromisoformat(cell['at'])).total_seconds())} ago"
    since = cell.get("since")
    age = f"for {duration((now - datetime.fromisoformat(since)).total_seconds())}" if since else ""
    sub = " · ".join(part for part in (cell.get("sub", ""), age) if part)
    return safe_text(f"{text} ({sub})" if sub and text else text, None)


def cells_of(row: Row, now: datetime, *, indent: bool) -> list[str]:
    """Returns the texts of the cells of one row. With ``indent``, the first text is moved right, below the group's head."""
    first, *rest = [_text_of(cell, now) for cell in row["cells"]]
    return [f"  {first}" if indent else first, *rest]


def rows_of(groups: Iterable[Group], now: datetime) -> list[tuple[str, bool, list[str]]]:
    """Returns a tuple for every row: its severity, true if it is the head of a group, and the texts of its cells."""
    found = []
    for group in groups:
        found.append((group["head"]["severity"], True, cells_of(group["head"], now, indent=False)))
        found += [(row["severity"], False, cells_of(row, now, indent=True)) for row in group["rows"]]
    return found


def lines_of(columns: Sequence[Column], groups: Iterable[Group], now: datetime) -> list[str]:
    """Returns a table as aligned plain lines, headings first. No text is cut off."""
    rows = [[column.title for column in columns], *(cells for _, _, cells in rows_of(groups, now))]
    widths = [max(len(row[index]) for row in rows) for index in range(len(columns))]
    return ["  ".join(map(_set, row, widths, columns)).rstrip() for row in rows]


def _set(text: str, width: int, column: Column) -> str:
    return text.rjust(width) if column.number else text.ljust(width)
