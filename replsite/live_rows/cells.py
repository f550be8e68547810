"""What all tables that an operator sees have in common (pure): rows, columns, cells, and the formats of figures in cells.

One query fills a row, ``replsite.live_rows.reading`` completes it, and ``replsite.live_rows.verdicts`` has its status. The
columns of its table make its cells, for the live page and for terminals. A cell is text, or a moment whose age is computed
where the cell is shown. So a cell changes when something happens, and not merely because time passes. There is no HTML here:
names that clients choose are plain text until they are rendered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import datetime
from itertools import zip_longest
from typing import Any, NotRequired, TypedDict

from replsite.status.series import Series
from replsite.status.words import Severity, Verdict
from streams.runtime.amounts import count, counted, duration

NO_STATUS = Verdict("", Severity.FINE, "")
HIDDEN = {"hidden": True}
"""The metadata of a field that is not part of the row's JSON."""
NOTHING = "-"
_QUOTED = frozenset(':/_#?;@&=+$,"[]<>%\n\\')
_ROUNDED_FROM = 1_000


def worst_first(rows: Iterable[Any]) -> tuple[Any, ...]:
    """Sorts rows by severity, highest first. Equal ones keep their order."""
    return tuple(sorted(rows, key=lambda row: -row.status.severity))


def as_json(value: Any) -> Any:
    """Returns rows as plain JSON values. Times are ISO 8601 in UTC, severities are lower-case names."""
    if is_dataclass(value):
        return {f.name: as_json(getattr(value, f.name)) for f in fields(value) if not f.metadata}
    if isinstance(value, dict):
        return {key: as_json(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(member) for member in value]
    if isinstance(value, Severity):
        return value.name.lower()
    return value.isoformat() if isinstance(value, datetime) else value


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


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. Columns of numbers are aligned to the right.

    ``cells`` makes the cell of each class of rows. Rows of other classes have none: a dash, or an empty cell if ``blank``
    names their class.
    """

    title: str
    cells: Mapping[type, Callable[[Any], Cell | str]] = field(default_factory=dict)
    number: bool = True

    def cell(self, row: Any, blank: str) -> Cell:
        """Returns the row's cell, or ``blank`` if its class has none."""
        make = self.cells.get(type(row))
        made = blank if make is None else make(row)
        return text_cell(made) if isinstance(made, str) else made


_STATUS, _MEANING = Column("Status", number=False), Column("What it means", number=False)


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its title, its description, its text while it is empty, and the columns of names and figures.

    Between the first column and the others stands the status word, and at the end a sentence that explains it. The page has
    no column of sentences. It shows each below the row's status word, and in a table without status words below the name.
    """

    title: str
    about: str
    nothing: str
    shown: tuple[Column, ...]
    has_words: bool = True
    has_menu: bool = False
    """True: the rows have a menu."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns, as a terminal shows them."""
        first, *others = self.shown
        return first, _STATUS, *others, _MEANING

    @property
    def headings(self) -> list[Column]:
        """The columns that have a heading on the page."""
        return [column for column in self.columns[:-1] if column is not _STATUS or self.has_words]

    def row(self, row: Any, key: str = "", status: Verdict | None = None, admin_id: str = "", about: str = "") -> Row:
        """Returns a row of the table: the name, the status word, the figures, and the sentence of the status.

        The row has the status's command only if the sentence contains the command. ``admin_id`` is the key of the row's
        object in the admin's URLs. ``about`` is the argument of the status's actions; without it the row has no actions.
        """
        cells = [column.cell(row, getattr(row, "blank", NOTHING)) for column in self.shown]
        return _row(cells, key, getattr(row, "status", NO_STATUS) if status is None else status, admin_id, about)

    def head(self, row: Any, sentence: str, admin_id: str = "", about: str = "") -> Row:
        """Returns the first row of a group. The row's sentence is empty if the status is fine."""
        status: Verdict = row.status
        shown = "" if status.severity == Severity.FINE else sentence
        return self.row(row, "", replace(status, sentence=shown), admin_id, about)

    def remark(self, key: str, cell: Cell, status: Verdict = NO_STATUS, blank: str = "") -> Row:
        """Returns a row with a name and no figures."""
        return _row([cell, *(text_cell(blank) for _ in self.shown[1:])], key, status)


def _row(cells: Iterable[Cell], key: str, status: Verdict, admin_id: str = "", about: str = "") -> Row:
    name, *figures = cells
    row: Row = {
        "key": key,
        "severity": status.severity.name.lower(),
        "cells": [name, {"text": str(status.word)}, *figures, {"text": status.sentence}],
    }
    if status.command and status.command in status.sentence:
        row["command"] = status.command
    if admin_id:
        row["id"] = admin_id
    if about and status.actions:
        row["actions"], row["about"] = status.actions, about
    return row


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


def joined(*parts: str) -> str:
    """Returns the parts that are not empty, as one smaller text."""
    return " · ".join(part for part in parts if part)
