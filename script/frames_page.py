"""Writes ``docs/reference/frames.md`` from the schemas of ``pipeline.frames.schemas``."""

from __future__ import annotations

import textwrap
from pathlib import Path

from pipeline.frames.damage import DAMAGE
from pipeline.frames.differences import DIFFERENCES
from pipeline.frames.schemas import FRAMES

PROJECT = Path(__file__).resolve().parent.parent
PAGE = PROJECT / "docs" / "reference" / "frames.md"
HEAD = """# Frames

The DataFrames of `pipeline.frames`, with their columns. Written by `script/generated_pages.py` from the code.
[The dataflow](../explanation/dataflow.md) says how they come about.

Every frame of rooms has `room_id`. A column that is called as in the table holds what the table holds. A column whose
name ends with `number` counts within the room, from 0: events in ascending order of stream ordering, state groups in
the order in which they build on each other. So computed rows of the same events are always the same, whatever IDs they
get when they are loaded (`load`). The order of rows means nothing. Text is compared by code point.
"""


def page() -> str:
    """Returns the text of the page."""
    parts = [HEAD]
    for title, frame in {**FRAMES, "damage": DAMAGE, "differences": DIFFERENCES}.items():
        table = f" Table `{frame.table}`." if frame.table else ""
        key = ", ".join(f"`{name}`" for name in frame.key)
        about = textwrap.fill(f"{frame.about}{table}", 118, break_on_hyphens=False)
        parts += [f"## {title}\n", f"{about}\n", f"Key: {key}.\n", "| column | type | |", "|---|---|---|"]
        for name, column in frame.columns.items():
            kind = column.type + (", or null" if column.nullable else "")
            parts.append(f"| `{name}` | {kind} | {column.about} |")
        parts.append("")
    return "\n".join(parts)


def files() -> dict[Path, str]:
    """Returns the page."""
    return {PAGE: page()}
