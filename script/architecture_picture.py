"""Writes ``docs/images/architecture.svg`` and the tables of packages in ``docs/explanation/architecture.md``.

The picture shows the layers of ``pyproject.toml``, which import-linter enforces. A row of the tables is the first line
of a package's docstring.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from script.generated_pages import with_tables

PROJECT = Path(__file__).resolve().parent.parent
PICTURE = PROJECT / "docs" / "images" / "architecture.svg"
PAGE = PROJECT / "docs" / "explanation" / "architecture.md"

_MARGIN, _GAP, _TOP = 16, 26, 62
_PAD, _LINE, _BAND_GAP = 10, 24, 18
_BOX_GAP, _LETTER = 8, 7.8
_WIDTHS = {"replsite": 186, "pipeline": 250, "events": 232, "state": 150, "streams": 250}
_SAYS = {
    "replsite": "the site",
    "pipeline": "Spark",
    "events": "Matrix events",
    "state": "state of rooms",
    "streams": "the log engine",
}
STYLE = """
:root { --back: #ffffff; --top: #f4f6fa; --edge: #c3cad8; --box: #ffffff; --pure: #dcefe3;
  --ink: #1c2433; --faint: #5c6880; --arrow: #3f51b5; }
@media (prefers-color-scheme: dark) {
  :root { --back: #14171f; --top: #1d222d; --edge: #465067; --box: #2a3140; --pure: #1f4432;
    --ink: #edf0f6; --faint: #a5afc2; --arrow: #9fa8ff; }
}
text { font-family: ui-sans-serif, system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--ink); font-size: 13px; }
.title { font-size: 17px; font-weight: 600; }
.faint { fill: var(--faint); font-size: 11.5px; }
.top { fill: var(--top); stroke: var(--edge); }
.box { fill: var(--box); stroke: var(--edge); }
.pure { fill: var(--pure); }
.arrow { stroke: var(--arrow); stroke-width: 1.6; fill: none; marker-end: url(#head); }
"""


# --- what there is ----------------------------------------------------------------------------------------------------


def contracts() -> list[dict[str, Any]]:
    """Returns the contracts of import-linter."""
    found = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return list(found)


def top_packages() -> list[str]:
    """Returns the names of our apps, the one that imports all others first."""
    return next(list(one["layers"]) for one in contracts() if one["type"] == "layers" and "containers" not in one)


def layers(container: str) -> list[list[str]]:
    """Returns the layers of an app or package, the highest first. Each layer is a list of names."""
    found = [one["layers"] for one in contracts() if one.get("containers") == [container]]
    return [line.split(" | ") for line in found[0]] if found else []


def pure() -> set[str]:
    """Returns the packages of which every module must be pure."""
    found = next(
        one["source_modules"]
        for one in contracts()
        if one["type"] == "forbidden" and "*" in "".join(one["source_modules"])
    )
    return {name.removesuffix(".*") for name in found if name.endswith(".*")}


def is_package(dotted: str) -> bool:
    """Returns whether the dotted name is a package, not a module."""
    return (PROJECT / dotted.replace(".", "/") / "__init__.py").exists()


def packages(top: str) -> list[str]:
    """Returns the packages of an app from the highest layer to the lowest, each followed by the packages in it."""
    found: list[str] = []
    for name in (f"{top}.{name}" for layer in layers(top) for name in layer):
        if is_package(name):
            found += [name, *_inner(name)]
    return found


def _inner(package: str) -> list[str]:
    ordered = [f"{package}.{name}" for layer in layers(package) for name in layer]
    there = [
        f"{package}.{path.parent.name}" for path in sorted((PROJECT / package.replace(".", "/")).glob("*/__init__.py"))
    ]
    return sorted(there, key=lambda name: (ordered.index(name) if name in ordered else len(ordered), name))


def words_of(package: str) -> str:
    """Returns the first line of a package's docstring, as Markdown."""
    tree = ast.parse((PROJECT / package.replace(".", "/") / "__init__.py").read_text())
    return (ast.get_docstring(tree) or "").partition("\n")[0].replace("``", "`")


# --- the picture ------------------------------------------------------------------------------------------------------


def picture() -> str:
    """Returns the drawing as SVG: a column for each app, with its layers from top to bottom."""
    columns, x, low = [], _MARGIN, 0
    ends: list[tuple[int, int]] = []
    for top in top_packages():
        drawn, height = _top_package(top, x)
        columns.append(drawn)
        ends.append((x, x + _WIDTHS[top]))
        x, low = x + _WIDTHS[top] + _GAP, max(low, height)
    width, height = x - _GAP + _MARGIN, low + 44
    arrows = [_arrow(left[1] + 3, 38, right[0] - 4, 38) for left, right in pairwise(ends)]
    legend = (
        f'<rect class="box pure" x="{_MARGIN}" y="{height - 28}" width="22" height="14" rx="3"/>'
        f'<text class="faint" x="{_MARGIN + 30}" y="{height - 16}">pure: no database, socket or clock</text>'
        f'<text class="faint" x="{_MARGIN + 260}" y="{height - 16}">An arrow reads &#8220;imports&#8221;: a column imports'
        " those to its right, a package those below it. Small text: single modules, or packages inside.</text>"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
            ' aria-labelledby="t d">',
            '<title id="t">Packages of replsite</title>',
            f'<desc id="d">{escape("; ".join(f"{top}: {_described(top)}" for top in top_packages()))}</desc>',
            f"<style>{STYLE}</style>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0 L8 4 L0 8 z" style="fill: var(--arrow)"/></marker></defs>',
            f'<rect width="{width}" height="{height}" style="fill: var(--back)"/>',
            *columns,
            *arrows,
            legend,
            "</svg>",
            "",
        ]
    )


def _described(top: str) -> str:
    return ", ".join(name for layer in layers(top) for name in layer if is_package(f"{top}.{name}"))


def _top_package(top: str, x: int) -> tuple[str, int]:
    """Returns the column of an app as SVG, and the y coordinate of its end."""
    parts: list[str] = []
    width = _WIDTHS[top]
    y, middle, before = _TOP + 8, x + width // 2, None
    for layer in layers(top):
        if before is not None:
            parts.append(_arrow(middle, before + 2, middle, y - 2))
        names = [name for name in layer if is_package(f"{top}.{name}")]
        modules = [name for name in layer if name not in names]
        for row in _rows(names, width - 2 * _PAD):
            parts += _boxes(top, row, x, y, width)
            y += _LINE + 4
        small = [f"{name}: {', '.join(inner)}" for name in names if (inner := _inside(f"{top}.{name}"))]
        for text in [*(part for one in small for part in _wrapped(one, width)), *_wrapped(", ".join(modules), width)]:
            parts.append(f'<text class="faint" text-anchor="middle" x="{middle}" y="{y + 11}">{escape(text)}</text>')
            y += 16
        before = y
        y += _BAND_GAP
    head = (
        f'<rect class="top" x="{x}" y="8" width="{width}" height="{y - 8 - _BAND_GAP + 10}" rx="8"/>'
        f'<text class="title" text-anchor="middle" x="{middle}" y="34">{top}</text>'
        f'<text class="faint" text-anchor="middle" x="{middle}" y="52">{_SAYS[top]}</text>'
    )
    return "\n".join([head, *parts]), y


def _inside(package: str) -> list[str]:
    return [name.rpartition(".")[2] for name in _inner(package) if not package.endswith("management")]


def _rows(names: list[str], width: float) -> Iterator[list[str]]:
    """Yields the names in rows that fit the width."""
    row: list[str] = []
    for name in names:
        if row and sum(_wide(one) + _BOX_GAP for one in [*row, name]) - _BOX_GAP > width:
            yield row
            row = []
        row.append(name)
    if row:
        yield row


def _wide(name: str) -> float:
    return len(name) * _LETTER + 16


def _boxes(top: str, names: list[str], x: float, y: float, width: float) -> Iterator[str]:
    at = x + (width - sum(map(_wide, names)) - _BOX_GAP * (len(names) - 1)) / 2
    for name in names:
        kind = "box pure" if f"{top}.{name}" in pure() else "box"
        yield (
            f'<rect class="{kind}" x="{at:.1f}" y="{y}" width="{_wide(name):.1f}" height="{_LINE}" rx="5"/>'
            f'<text text-anchor="middle" x="{at + _wide(name) / 2:.1f}" y="{y + 16.5}">{name}</text>'
        )
        at += _wide(name) + _BOX_GAP


def _wrapped(text: str, width: float) -> Iterator[str]:
    """Yields the words in lines that fit the width, none for an empty text."""
    line = ""
    for word in text.split():
        if line and (len(line) + 1 + len(word)) * 6.2 > width - 2 * _PAD:
            yield line
            line = ""
        line = f"{line} {word}".strip()
    if line:
        yield line


def _arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<path class="arrow" d="M{x} {y} L{to_x} {to_y}"/>'


# --- the page ---------------------------------------------------------------------------------------------------------


def _table(top: str) -> str:
    lines = [f"| `{name.replace('.', '/')}` | {words_of(name)} |" for name in packages(top) if "management" not in name]
    return "\n".join(["| package | holds |", "|---|---|", *lines])


def files() -> dict[Path, str]:
    """Returns the picture, and the page with its tables."""
    tables = {top: _table(top) for top in top_packages()}
    return {PICTURE: picture(), PAGE: with_tables(PAGE.read_text(), tables, "packages of")}
