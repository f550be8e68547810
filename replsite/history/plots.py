"""Defines plots of history (pure). A plot is one line over time. Each plot is given as JSON for the browser, and in words.

The browser draws the JSON (``dashboard/plots.js``, with uPlot). Below each plot is a description in words, for screen
readers and for browsers without scripts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from streams.runtime.amounts import byte_size, count

__all__ = ["UNITS", "Mark", "Plot", "Point", "described", "plot_json", "rates", "with_plots"]


def _whole(value: float) -> str:
    return count(round(value)) if value == round(value) else f"{value:.1f}"


def _size(value: float) -> str:
    return byte_size(round(value))


def _rate(value: float) -> str:
    return f"{value:,.0f}/s" if value >= 10 or not value else f"{value:.1f}/s"


def _age(seconds: float) -> str:
    """Formats a duration with one unit, such as ``1.5 h``."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


#: Formats of values by the name of their unit. ``dashboard/plots.js`` has the same formats for axes and tooltips.
UNITS: Mapping[str, Callable[[float], str]] = {"whole": _whole, "rate": _rate, "size": _size, "age": _age}


@dataclass(frozen=True, slots=True)
class Point:
    """A value at a moment."""

    at: datetime
    value: float


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark at a moment of the plot. ``word`` selects its colour: a severity, or ``site`` for changes of the whole site.

    If ``until`` is given, the time from this moment to ``until`` is shaded.
    """

    at: datetime
    word: str
    text: str
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot to draw. Points are in order of time. The line breaks where two points are more than ``gap`` apart.

    ``title`` is shown above the plot, such as ``Lag in facts``. ``about`` names the reader or table whose values are
    drawn. It is empty if the page itself shows whose values they are.
    """

    title: str
    points: Sequence[Point]
    begin: datetime
    end: datetime
    gap: timedelta
    unit: str = "whole"
    from_lowest: bool = False
    """If true, the axis begins at the lowest value. Otherwise it begins at 0."""
    marks: Sequence[Mark] = ()
    about: str = ""

    @property
    def name(self) -> str:
        """The title and, if ``about`` is not empty, the name in ``about``, such as ``Lag in facts of reports``."""
        return f"{self.title} of {self.about}" if self.about else self.title


def rates(points: Sequence[Point], gap: timedelta) -> list[Point]:
    """Converts points with positions to points with the growth per second. If a position went back, the growth is 0.

    There is no rate between two points that are more than ``gap`` apart.
    """
    found = []
    for before, now in pairwise(points):
        seconds = (now.at - before.at).total_seconds()
        if 0 < seconds <= gap.total_seconds():
            found.append(Point(now.at, max(now.value - before.value, 0.0) / seconds))
    return found


def described(plot: Plot) -> str:
    """Returns the plot in words: its last and its highest value."""
    if not plot.points:
        return "Nothing was recorded in this time."
    label, last, most = UNITS[plot.unit], plot.points[-1], max(plot.points, key=lambda point: point.value)
    return f"Last {label(last.value)}; at most {label(most.value)}, at {most.at:%Y-%m-%d %H:%M} UTC."


def with_plots(groups: Iterable[tuple[str, Iterable[Plot]]]) -> dict[str, Any]:
    """Returns the variables ``sections`` and ``plots`` of a page. Each group is (its title, which may be empty, its plots).

    ``plots`` is one list of the plots of all sections, as JSON values. A section refers to its own plots by their indexes in
    this list.
    """
    plots: list[dict[str, Any]] = []
    sections = []
    for title, group in groups:
        shown = []
        for plot in group:
            shown.append({"number": len(plots), "title": plot.title, "name": plot.name, "said": described(plot)})
            plots.append(plot_json(plot))
        sections.append({"title": title, "plots": shown})
    return {"sections": sections, "plots": plots}


def plot_json(plot: Plot) -> dict[str, Any]:
    """Returns the plot as JSON values. Times are seconds since 1970. A null breaks the line."""
    line = list(_line(plot))
    return {
        "title": plot.name,
        "unit": plot.unit,
        "from_lowest": plot.from_lowest,
        "begin": plot.begin.timestamp(),
        "end": plot.end.timestamp(),
        "at": [at for at, _ in line],
        "values": [value for _, value in line],
        "marks": [
            {
                "at": mark.at.timestamp(),
                "until": None if mark.until is None else mark.until.timestamp(),
                "word": mark.word,
                "text": mark.text,
            }
            for mark in plot.marks
            if (mark.until or mark.at) >= plot.begin and mark.at <= plot.end
        ],
    }


def _line(plot: Plot) -> Iterator[tuple[float, float | None]]:
    """Yields (time, value) for each point within the plot, and (time, None) where the line breaks."""
    before: datetime | None = None
    for point in plot.points:
        if not plot.begin <= point.at <= plot.end:
            continue
        if before is not None and point.at - before > plot.gap:
            yield (before + (point.at - before) / 2).timestamp(), None
        yield point.at.timestamp(), point.value
        before = point.at
