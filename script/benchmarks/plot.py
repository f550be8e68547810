"""Draws how figures grow, as SVG that fits light and dark pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, log10

__all__ = ["picture"]

Points = Sequence[tuple[float, float]]
"""(size, cost), ascending by size."""

_WIDTH, _PANEL, _GAP, _MARGIN, _HEAD, _LEGEND = 760, 372, 16, 0, 62, 17
_HEIGHT, _LEFT, _BOTTOM = 170, 40, 26
_COLORS = 8
_LEAST_TOP = 1.5
_STYLE = """
:root { --back: #ffffff; --grid: #dfe4ec; --ink: #1c2433; --faint: #5c6880; --c0: #3f51b5; --c1: #00796b; --c2: #c2410c;
  --c3: #7b1fa2; --c4: #1d7fc4; --c5: #8a6d00; --c6: #b3245b; --c7: #4b5563; }
@media (prefers-color-scheme: dark) {
  :root { --back: #14171f; --grid: #333b4c; --ink: #edf0f6; --faint: #a5afc2; --c0: #9fa8ff; --c1: #5fd4c4; --c2: #ff9d66;
    --c3: #d7a0f0; --c4: #7cc4ff; --c5: #e6c95c; --c6: #ff8db5; --c7: #c3cad8; }
}
text { font-family: ui-sans-serif, system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--ink); font-size: 12px; }
.title { font-size: 15px; font-weight: 600; }
.panel { font-weight: 600; }
.faint { fill: var(--faint); font-size: 11px; }
.grid { stroke: var(--grid); }
.even { stroke: var(--faint); stroke-dasharray: 4 4; }
.line { fill: none; stroke-width: 2; }
"""


def picture(title: str, said: str, panels: Mapping[str, Mapping[str, Points]]) -> str:
    """Returns the drawing: for each panel the cost of each figure, divided by its cost at the smallest size.

    A line at 1 does not grow. ``said`` is a line below the title.
    """
    drawn, x, y, row_height = [], 0, _HEAD, 0
    for name, figures in panels.items():
        part, height = _panel(name, figures, x, y)
        drawn += part
        row_height = max(row_height, height)
        x += _PANEL + _GAP
        if x + _PANEL > _WIDTH:
            x, y, row_height = 0, y + row_height + _GAP, 0
    height = y + row_height + (_GAP if row_height else 0)
    told = "; ".join(f"{name}: {_described(figures)}" for name, figures in panels.items())
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-12 0 {_WIDTH + 24} {height}" width="{_WIDTH + 24}" '
            f'height="{height}" role="img" aria-labelledby="t d">',
            f'<title id="t">{escape(title)}</title>',
            f'<desc id="d">{escape(told)}</desc>',
            f"<style>{_STYLE}</style>",
            f'<rect x="-12" width="{_WIDTH + 24}" height="{height}" style="fill: var(--back)"/>',
            f'<text class="title" x="0" y="24">{escape(title)}</text>',
            f'<text class="faint" x="0" y="44">{escape(said)}</text>',
            *drawn,
            "</svg>",
            "",
        ]
    )


def _described(figures: Mapping[str, Points]) -> str:
    return ", ".join(
        f"{name} {_growth(points)[-1][1]:.2f} times at {_size(points[-1][0])}" for name, points in figures.items()
    )


def _growth(points: Points) -> Points:
    return [(size, cost / points[0][1]) for size, cost in points]


def _panel(name: str, figures: Mapping[str, Points], x: int, y: int) -> tuple[list[str], int]:
    """Returns the lines of a panel at this place, and its height."""
    grown = {figure: _growth(points) for figure, points in figures.items()}
    sizes = sorted({size for points in grown.values() for size, _ in points})
    most = max((value for points in grown.values() for _, value in points), default=1.0)
    top = max(_LEAST_TOP, ceil(most * 2.1) / 2)
    left, right, upper, lower = x + _LEFT, x + _PANEL - 8, y + 26, y + 26 + _HEIGHT
    low, wide = log10(sizes[0]), max(log10(sizes[-1]) - log10(sizes[0]), 0.01)

    def place(size: float, value: float) -> tuple[float, float]:
        return left + (log10(size) - low) / wide * (right - left), lower - value / top * (lower - upper)

    lines = [f'<text class="panel" x="{x}" y="{y + 12}">{escape(name)}</text>']
    steps = [top * n / 4 for n in range(5)] if top > 3 else [n / 2 for n in range(int(top * 2) + 1)]
    for step in steps:
        _, at = place(sizes[0], step)
        lines.append(f'<path class="grid" d="M{left} {at:.1f} H{right}"/>')
        lines.append(f'<text class="faint" x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{step:g}</text>')
    _, even = place(sizes[0], 1)
    lines.append(f'<path class="even" d="M{left} {even:.1f} H{right}"/>')
    for number, size in enumerate(sizes):
        across, _ = place(size, 0)
        anchor = "start" if not number else "end" if number == len(sizes) - 1 else "middle"
        lines.append(
            f'<text class="faint" x="{across:.1f}" y="{lower + 16}" text-anchor="{anchor}">{_size(size)}</text>'
        )
    for number, (figure, points) in enumerate(grown.items()):
        color = f"var(--c{number % _COLORS})"
        path = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in points)
        lines.append(f'<polyline class="line" style="stroke: {color}" points="{path}"/>')
        lines += [
            '<circle r="3" style="fill: {}" cx="{:.1f}" cy="{:.1f}"/>'.format(color, *place(*point)) for point in points
        ]
        at = lower + _BOTTOM + _LEGEND * (number + 1) - 4
        lines.append(f'<rect style="fill: {color}" x="{left}" y="{at - 9}" width="14" height="4" rx="2"/>')
        size, value = points[-1]
        unit = f"{figure}: {figures[figure][-1][1]:,.4g}, {value:.2f} times" if len(points) > 1 else figure
        lines.append(f'<text class="faint" x="{left + 22}" y="{at - 3}">{escape(unit)}</text>')
    return lines, 26 + _HEIGHT + _BOTTOM + _LEGEND * len(figures)


def _size(size: float) -> str:
    """A size in words: 10⁵, 3·10⁵."""
    exponent = int(log10(size) + 1e-9)
    digits = "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(exponent))
    factor = size / 10**exponent
    return f"10{digits}" if abs(factor - 1) < 1e-6 else f"{factor:g}·10{digits}"
