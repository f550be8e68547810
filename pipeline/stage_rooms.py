"""Second half of an import, on executors: a room's staged events -> the rows of every table (no Django).

The rules are ``events.room_history``; the JSON text of events stays where it is. A task holds the extracted fields of one
room, and the resulting rows of one group of small rooms, at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from events.errors import HistoryError
from events.parsing import ParsedEvent
from events.room_history import EVENT_COLUMNS, RoomResult, room_history
from pipeline.packed_events import Unpacker
from pipeline.staging import (
    BROKEN,
    OWN_COLUMNS,
    RESULT_TABLES,
    STAGED_EVENTS,
    connect,
    copy_rows,
    table_name,
)
from streams.collector_pause import collector_paused

__all__ = ["RoomWork", "stage_rooms"]

CONTRADICTION = "room-contradicts-itself"
_OWN = [EVENT_COLUMNS.index(name) for name in OWN_COLUMNS]
_ROWS_PER_FETCH = 5_000
_EVENTS_PER_GROUP = 5_000
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


def stage_rooms(work: RoomWork, rooms: Sequence[tuple[int, str, int]]) -> int:
    """Work out rooms, given as (number, ID, events), over one connection; returns how many events they have.

    Small rooms share a transaction; each is written down as done in ``result_room``, and then left alone.
    """
    done = 0
    connection = connect(work.dsn)
    try:
        for group in _groups(rooms):
            with connection, collector_paused():  # a transaction
                done += _stage_group(connection, work, group)
    finally:
        connection.close()
    return done


def _groups(rooms: Iterable[tuple[int, str, int]]) -> Iterator[list[int]]:
    """Numbers of rooms that are worked out together: some thousand events, or one room of more."""
    group: list[int] = []
    size = 0
    for number, _, events in rooms:
        if group and size + events > _EVENTS_PER_GROUP:
            yield group
            group, size = [], 0
        group.append(number)
        size += events
    if group:
        yield group


def _stage_group(connection: Any, work: RoomWork, numbers: Sequence[int]) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL synchronous_commit = off")
        results = table_name(work.job, "result_room")
        cursor.execute(f"SELECT room_no FROM {results} WHERE room_no = ANY(%s)", [list(numbers)])
        finished = {number for (number,) in cursor.fetchall()}
    rows: list[list[tuple[Any, ...]]] = [[] for _ in RESULT_TABLES]
    broken: list[tuple[Any, ...]] = []
    done = 0
    for number, staged in _read(connection, work, [number for number in numbers if number not in finished]):
        done += len(staged)
        for collected, more in zip(rows, _work_out(number, staged, broken), strict=True):
            collected.extend(more)
    with connection.cursor() as cursor:
        for table, found in zip(RESULT_TABLES, rows, strict=True):
            copy_rows(cursor, work.job, table, found)
        copy_rows(cursor, work.job, BROKEN, broken)
    return done


def _read(connection: Any, work: RoomWork, numbers: Sequence[int]) -> Iterator[tuple[int, list[_Staged]]]:
    """Room after room, its events in the order of their stream orderings, else of the lines."""
    with connection.cursor(name="rooms") as cursor:
        cursor.itersize = _ROWS_PER_FETCH
        cursor.execute(
            f"SELECT k.room_no, k.room_id, e.seq, e.stream_ordering, e.packed FROM {table_name(work.job, 'kept')} k "
            f"JOIN {table_name(work.job, STAGED_EVENTS.name)} e USING (seq) "
            f"WHERE k.room_no = ANY(%s) ORDER BY k.room_no, e.stream_ordering NULLS LAST, e.seq",
            [list(numbers)],
        )
        for (number, room_id), rows in itertools.groupby(cursor, key=itemgetter(0, 1)):
            unpack = Unpacker(room_id).unpack
            yield (
                number,
                [
                    _Staged(seq, given, unpack(packed, _BACKWARD if work.as_history else given))
                    for *_, seq, given, packed in rows
                ],
            )


def _work_out(room_no: int, staged: Sequence[_Staged], broken: list[tuple[Any, ...]]) -> list[list[tuple[Any, ...]]]:
    """Rows for ``RESULT_TABLES``. A room that contradicts itself is put aside whole: half of it is not the truth either."""
    try:
        result = room_history([one.event for one in staged])
    except HistoryError as error:
        broken += [(one.place, CONTRADICTION, str(error)[:1000], b"") for one in staged]
        nothing = (room_no, *[None] * 6, 0, 0, 0, 0, 0)
        return [[nothing], *([] for _ in RESULT_TABLES[1:])]
    return _rows(room_no, staged, result)


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
        result.rejected_events,
        result.unresolved_events,
        len(result.groups),
    )
    own = itemgetter(*_OWN)
    events = [
        (room_no, index, one.place, one.given, one.event.backfilled, *own(row), *_references(one.event))
        for index, (one, row) in enumerate(zip(staged, result.events, strict=True))
    ]
    visibility = [(row.user_id, row.kind, row.first, row.last) for row in result.visibility]
    more: list[Sequence[Sequence[Any]]] = [
        [(event_id,) for event_id in result.forward_extremities],
        [(event_id,) for event_id in result.backward_extremities],
        result.groups,
        result.group_deltas,
        result.current_state,
        result.state_deltas,
        visibility,
    ]
    return [[room], events, *([(room_no, *row) for row in rows] for rows in more)]


def _references(event: ParsedEvent) -> tuple[Sequence[str] | None, Sequence[str] | None]:
    """Prev events and auth events as far as they are stored."""
    return None if event.outlier else event.prev_event_ids, event.auth_event_ids if event.is_state else None
