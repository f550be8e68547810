"""What the tables of the live page are made of: columns, cells, rows, groups, and how figures are said in a cell (pure).

A cell is text, or a moment whose age is counted where it is shown; so a row changes only when something happened, not because a
second went by. Nothing here is HTML: names that readers choose stay text all the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from typing import Any, NotRequired, TypedDict

from replsite.humanize import count, counted, duration
from replsite.status.series import Series
from replsite.status.verdicts import Severity, Verdict

__all__ = [
    "NOTHING",
    "Cell",
    "Column",
    "Group",
    "Page",
    "Row",
    "Tile",
    "head_row",
    "lag_cell",
    "moment_cell",
    "number_cell",
    "per_second",
    "quoted_key",
    "rounded",
    "row_of",
    "summed",
    "text_cell",
]

NOTHING = "-"
_QUOTED = frozenset(':/_#?;@&=+$,"[]<>%\n\\')
_ROUNDED_FROM = 1_000


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; numbers are set to the right."""

    title: str
    number: bool = False


class Cell(TypedDict):
    """``text``, smaller ``sub`` text below it, and what goes with them.

    ``at`` is a moment whose age replaces the text, ``since`` one whose age follows the smaller text; ``series`` are the figures
    of the last five minutes, drawn beside the text; ``share`` is how much is done, 0 to 1.
    """

    text: str
    sub: NotRequired[str]
    at: NotRequired[str]
    since: NotRequired[str]
    series: NotRequired[list[float | None]]
    share: NotRequired[float]


class Row(TypedDict):
    """One line: its key within the group, how bad it is, its status word (in the second column), and its cells.

    ``id`` names its object in the admin's addresses; ``command`` is the part of its last cell that can be copied and run.
    """

    key: str
    severity: str
    cells: list[Cell]
    id: NotRequired[str]
    command: NotRequired[str]


class Group(TypedDict):
    """A stream with its writers, or a reader with its streams."""

    key: str
    head: Row
    rows: list[Row]


class Tile(TypedDict):
    """One figure of the whole, at the top of the page."""

    title: str
    severity: str
    cell: Cell


class Page(TypedDict):
    """Everything that the page shows of one snapshot. Storage is read less often; not everybody may see ``rooms``."""

    as_of: str
    storage_at: str
    health: dict[str, Any]
    summary: list[Tile]
    streams: list[Group]
    readers: list[Group]
    jobs: list[Group]
    storage: list[Group]
    rooms: list[Group]
    workers: list[Group]


def row_of(key: str, status: Verdict, cells: Iterable[Cell], admin_id: str = "") -> Row:
    """A line: the name, the status word, the other cells, and the sentence."""
    name, *rest = cells
    row: Row = {
        "key": key,
        "severity": status.severity.name.lower(),
        "cells": [name, {"text": str(status.word)}, *rest, {"text": status.sentence}],
    }
    if status.command and status.command in status.sentence:
        row["command"] = status.command
    if admin_id:
        row["id"] = admin_id
    return row


def head_row(status: Verdict, sentence: str, cells: Iterable[Cell], admin_id: str = "") -> Row:
    """The first line of a group; it says something only when there is something to do."""
    said = "" if status.severity == Severity.FINE else sentence
    return row_of("", Verdict(status.word, status.severity, said, status.command), cells, admin_id)


def text_cell(text: str, sub: str = "", since: datetime | None = None) -> Cell:
    """Text, with smaller text below it, if there is any."""
    cell: Cell = {"text": text}
    if sub:
        cell["sub"] = sub
    if since is not None:
        cell["since"] = since.isoformat()
    return cell


def moment_cell(at: datetime | None, sub: str = "") -> Cell:
    """How long ago something was."""
    cell = text_cell(NOTHING, sub)
    if at is not None:
        cell["at"] = at.isoformat()
    return cell


def number_cell(number: int | None, sub: str = "", since: datetime | None = None) -> Cell:
    """A number; nothing for none and for zero."""
    return text_cell(count(number), sub, since) if number else text_cell(NOTHING)


def lag_cell(facts: int, seconds: float, exact: bool) -> Cell:
    """Lag in facts and in time."""
    if not facts:
        return text_cell("0 facts")
    return text_cell(f"{'' if exact else 'about '}{counted(facts, 'fact')}", duration(seconds))


def per_second(speed: float) -> str:
    """``12/s``, ``0.4/s``; never negative."""
    return f"{count(round(speed))}/s" if speed >= 9.95 else f"{max(speed, 0.0):.1f}/s"


def rounded(series: Series | Sequence[float | None]) -> list[float | None]:
    """The figures with no more digits than a small picture shows, so that they change when it would."""
    return [None if value is None else round(value) if value >= _ROUNDED_FROM else round(value, 1) for value in series]


def summed(found: Sequence[Sequence[float | None]]) -> list[float | None]:
    """The sum of several figures, step by step; unknown only where all are."""
    sums: list[float | None] = []
    for step in zip_longest(*found):
        known = [value for value in step if value is not None]
        sums.append(sum(known) if known else None)
    return sums


def quoted_key(key: str) -> str:
    """A key as the admin writes it into addresses."""
    return "".join(f"_{ord(letter):02X}" if letter in _QUOTED else letter for letter in key)
