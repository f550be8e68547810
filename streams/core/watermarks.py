"""Low-water marks: what was trimmed of a stream, and whether a reader has lost facts by it (pure).

Facts are deleted and the mark is moved in one transaction, so whoever reads rows and *then* the mark cannot miss a fact
unnoticed. The mark names for each writer its highest fact that is gone: a reader has lost facts of a writer exactly if its
cursor for it lies below that, so an idle writer's old cursor raises no false alarm.
Called with a cursor of any connection; numbers are positive, also for backward streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from streams.core.recorded import RECORDED_TRIMMED, is_recorded, recorded_names
from streams.core.tokens import VectorToken
from streams.errors import ResyncNeeded

__all__ = ["TrimMark", "check_not_trimmed", "lost_facts", "trim_mark"]

_MARK = "SELECT position, writers::text FROM streams_lowwatermark WHERE stream = %(stream)s"


@dataclass(frozen=True, slots=True)
class TrimMark:
    """Facts up to ``position`` may be gone; ``writers``: for each its highest fact that is."""

    position: int = 0
    writers: Mapping[str, int] = field(default_factory=dict)


def trim_mark(cursor: Any, stream: str) -> TrimMark:
    """The stream's mark (also that of a recorded stream ``NAME/stream``); position 0 when nothing was ever trimmed."""
    if is_recorded(stream):
        cursor.execute(RECORDED_TRIMMED, recorded_names(stream))
        writers = dict(cursor.fetchall())
        return TrimMark(max(writers.values(), default=0), writers)
    cursor.execute(_MARK, {"stream": stream})
    row = cursor.fetchone()
    return TrimMark() if row is None else TrimMark(row[0], orjson.loads(row[1]))


def lost_facts(mark: TrimMark, after: VectorToken, writer: str | None = None) -> dict[str, int]:
    """Writers (or that one) of which facts above ``after`` are gone, with the highest that is."""
    return {
        name: gone for name, gone in mark.writers.items() if writer in (None, name) and gone > after.position_of(name)
    }


def check_not_trimmed(
    cursor: Any, stream: str, after: VectorToken, writer: str | None = None, reader: str = ""
) -> None:
    """Raise ``ResyncNeeded`` when facts after ``after`` (of that writer, or of any) are gone. Call after reading the rows."""
    mark = trim_mark(cursor, stream)
    lost = lost_facts(mark, after, writer) if mark.position else {}
    if not lost:
        return
    name, gone = max(lost.items(), key=lambda item: item[1])
    who = f"Reader {reader!r}" if reader else "A reader"
    remedy = f"manage.py resync reader {reader}" if reader else "begin at a newer position"
    raise ResyncNeeded(
        f"{who} of stream {stream!r} is at {after.position_of(name)} of writer {name!r}, but its facts up to {gone} were "
        f"trimmed (low-water mark {mark.position}). Take a fresh copy of what it keeps, then: {remedy}."
    )
