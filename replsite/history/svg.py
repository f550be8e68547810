"""Draws plots of history as SVG (pure), each with one line over time.

The plots can be read without colours, with a screen reader, and in dark mode. Colours come from the page, through
``currentColor`` and CSS variables. The SVG contains no style.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape
from itertools import pairwise
from math import floor, log10

__all__ = ["Mark", "Plot", "Point", "nice_ceiling", "plot_svg", "rates"]

WIDTH, HEIGHT = 420, 130
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 6, 10, 22
_LEAST = 0.001
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Point:
    """A value at a moment."""

    at: datetime
    value: float


@dataclass(frozen=True, slots=True)
class Mark:
    """An event in time, drawn as a vertical line with a tooltip. ``word`` is part of its CSS class."""

    at: datetime
    word: str
    text: str


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot to draw. Points are in order of time; the line breaks where two points are more than ``gap`` apart."""

    title: str
    points: Sequence[Point]
    begin: datetime
    end: datetime
    gap: timedelta
    label: Callable[[float], str]
    """Formats a value for the axis and the description."""
    low: float = 0.0
    """The lowest value of the axis."""
    marks: Sequence[Mark] = ()
    """Marked moments."""


def rates(points: Sequence[Point], gap: timedelta) -> list[Point]:
    """Converts positions to growth per second. A position that went back counts as no growth.

    Two points that are more than ``gap`` apart give no rate.
    """
    found = []
    for before, now in pairwise(points):
        seconds = (now.at - before.at).total_seconds()
        if 0 < seconds <= gap.total_seconds():
            found.append(Point(now.at, max(now.value - before.value, 0.0) / seconds))
    return found


def nice_ceiling(value: float) -> float:
    """Returns a round number that is at least ``value``. It is 1 for zero or less, and never below 0.001."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(max(value, _LEAST)))
    return next(step * power for step in _STEPS if step * power >= value * (1 - 1e-9))


def plot_svg(plot: Plot) -> str:
    """Returns the SVG, with a title and a description in words."""
    top = nice_ceiling(max((point.value - plot.low for point in plot.points), default=0.0))
    parts = [
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" preserveAspectRatio="none">',
        f"<title>{escape(plot.title)}</title><desc>{escape(_described(plot))}</desc>",
        *_axes(plot, top),
        *_marks(plot),
    ]
    for line in _lines(plot):
        path = " ".join(f"{_x(plot, point.at):.1f},{_y(point.value - plot.low, top):.1f}" for point in line)
        # A line of a single point would be invisible, so it becomes one pixel long.
        if len(line) == 1:
            path += f" {_x(plot, line[0].at) + 1:.1f},{_y(line[0].value - plot.low, top):.1f}"
        parts.append(f'<polyline class="plot-line" points="{path}"/>')
    return "".join([*parts, "</svg>"])


def _described(plot: Plot) -> str:
    if not plot.points:
        return "Nothing was recorded in this time."
    last, most = plot.points[-1], max(plot.points, key=lambda point: point.value)
    return f"Now {plot.label(last.value)}; at most {plot.label(most.value)}, at {most.at:%Y-%m-%d %H:%M} UTC."


def _lines(plot: Plot) -> list[list[Point]]:
    lines: list[list[Point]] = []
    for point in plot.points:
        if lines and point.at - lines[-1][-1].at <= plot.gap:
            lines[-1].append(point)
        else:
            lines.append([point])
    return lines


def _axes(plot: Plot, top: float) -> list[str]:
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = _y(top * share, top)
        parts.append(f'<line class="plot-grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(_LEFT - 6, y + 4, "end", plot.label(plot.low + top * share)))
    form = "%H:%M" if plot.end - plot.begin <= timedelta(days=1) else "%d %b"
    form = "%b %Y" if plot.end - plot.begin > timedelta(days=300) else form
    anchors = ("start", "middle", "end")
    for share, anchor in zip((0.0, 0.5, 1.0), anchors, strict=True):
        at = plot.begin + (plot.end - plot.begin) * share
        parts.append(_text(_x(plot, at), HEIGHT - 6, anchor, at.strftime(form)))
    return parts


def _marks(plot: Plot) -> list[str]:
    parts = []
    for mark in plot.marks:
        if plot.begin <= mark.at <= plot.end:
            x = f"{_x(plot, mark.at):.1f}"
            line = f'<line x1="{x}" x2="{x}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>'
            parts.append(f'<g class="plot-mark plot-{escape(mark.word)}"><title>{escape(mark.text)}</title>{line}</g>')
    return parts


def _text(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text class="plot-text" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _x(plot: Plot, at: datetime) -> float:
    share = (at - plot.begin) / (plot.end - plot.begin)
    return _LEFT + min(max(share, 0.0), 1.0) * (WIDTH - _LEFT - _RIGHT)


def _y(value: float, top: float) -> float:
    return HEIGHT - _BOTTOM - min(value / top, 1.0) * (HEIGHT - _TOP - _BOTTOM)
