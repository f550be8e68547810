"""Defines the parts of the live page's tables (pure): columns, cells, rows, groups, and the formats of figures in cells.

A cell is text, or a moment whose age is computed where the cell is shown. So a row changes when something happens, and
not merely because time passes. There is no HTML here: names that clients choose are plain text until they are rendered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import zip_longest
from typing import Any, NotRequired, TypedDict

from replsite.status.series import Series
from replsite.status.words import Severity, Verdict
from streams.runtime.amounts import count, counted, duration

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
    """A column of a table. Columns of numbers are aligned to the right."""

    title: str
    number: bool = False


class Cell(TypedDict):
    """A cell: ``text``, smaller ``sub`` text below it, and optional parts. Moments are in ISO 8601.

    ``at`` is a moment whose age is shown in place of the text. ``since`` is a moment whose age follows the smaller text.
    ``series`` has the figures of the last five minutes, which are drawn beside the text. ``share`` is a number from 0 to 1,
    drawn as a bar: the progress of a job, or the size of a table divided by the size of all listed tables.
    """

    text: str
    sub: NotRequired[str]
    at: NotRequired[str]
    since: NotRequired[str]
    series: NotRequired[list[float | None]]
    share: NotRequired[float]


class Row(TypedDict):
    """A row of a table: its key within the group, its severity and its cells. The second cell is the status word.

    ``id`` is the key of the row's object in the admin's URLs. ``command`` is the part of the last cell's text that can
    be copied and run. ``actions`` are the admin's actions that solve the row's problem, and ``about`` is their argument.
    """

    key: str
    severity: str
    cells: list[Cell]
    id: NotRequired[str]
    command: NotRequired[str]
    actions: NotRequired[tuple[str, ...]]
    about: NotRequired[str]


class Group(TypedDict):
    """A head row with the rows below it: a stream with its writers, or a reader with its streams."""

    key: str
    head: Row
    rows: list[Row]


class Tile(TypedDict):
    """A figure about the whole site, at the top of the page."""

    title: str
    severity: str
    cell: Cell


class Page(TypedDict):
    """The live page of one snapshot.

    The figures of ``storage`` and ``rooms`` are read less often than the others; ``storage_at`` is their time. Viewers need
    a permission to see ``rooms``.
    """

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


def row_of(key: str, status: Verdict, cells: Iterable[Cell], admin_id: str = "", about: str = "") -> Row:
    """Returns a row: the first cell, the status word, the other cells, and the sentence of the status.

    The row has the status's command only if the sentence contains the command. ``admin_id`` is the key of the row's
    object in the admin's URLs. ``about`` is the argument of the status's actions; without it the row has no actions.
    """
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
    if about and status.actions:
        row["actions"], row["about"] = status.actions, about
    return row


def head_row(status: Verdict, sentence: str, cells: Iterable[Cell], admin_id: str = "", about: str = "") -> Row:
    """Returns the first row of a group. The row's sentence is empty if the status is fine."""
    said = "" if status.severity == Severity.FINE else sentence
    return row_of("", replace(status, sentence=said), cells, admin_id, about)


def text_cell(text: str, sub: str = "", since: datetime | None = None) -> Cell:
    """Returns a cell of text. ``sub`` is the smaller text below it, if there is any."""
    cell: Cell = {"text": text}
    if sub:
        cell["sub"] = sub
    if since is not None:
        cell["since"] = since.isoformat()
    return cell


def moment_cell(at: datetime | None, sub: str = "") -> Cell:
    """Returns a cell that shows the age of ``at``, or a dash if ``at`` is None."""
    cell = text_cell(NOTHING, sub)
    if at is not None:
        cell["at"] = at.isoformat()
    return cell


def number_cell(number: int | None, sub: str = "", since: datetime | None = None) -> Cell:
    """Returns a cell with a number, or just a dash for None and for zero."""
    return text_cell(count(number), sub, since) if number else text_cell(NOTHING)


def lag_cell(facts: int, seconds: float, exact: bool) -> Cell:
    """Returns a cell with the lag in facts, and below it the lag in time.

    If ``exact`` is false, the word "about" precedes the number of facts.
    """
    if not facts:
        return text_cell("0 facts")
    return text_cell(f"{'' if exact else 'about '}{counted(facts, 'fact')}", duration(seconds))


def per_second(speed: float) -> str:
    """Returns a rate as text: ``12/s``, or ``0.4/s`` if the rate is small. A negative rate is shown as zero."""
    return f"{count(round(speed))}/s" if speed >= 9.95 else f"{max(speed, 0.0):.1f}/s"


def rounded(series: Series | Sequence[float | None]) -> list[float | None]:
    """Rounds figures for a small chart: to whole numbers from 1,000 on, below that to one decimal.

    The chart cannot show more digits. So the figures change only if the chart changes.
    """
    return [None if value is None else round(value) if value >= _ROUNDED_FROM else round(value, 1) for value in series]


def summed(found: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Returns the sum of several series: one value for each moment. A value is None only if all series have None then."""
    sums: list[float | None] = []
    for step in zip_longest(*found):
        known = [value for value in step if value is not None]
        sums.append(sum(known) if known else None)
    return sums


def quoted_key(key: str) -> str:
    """Quotes a key as Django's admin quotes keys in URLs."""
    return "".join(f"_{ord(letter):02X}" if letter in _QUOTED else letter for letter in key)
