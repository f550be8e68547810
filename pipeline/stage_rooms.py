"""Second half of an import, on executors: a room's staged events -> the rows of every table (no Django).

The rules are ``events.room_history``; the JSON text of events stays where it is. A task works on several rooms, one after the
other, and holds one room's extracted fields at a time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from events.errors import HistoryError
from events.parsing import ParsedEvent
from events.room_history import RoomResult, room_history
from pipeline.staging import (
    BROKEN,
    RESULT_TABLES,
    STAGED_EVENTS,
    copy_rows,
    staging_connection,
    table_name,
)

__all__ = ["RoomWork", "stage_room"]

CONTRADICTION = "room-contradicts-itself"
_READ_COLUMNS = [name for name, _ in STAGED_EVENTS.columns if name != "json"]
_ROWS_PER_FETCH = 5_000
_BACKWARD = -1


@dataclass(frozen=True, slots=True)
class RoomWork:
    """What a task needs to work out rooms; the same for all tasks of a job."""

    job: int
    dsn: str
    as_history: bool


@dataclass(frozen=True, slots=True)
class _Staged:
    """A staged event: its place in the input, the stream ordering that was given, and the event for the rules."""

    place: int
    given: int | None
    event: ParsedEvent


def stage_room(work: RoomWork, room_no: int, room_id: str) -> int:
    """Work out one room; returns its number of events, 0 when that was done before or the room cannot be had."""
    with staging_connection(work.dsn) as connection:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT 1 FROM {table_name(work.job, 'result_room')} WHERE room_no = %s", [room_no])
            if cursor.fetchone():
                return 0
        staged = _read(connection, work, room_no, room_id)
        with connection.cursor() as cursor:
            return _work_out(cursor, work, room_no, staged)


def _read(connection: Any, work: RoomWork, room_no: int, room_id: str) -> list[_Staged]:
    """The room's events in the order of their stream orderings, else of the lines."""
    columns = ", ".join(f"e.{name}" for name in _READ_COLUMNS)
    with connection.cursor(name="room") as cursor:
        cursor.itersize = _ROWS_PER_FETCH
        cursor.execute(
            f"SELECT {columns} FROM {table_name(work.job, 'kept')} k "
            f"JOIN {table_name(work.job, STAGED_EVENTS.name)} e USING (seq) "
            f"WHERE k.room_no = %s ORDER BY e.stream_ordering NULLS LAST, e.seq",
            [room_no],
        )
        return [_staged(row, work.as_history) for row in cursor]


def _staged(row: Sequence[Any], as_history: bool) -> _Staged:
    value = dict(zip(_READ_COLUMNS, row, strict=True))
    content = value.pop("content")
    place, given = value.pop("seq"), value.pop("stream_ordering")
    value["prev_event_ids"] = tuple(value["prev_event_ids"])
    value["auth_event_ids"] = tuple(value["auth_event_ids"])
    event = ParsedEvent(
        **value,
        content=json.loads(bytes(content)) if content is not None else {},
        json=b"",
        content_hash_matches=True,  # looked at while parsing; the rules of the graph do not ask
        stream_ordering=_BACKWARD if as_history else given,
    )
    return _Staged(place, given, event)


def _work_out(cursor: Any, work: RoomWork, room_no: int, staged: Sequence[_Staged]) -> int:
    try:
        result = room_history([one.event for one in staged])
    except HistoryError as error:
        _put_aside(cursor, work, staged, str(error))
        cursor.execute(f"INSERT INTO {table_name(work.job, 'result_room')} (room_no, events) VALUES (%s, 0)", [room_no])
        return 0
    for table, rows in zip(RESULT_TABLES, _rows(room_no, staged, result), strict=True):
        copy_rows(cursor, work.job, table, rows)
    return len(staged)


def _put_aside(cursor: Any, work: RoomWork, staged: Sequence[_Staged], detail: str) -> None:
    """Quarantine the whole room: half of a contradiction is not the truth either."""
    rows = [(one.place, CONTRADICTION, detail[:1000], b"") for one in staged]
    copy_rows(cursor, work.job, BROKEN, rows)


def _rows(room_no: int, staged: Sequence[_Staged], result: RoomResult) -> list[list[tuple[Any, ...]]]:
    """Rows for ``RESULT_TABLES``, in that order."""
    room = (
        room_no,
        result.room_id,
        result.room_version,
        result.creator,
        result.create_event_id,
        result.current_state_unresolved,
        result.visibility_unresolved,
        len(staged),
        sum(one.event.backfilled for one in staged),
        sum(one.event.rejected_reason is not None for one in staged),
        result.unresolved_events,
        len(result.groups),
    )
    events = [
        (room_no, index, one.place, one.given, one.event.backfilled, *row)
        for index, (one, row) in enumerate(zip(staged, result.events, strict=True))
    ]
    visibility = [(row.user_id, row.kind, row.first, row.last) for row in result.visibility]
    more: list[Sequence[Sequence[Any]]] = [
        result.edges,
        result.auth,
        [(event_id,) for event_id in result.forward_extremities],
        [(event_id,) for event_id in result.backward_extremities],
        result.groups,
        result.group_deltas,
        result.event_groups,
        result.current_state,
        result.state_deltas,
        visibility,
    ]
    return [[room], events, *([(room_no, *row) for row in rows] for rows in more)]
