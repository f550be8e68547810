"""Low-water marks: the record of what was trimmed of a stream, and the check that a trim took no facts from a reader (pure).

The mark holds for each writer the ID of its highest fact that was trimmed. A reader has lost facts of a writer exactly
if the reader's position for that writer lies below this ID. An old position for an idle writer therefore raises no
false alarm. The functions accept a database cursor of any connection. Numbers are positive, also for backward streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from streams.core.recorded import RECORDED_TRIMMED, is_recorded, recorded_names
from streams.core.tokens import VectorToken
from streams.errors import ResyncNeeded

_MARKS = "SELECT stream, position, writers::text FROM streams_lowwatermark"
_MARK = "SELECT position, writers::text FROM streams_lowwatermark WHERE stream = %(stream)s"


@dataclass(frozen=True, slots=True)
class TrimMark:
    """The low-water mark of a stream.

    Facts up to ``position`` may have been trimmed. ``writers`` maps each writer whose facts were trimmed to its highest
    trimmed ID.
    """

    position: int = 0
    writers: Mapping[str, int] = field(default_factory=dict)


def trim_mark(cursor: Any, stream: str) -> TrimMark:
    """Returns the low-water mark of a stream, also of a recorded stream (``NAME/stream``).

    The position of the mark is 0 if nothing was ever trimmed.
    """
    if is_recorded(stream):
        cursor.execute(RECORDED_TRIMMED, recorded_names(stream))
        writers = dict(cursor.fetchall())
        return TrimMark(max(writers.values(), default=0), writers)
    cursor.execute(_MARK, {"stream": stream})
    row = cursor.fetchone()
    return TrimMark() if row is None else TrimMark(row[0], orjson.loads(row[1]))


def trim_marks(cursor: Any) -> dict[str, TrimMark]:
    """Returns the low-water marks of all streams of this site of which something was trimmed."""
    cursor.execute(_MARKS)
    return {stream: TrimMark(position, orjson.loads(writers)) for stream, position, writers in cursor.fetchall()}


def lost_facts(mark: TrimMark, after: VectorToken, writer: str | None = None) -> dict[str, int]:
    """Returns the writers whose facts above ``after`` were trimmed, as ``{writer: highest trimmed ID}``.

    If ``writer`` is given, only that writer is examined.
    """
    return {name: at for name, at in mark.writers.items() if writer in (None, name) and at > after.position_of(name)}


def check_not_trimmed(
    cursor: Any, stream: str, after: VectorToken, writer: str | None = None, reader: str = ""
) -> None:
    """Raises ``ResyncNeeded`` if trimmed facts lie above ``after``.

    If ``writer`` is given, only its facts are examined. ``reader`` is a name for the error message. The caller must
    have read the rows before it calls this function.
    """
    # The mark is read after the rows. A trim deletes facts and moves the mark in one transaction. If it commits before the rows
    # are read, the mark shows it. In the other order, a trim between the two reads would go unnoticed.
    mark = trim_mark(cursor, stream)
    lost = lost_facts(mark, after, writer) if mark.position else {}
    if not lost:
        return
    name, trimmed = max(lost.items(), key=lambda item: item[1])
    who = f"Reader {reader!r}" if reader else "A reader"
    remedy = f"manage.py resync reader {reader}" if reader else "begin at a newer position"
    raise ResyncNeeded(
        f"{who} of stream {stream!r} is at {after.position_of(name)} of writer {name!r}, but its facts up to {trimmed} were "
        f"trimmed (low-water mark {mark.position}). Take a fresh copy of what it keeps, then: {remedy}."
    )
