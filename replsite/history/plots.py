"""Makes plots of history (pure). A plot is one line over time: JSON for the browser, and its words.

The browser draws the JSON (``dashboard/plots.js``, with uPlot). Below each plot are its words, for screen readers and for
browsers without scripts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from replsite.live_rows.cells import per_second
from streams.runtime.amounts import byte_size, count, duration

Points = Sequence[tuple[datetime, float]]
"""Values in order of time, each with its moment."""


def _whole(value: float) -> str:
    return count(round(value)) if value == round(value) else f"{value:.1f}"


#: Formats of values by the name of their unit, which ``dashboard/plots.js`` knows, too.
_UNITS: Mapping[str, Callable[[float], str]] = {
    "whole": _whole,
    "position": _whole,
    "rate": per_second,
    "size": lambda value: byte_size(round(value)),
    "age": duration,
}


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
class Frame:
    """The time that the plots of a page show. A line breaks where two points are more than ``gap`` apart."""

    begin: datetime
    end: datetime
    gap: timedelta


def rates(points: Points, gap: timedelta) -> list[tuple[datetime, float]]:
    """Converts positions to their growth per second. If a position went back, the growth is 0.

    There is no rate between two points that are more than ``gap`` apart.
    """
    return [
        (at, max(value - was, 0.0) / (at - then).total_seconds())
        for (then, was), (at, value) in pairwise(points)
        if timedelta() < at - then <= gap
    ]


def plot(
    title: str,
    points: Points,
    frame: Frame,
    unit: str = "whole",
    *,
    marks: Iterable[Mark] = (),
    about: str = "",
) -> dict[str, Any]:
    """Returns a plot as JSON values. Times are seconds since 1970. A null breaks the line.

    ``title`` is shown above the plot, such as ``Lag in facts``. ``about`` names the reader or table whose values are drawn.
    It is empty if the page itself shows whose values they are. The axis of positions begins at the lowest value, others at 0.
    """
    text = "Nothing was recorded in this time."
    if points:
        label, (most_at, most) = _UNITS[unit], max(points, key=lambda point: point[1])
        text = f"Last {label(points[-1][1])}; at most {label(most)}, at {most_at:%Y-%m-%d %H:%M} UTC."
    line = list(_line(points, frame))
    return {
        "heading": title,
        "title": f"{title} of {about}" if about else title,
        "said": text,
        "unit": unit,
        "begin": frame.begin.timestamp(),
        "end": frame.end.timestamp(),
        "at": [at for at, _ in line],
        "values": [value for _, value in line],
        "marks": [
            {
                "at": mark.at.timestamp(),
                "until": None if mark.until is None else mark.until.timestamp(),
                "word": mark.word,
                "text": mark.text,
            }
            for mark in marks
            if (mark.until or mark.at) >= frame.begin and mark.at <= frame.end
        ],
    }


def _line(points: Points, frame: Frame) -> Iterator[tuple[float, float | None]]:
    before: datetime | None = None
    for at, value in points:
        if not frame.begin <= at <= frame.end:
            continue
        if before is not None and at - before > frame.gap:
            yield (before + (at - before) / 2).timestamp(), None
        yield at.timestamp(), value
        before = at


def with_plots(groups: Iterable[tuple[str, Iterable[dict[str, Any]]]]) -> dict[str, Any]:
    """Returns the variables ``sections`` and ``plots`` of a page. Each group is (its title, which may be empty, its plots).

    ``plots`` is one list of the plots of all sections. A section refers to its own plots by their indexes in this list.
    """
    plots: list[dict[str, Any]] = []
    sections = []
    for title, group in groups:
        first = len(plots)
        plots += group
        sections.append({"title": title, "plots": list(enumerate(plots[first:], first))})
    return {"sections": sections, "plots": plots}
