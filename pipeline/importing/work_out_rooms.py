"""Computes the rows of all tables from a room's staged events. Runs in Spark's executors. Needs no Django.

``events.history.rows`` has the rules. The JSON of events is not read. A task holds one chunk of a room's events in
memory (``pipeline.importing.staged_room``). It also holds values of earlier chunks that later chunks need, and some
thousand of the resulting rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from events.columns import EVENT_COLUMNS
from events.errors import HistoryError
from events.history.rows import EVENTS_PER_CHUNK, EventPart, RoomHistory
from pipeline.importing.packed_events import Unpacker
from pipeline.importing.staged_room import EventsInMemory, RoomEvents, StagedEvents
from pipeline.importing.staging_tables import (
    BROKEN,
    OWN_COLUMNS,
    RESULT_TABLES,
    STAGED_EVENTS,
    WORKING,
    StagedTable,
    connect,
    copy_columns,
    copy_rows,
    table_name,
)
from streams.runtime.gc_pause import collector_paused

__all__ = ["RoomWork", "stage_rooms"]

CONTRADICTION = "room-contradicts-itself"
_OWN = itemgetter(*(EVENT_COLUMNS.index(name) for name in OWN_COLUMNS))
_RESULT_EVENT = next(table for table in RESULT_TABLES if table.name == "result_event")
_ROWS_PER_FETCH = 5_000
_ROWS_PER_COPY = 5_000
_EVENTS_PER_GROUP = 5_000
#: An event with a negative stream ordering is backfilled. Only the sign of this value matters.
_BACKWARD = -1


@dataclass(frozen=True, slots=True)
class RoomWork:
    """The parameters for computing rooms, the same for all tasks of a job.

    A room of more than ``chunk`` events is read in chunks.
    """

    job: int
    dsn: str
    as_history: bool
    chunk: int = EVENTS_PER_CHUNK


def stage_rooms(work: RoomWork, rooms: Sequence[tuple[int, str, int]]) -> int:
    """Computes the rows of rooms and stores them in the staging tables. Returns the number of events in these rooms.

    ``rooms`` has (number, room ID, number of events) of each room. Several small rooms share a transaction. A finished
    room has a row in ``result_room``. A repeated task skips rooms that are finished, and does not count their events.
    """
    large = {number: events for number, _, events in rooms if events > work.chunk}
    done = 0
    with closing(connect(work.dsn)) as connection:
        for group in _groups(rooms, min(_EVENTS_PER_GROUP, work.chunk)):
            with connection, collector_paused():  # one transaction for each group
                numbers = _unfinished(connection, work, group)
                if numbers and numbers[0] in large:
                    done += _stage_large(connection, work, numbers[0], large[numbers[0]])
                else:
                    done += _stage_group(connection, work, numbers)
    return done


def _groups(rooms: Iterable[tuple[int, str, int]], most: int) -> Iterator[list[int]]:
    """Yields lists of room numbers. The rooms of a list share a transaction.

    The rooms of a list have at most ``most`` events together. A room with more events has a list of its own.
    """
    group: list[int] = []
    size = 0
    for number, _, events in rooms:
        if group and size + events > most:
            yield group
            group, size = [], 0
        group.append(number)
        size += events
    if group:
        yield group


def _unfinished(connection: Any, work: RoomWork, numbers: Sequence[int]) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL synchronous_commit = off")
        results = table_name(work.job, "result_room")
        cursor.execute(f"SELECT room_no FROM {results} WHERE room_no = ANY(%s)", [list(numbers)])
        finished = {number for (number,) in cursor.fetchall()}
    return [number for number in numbers if number not in finished]


def _stage_group(connection: Any, work: RoomWork, numbers: Sequence[int]) -> int:
    done = 0
    with connection.cursor() as cursor:
        results = _Results(cursor, work.job)
        for number, room in _read(connection, work, numbers):
            done += len(room)
            _work_out(number, room, results)
        results.flush()
    return done


def _read(connection: Any, work: RoomWork, numbers: Sequence[int]) -> Iterator[tuple[int, EventsInMemory]]:
    """Yields (room number, events of the room) for each room in ``numbers``.

    The events of a room are ordered by stream ordering, then by place in the input. Events without a stream ordering
    come last.
    """
    # Sort the short rows of ``kept`` first, then look up each staged event. OFFSET 0 keeps the planner from turning this into
    # a join that reads the events of all rooms.
    order = "room_no, stream_ordering NULLS LAST, seq"
    with connection.cursor(name="rooms") as cursor:
        cursor.itersize = _ROWS_PER_FETCH
        cursor.execute(
            f"SELECT k.*, e.packed FROM (SELECT room_no, room_id, seq, stream_ordering FROM {table_name(work.job, 'kept')} "
            f"WHERE room_no = ANY(%s) ORDER BY {order}) k CROSS JOIN LATERAL "
            f"(SELECT packed FROM {table_name(work.job, STAGED_EVENTS.name)} e WHERE e.seq = k.seq OFFSET 0) e ORDER BY {order}",
            [list(numbers)],
        )
        for number, rows in itertools.groupby(cursor, key=itemgetter(0)):
            _, room_ids, places, given, packed = zip(*rows, strict=True)
            orderings = itertools.repeat(_BACKWARD) if work.as_history else given
            yield number, EventsInMemory(places, given, [*map(Unpacker(room_ids[0]).unpack, packed, orderings)])


def _stage_large(connection: Any, work: RoomWork, number: int, events: int) -> int:
    """Computes one room in chunks.

    The progress is written on a second connection, so that it is visible before the room's transaction commits.
    """
    backward = _BACKWARD if work.as_history else None
    with closing(connect(work.dsn)) as telling, connection.cursor() as cursor:
        telling.autocommit = True
        progress = _Progress(telling, work.job, number)
        results = _Results(cursor, work.job)
        room = StagedEvents(connection, work.job, number, backward)
        _work_out(number, room, results, work.chunk, progress)
        results.flush()
        cursor.execute(f"DELETE FROM {table_name(work.job, WORKING.name)} WHERE room_no = %s", [number])
    return events


class _Progress:
    """A writer of a large room's progress to the staging table ``working``.

    An event counts half when its event auth is done, and half when its rows are written.
    """

    def __init__(self, connection: Any, job: int, number: int) -> None:
        self._connection, self._number = connection, number
        self._sql = (
            f"INSERT INTO {table_name(job, WORKING.name)} (room_no, events) VALUES (%s, %s) "
            "ON CONFLICT (room_no) DO UPDATE SET events = excluded.events"
        )
        self._judged = 0

    def judged(self, events: int) -> None:
        """Stores the number of events for which event auth is done."""
        self._judged = events
        self.written(0)

    def written(self, events: int) -> None:
        """Stores the number of events whose rows are written."""
        with self._connection.cursor() as cursor:
            cursor.execute(self._sql, [self._number, (self._judged + events) // 2])


class _Results:
    """A buffer of rows for the staging tables. Some thousand rows at a time are written by COPY."""

    def __init__(self, cursor: Any, job: int) -> None:
        self._cursor, self._job = cursor, job
        self._rows: dict[str, tuple[StagedTable, list[Sequence[Any]]]] = {
            table.name: (table, []) for table in (*RESULT_TABLES, BROKEN) if table is not _RESULT_EVENT
        }
        self._events: list[list[Any]] = [[] for _ in _RESULT_EVENT.columns]

    def add(self, name: str, rows: Iterable[Sequence[Any]]) -> None:
        """Adds rows for the table ``name``. The values of each row are in the order of the table's columns."""
        table, waiting = self._rows[name]
        left = iter(rows)
        while more := list(itertools.islice(left, _ROWS_PER_COPY - len(waiting))):
            waiting += more
            if len(waiting) >= _ROWS_PER_COPY:
                copy_rows(self._cursor, self._job, table, waiting)
                waiting.clear()

    def add_events(self, columns: Sequence[Sequence[Any]]) -> None:
        """Adds rows to ``result_event``. ``columns`` has one sequence of values for each column of this table.

        Most rows belong to this table. They are added as columns, because Arrow needs columns.
        """
        for waiting, more in zip(self._events, columns, strict=True):
            waiting.extend(more)
        if len(self._events[0]) >= _ROWS_PER_COPY:
            self._flush_events()

    def _flush_events(self) -> None:
        if self._events[0]:
            copy_columns(self._cursor, self._job, _RESULT_EVENT, self._events)
        for waiting in self._events:
            waiting.clear()

    def flush(self) -> None:
        """Writes the rows that are still in the buffer."""
        self._flush_events()
        for table, waiting in self._rows.values():
            copy_rows(self._cursor, self._job, table, waiting)
            waiting.clear()


def _work_out(
    room_no: int, room: RoomEvents, results: _Results, chunk: int = EVENTS_PER_CHUNK, progress: _Progress | None = None
) -> None:
    """Computes the rows of one room and adds them to ``results``.

    If the events of the room contradict each other, all events of the room go to the quarantine. It would be wrong to
    load a room with only some of its events.
    """
    try:
        room.check()
        history = RoomHistory(room, chunk, progress.judged if progress is not None else lambda _: None)
    except HistoryError as error:
        detail = str(error)[:1000]
        results.add(BROKEN.name, ((place, CONTRADICTION, detail, b"") for place in room.places(0, len(room))))
        results.add("result_room", [(room_no, *[None] * 6, 0, 0, 0, 0, 0)])
        return
    for part in history.events():
        if progress is not None:
            progress.written(part.first)
        results.add_events(_event_columns(room_no, room, part))
    for name, rows in _more(history).items():
        results.add(name, ((room_no, *row) for row in rows))
    results.add("result_room", [_room(room_no, room, history)])


def _room(room_no: int, room: RoomEvents, history: RoomHistory) -> Sequence[Any]:
    return (
        room_no,
        history.room_id,
        history.version.name,
        history.creator,
        history.create_event_id,
        history.current_state_unresolved,
        history.visibility_unresolved,
        len(room),
        history.backfilled_events,
        history.rejected_events,
        history.unresolved_events,
        history.stored_groups,
    )


def _event_columns(room_no: int, room: RoomEvents, part: EventPart) -> Sequence[Sequence[Any]]:
    """Returns the columns of ``result_event`` for some events of a room.

    For an outlier, the prev events are null. For an event that is no state event, the auth events are null.
    """
    first, events = part.first, part.events
    end = first + len(events)
    return (
        [room_no] * len(events),
        range(first, end),
        room.places(first, end),
        room.given_orderings(first, end),
        [event.backfilled for event in events],
        *_OWN(part.columns),
        [None if event.outlier else event.prev_event_ids for event in events],
        [None if event.state_key is None else event.auth_event_ids for event in events],
    )


def _more(history: RoomHistory) -> dict[str, Iterable[Sequence[Any]]]:
    """Returns the rows of all result tables except ``result_room`` and ``result_event``: table -> rows.

    The rows lack the first column, which is the room's number.
    """
    return {
        "result_forward": ((event_id,) for event_id in history.forward_extremities()),
        "result_backward": ((event_id,) for event_id in history.backward_extremities()),
        "result_group": history.groups(),
        "result_group_delta": history.group_deltas(),
        "result_current": history.current_state(),
        "result_delta": history.state_deltas(),
        "result_visibility": ((row.user_id, row.kind, row.first, row.last) for row in history.visibility()),
    }
