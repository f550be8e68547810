"""Merges the two records of a named reader: the row that its process writes, and its stored cursors (pure).

A reader is shown as long as it has a stored cursor, even if no process runs the reader. Its positions are those of the row
while a process runs it, and those of the cursors otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from replsite.snapshot.queries import CursorRow, ReaderRow
from streams.reading.reader_table import NAMED
from streams.runtime.silence import silent_seconds

__all__ = ["with_cursors"]

#: ``{stream: names of its writers}``
Writers = Mapping[str, Sequence[str]]


def with_cursors(
    rows: Iterable[ReaderRow],
    cursors: Iterable[CursorRow],
    writers: Writers,
    as_of: datetime,
    gone_after_seconds: float,
) -> list[ReaderRow]:
    """Returns the rows of all readers. Rows of named readers are merged with the stored cursors of the same reader.

    A named reader that has stored cursors and no row gets a row that is made from its cursors. A reader whose process was
    silent for longer than ``gone_after_seconds`` counts as not running. ``writers`` maps each stream to the names of its
    writers.
    """
    by_key: dict[str, dict[str, CursorRow]] = {}
    for cursor in cursors:
        by_key.setdefault(f"{NAMED}{cursor.reader}", {})[cursor.stream] = cursor
    found = [(row, by_key.pop(row.key, {})) for row in rows]
    found += [(_row_of(key, kept, as_of), kept) for key, kept in by_key.items()]
    return [_merged(row, kept, writers, as_of, gone_after_seconds) for row, kept in found]


def _merged(
    row: ReaderRow, cursors: Mapping[str, CursorRow], writers: Writers, as_of: datetime, gone_after_seconds: float
) -> ReaderRow:
    if not row.is_named:
        return row
    heard_at = _nearest_time([row.heartbeat_at, *(cursor.seen_at for cursor in cursors.values())], as_of)
    ended = [cursor.ended_at for cursor in cursors.values() if cursor.ended_at is not None]
    closed_at = max(ended, default=None) if cursors else row.closed_at
    # Some cursors have ended and others have not. Then a process took the name again after one of them was reset.
    if closed_at is not None and len(ended) < len(cursors):
        closed_at = None
    runs = closed_at is None and silent_seconds(as_of, heard_at) <= gone_after_seconds
    positions = dict(row.positions) if runs or not cursors else {}
    for stream, cursor in cursors.items():
        if not (runs and positions.get(stream)):
            positions[stream] = _positions(cursor, writers.get(stream, ()))
    # A process that just started has not written its positions yet. Until then its cursors tell which streams it follows.
    runs_on = frozenset(row.positions or positions) if runs else frozenset()
    return row._replace(
        positions=positions, cursors=cursors, heartbeat_at=heard_at, closed_at=closed_at, runs_on=runs_on
    )


def _positions(cursor: CursorRow, writers: Sequence[str]) -> dict[str, int]:
    """Returns the cursor's position for each writer: ``base``, or the writer's own entry if that is larger."""
    names = dict.fromkeys((*writers, *cursor.entries))  # in one order, so that equal vectors of readers are found equal
    return {writer: max(cursor.base, cursor.entries.get(writer, 0)) for writer in names}


def _nearest_time(times: Iterable[datetime], as_of: datetime) -> datetime:
    """Returns the time nearest to ``as_of``."""
    # Not max(): after the clock was set back, one of the times may lie in the future.
    return min(times, key=lambda at: silent_seconds(as_of, at))


def _row_of(key: str, cursors: Mapping[str, CursorRow], as_of: datetime) -> ReaderRow:
    """Returns a row for a reader that has stored cursors and no row.

    The row's values come from the cursor whose ``seen_at`` is nearest to ``as_of``.
    """
    last = min(cursors.values(), key=lambda cursor: silent_seconds(as_of, cursor.seen_at))
    return ReaderRow(
        key=key, name=last.reader, kind="follower", served_by="",
        address=f"{last.host}:{last.process_id}" if last.process_id else last.host, process_id=last.process_id,
        connected_at=last.moved_at, heartbeat_at=last.seen_at, positions={}, bytes_in=0, bytes_out=0, lines_in=0, lines_out=0,
        buffer_bytes=0, closed_at=last.ended_at, close_reason="", has_row=False,
    )  # fmt: skip
