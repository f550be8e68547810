"""Writes ``docs/images/dataflow.svg``: the dataflow of room history, for ``docs/explanation/dataflow.md``.

Words in backquotes below are names of ``pipeline``, which ``tests/docs/test_dataflow_page.py`` checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

from script.architecture_picture import STYLE

PROJECT = Path(__file__).resolve().parent.parent
PICTURE = PROJECT / "docs" / "images" / "dataflow.svg"
WIDTH, HEIGHT = 920, 640
_LINE = 17
_MORE_STYLE = """
.frame { fill: var(--pure); stroke: var(--edge); }
.dashed { stroke-dasharray: 5 4; }
.name { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 12px; }
"""


class Box(NamedTuple):
    """A rectangle with lines of text. ``kind`` is its class in the style."""

    x: int
    y: int
    width: int
    lines: tuple[str, ...]
    kind: str = "box"

    @property
    def height(self) -> int:
        """The height that the lines need."""
        return _LINE * len(self.lines) + 16


class Arrow(NamedTuple):
    """An arrow through points, and lines of text at (x, y)."""

    points: tuple[tuple[int, int], ...]
    x: int = 0
    y: int = 0
    lines: tuple[str, ...] = ()


BOXES = (
    Box(30, 20, 330, ("**sources**", "files, Parquet, Synapse databases"), "room"),
    Box(30, 130, 160, ("`events`",), "frame"),
    Box(200, 130, 160, ("`broken_lines`",), "frame"),
    Box(30, 258, 330, ("**shuffle by pack**", "the events of a room come together"), "room dashed"),
    Box(400, 258, 150, ("**marks**", "what is stored"), "box"),
    Box(30, 386, 330, ("**bundles**", "some thousand rows of one frame each"), "box"),
    Box(400, 386, 200, ("13 frames of rooms,", "`set_aside`"), "frame"),
    Box(670, 386, 190, ("13 frames of rooms,", "the same columns"), "frame"),
    Box(30, 540, 860, ("**PostgreSQL**", "the tables of the site, and the ledger of jobs"), "room"),
)
ARROWS = (
    Arrow(((110, 72), (110, 126)), 124, 92, ("`read_events`", "tasks over parts of files")),
    Arrow(((280, 72), (280, 126))),
    Arrow(
        ((110, 165), (110, 254)),
        124,
        188,
        (
            "`work_out_rooms`",
            "largest rooms first, each a pack of its own;",
            "parcels: the rows of a part for one pack",
        ),
    ),
    Arrow(((400, 283), (364, 283))),
    Arrow(((110, 310), (110, 382)), 124, 334, ("a task for each pack: events that count,", "rules of rooms")),
    Arrow(((360, 411), (396, 411))),
    Arrow(
        ((110, 438), (110, 536)),
        124,
        470,
        ("`load`", "a transaction for each pack: COPY,", "IDs from the job's process"),
    ),
    Arrow(((878, 540), (878, 283), (554, 283)), 660, 274, ("`known_keys`",)),
    Arrow(((765, 540), (765, 442)), 640, 484, ("`stored_rooms`", "one snapshot")),
    Arrow(((600, 411), (666, 411)), 594, 372, ("`differences`",)),
)


def picture() -> str:
    """Returns the drawing as SVG."""
    described = "; ".join(_plain(" ".join(shape.lines)) for shape in (*BOXES, *ARROWS) if shape.lines)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
            ' role="img" aria-labelledby="t d">',
            '<title id="t">The dataflow of room history</title>',
            f'<desc id="d">{escape(described)}</desc>',
            f"<style>{STYLE}{_MORE_STYLE}</style>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0 L8 4 L0 8 z" style="fill: var(--arrow)"/></marker></defs>',
            f'<rect width="{WIDTH}" height="{HEIGHT}" style="fill: var(--back)"/>',
            *(part for arrow in ARROWS for part in _arrow(arrow)),
            *(part for box in BOXES for part in _box(box)),
            *_legend(),
            "</svg>",
            "",
        ]
    )


def names() -> set[str]:
    """Returns the names of ``pipeline`` that are in the picture."""
    return {name for shape in (*BOXES, *ARROWS) for line in shape.lines for name in re.findall("`(.+?)`", line)}


def _plain(text: str) -> str:
    return text.replace("`", "").replace("**", "")


def _box(box: Box) -> Iterator[str]:
    yield f'<rect class="{box.kind}" x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="7"/>'
    for number, line in enumerate(box.lines):
        yield _text(line, box.x + box.width // 2, box.y + 20 + _LINE * number, ' text-anchor="middle"')


def _arrow(arrow: Arrow) -> Iterator[str]:
    yield f'<path class="arrow" d="M{" L".join(f"{x} {y}" for x, y in arrow.points)}"/>'
    for number, line in enumerate(arrow.lines):
        yield _text(line, arrow.x, arrow.y + _LINE * number, "" if "`" in line else ' class="faint"')


def _text(line: str, x: int, y: int, more: str) -> str:
    text = re.sub("`(.+?)`", r'<tspan class="name">\1</tspan>', escape(line))
    text = re.sub(r"\*\*(.+?)\*\*", r'<tspan font-weight="600">\1</tspan>', text)
    return f'<text x="{x}" y="{y}"{more}>{text}</text>'


def _legend() -> Iterator[str]:
    y = HEIGHT - 26
    yield f'<rect class="frame" x="30" y="{y}" width="22" height="14" rx="3"/>'
    yield f'<text class="faint" x="60" y="{y + 12}">a DataFrame with documented columns</text>'
    yield f'<text class="faint" x="300" y="{y + 12}">Names are functions and frames of the package pipeline.</text>'


def files() -> dict[Path, str]:
    """Returns the picture."""
    return {PICTURE: picture()}
