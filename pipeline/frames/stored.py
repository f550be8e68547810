"""Reads the frames of rooms out of a database, in one snapshot. Needs neither Django nor settings.

    with stored_rooms(spark, dsn, ["!room:example.org"]) as stored:
        stored.events.groupBy("sender").count().show()

Rooms are divided into parts of some ten thousand events, and each part of a frame is read by one task. Rows come as
Arrow batches of some megabytes, so the memory of a task does not grow with its rooms. Frames read the database each
time they are used, and always in the same snapshot. So all frames are consistent, even if transactions change the rooms
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from events.arguments import can_be_stored
from events.format.parsing import ParsedEvent
from events.integrity.expected_rows import Columns, StoredEvent, event_of_row
from events.integrity.stored_rows import EventParser
from pipeline.frames.damage import DAMAGE, damage_of_rooms
from pipeline.frames.event_columns import event_arrays
from pipeline.frames.room_frames import RoomFrames
from pipeline.frames.schemas import EVENTS, ROOM_FRAMES, FrameSchema
from pipeline.frames.stored_marks import stored_marks
from pipeline.frames.stored_sql import (
    ALL_SIZES,
    BY_EVENTS,
    CUTS,
    NAMED_SIZES,
    SESSION,
    RoomPart,
    frame_sql,
    links_sql,
    source_sql,
)
from pipeline.frames.task_rows import InSnapshot
from pipeline.source.shared_snapshot import few_rows_in_snapshot, in_snapshot, read_batches, shared_snapshot
from state.rules.room_versions import room_version
from streams.runtime.batches import bounded_batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import Broadcast
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["KnownKeys", "KnownRows", "StoredRooms", "known_keys", "stored_rooms"]

EVENTS_PER_PART = 50_000
_ROOMS_PER_PART = 1_000
_ROOMS_PER_QUERY = 10_000
_NAME = "replsite frames"
#: Indexes of columns in a row of ``source_sql``.
_FIRST_OWN, _FIRST_COLUMN, _STORED_BY, _JSON = 2, 11, 19, 20


@dataclass(frozen=True, slots=True)
class _Reading:
    """The arguments that all tasks share: connection string, name of the snapshot, and the parts, which Spark broadcasts."""

    dsn: str = field(repr=False)
    snapshot: str
    parts: Broadcast[list[RoomPart]]

    def parts_of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[RoomPart]:
        """Yields the parts whose numbers are in ``batches``. Each part has the number of the task that reads it."""
        for batch in batches:
            yield from (self.parts.value[number] for number in batch.column(0).to_pylist())


@dataclass(frozen=True, slots=True)
class KnownRows:
    """Asks a database, in one snapshot, which events and rooms it has. Tasks ask for those of their packs."""

    dsn: str = field(repr=False)
    snapshot: str

    def marks(self, batches: Sequence[pa.RecordBatch]) -> pa.Table:
        """Returns the marks of what the database has (``stored_marks``)."""
        with few_rows_in_snapshot(self.dsn, self.snapshot, _NAME) as cursor:
            return stored_marks(cursor, batches)


@dataclass(frozen=True)
class KnownKeys(InSnapshot):
    """The events and rooms that a database has, in one snapshot. May be used until ``close`` or the end of the ``with`` block."""

    rows: KnownRows
    _open: ExitStack = field(default_factory=ExitStack)


@dataclass(frozen=True)
class StoredRooms(InSnapshot, RoomFrames):
    """The rows of some rooms in a database, all in one snapshot.

    The frames may be used until ``close`` or the end of the ``with`` block. Until then, PostgreSQL cannot remove row
    versions that other transactions have deleted or replaced. To use the rows longer, write the frames to files.
    """

    source_events: DataFrame
    """The stored events as a source gives them (``EVENTS``), with the stored results of event auth.

    An event whose JSON is missing or unreadable is made from its columns, and its ``json`` is empty. Events of rooms
    without a row are left out."""
    damage: DataFrame
    """The differences between the stored rows and the rows computed from the stored events, as ``room check`` finds them
    (``DAMAGE``). A task holds one room in memory."""
    _open: ExitStack = field(default_factory=ExitStack)


def stored_rooms(
    spark: SparkSession,
    dsn: str,
    rooms: Iterable[str] | DataFrame | None = None,
    *,
    events_per_part: int = EVENTS_PER_PART,
) -> StoredRooms:
    """Returns the frames of rooms in the database of a libpq connection string.

    ``rooms`` has room IDs. It may also be a frame with a column ``room_id``, whose values are fetched to the driver.
    None means all rooms. Rooms that do not exist have no rows. If a room has more than ``events_per_part`` events,
    several tasks read the room's rows of the frames in ``stored_sql.BY_EVENTS``. In other frames, one task reads all
    rows of a room.

    This function counts the events of the rooms at once. Rows are read when the frames are used. Raises errors of the
    database driver.
    """
    named = None if rooms is None else _room_ids(rooms)
    with ExitStack() as stack:
        connection, snapshot = stack.enter_context(shared_snapshot(dsn, _NAME))
        # By broadcast: a closure would be sent with every task, and the parts of 10^6 named rooms take megabytes. The
        # connection string stays in the closure, because Spark writes broadcast values to files.
        whole, cut = (
            _Reading(dsn, snapshot, spark.sparkContext.broadcast(parts))
            for parts in _parts(connection, named, events_per_part)
        )
        frames = {
            name: _frame(spark, cut if name in BY_EVENTS else whole, partial(_read_frame, schema), schema.spark())
            for name, schema in ROOM_FRAMES.items()
        }
        source_events = _frame(spark, cut, _read_source, EVENTS.spark())
        damage = _frame(spark, whole, _find_damage, DAMAGE.spark())
        return StoredRooms(**frames, source_events=source_events, damage=damage, _open=stack.pop_all())


def known_keys(dsn: str) -> KnownKeys:
    """Takes a snapshot of a database for ``work_out_rooms``. ``dsn`` is a libpq connection string.

    Raises errors of the database driver.
    """
    with ExitStack() as stack:
        _, snapshot = stack.enter_context(shared_snapshot(dsn, _NAME))
        return KnownKeys(KnownRows(dsn, snapshot), stack.pop_all())


def _frame(
    spark: SparkSession,
    work: _Reading,
    read: Callable[[_Reading, Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: StructType | str,
) -> DataFrame:
    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return read(work, batches)

    count = len(work.parts.value)
    return spark.range(0, count, 1, max(count, 1)).mapInArrow(rows, schema)


def _room_ids(rooms: Iterable[str] | DataFrame) -> list[str]:
    if isinstance(rooms, str):
        raise TypeError("rooms is a single string; give a list of room IDs")
    columns = getattr(rooms, "columns", None)
    found = rooms if columns is None else (row[0] for row in rooms.select("room_id").distinct().collect())  # type: ignore[union-attr]
    return sorted({room_id for room_id in found if can_be_stored(room_id)})  # type: ignore[union-attr]


# --- parts ------------------------------------------------------------------------------------------------------------


def _parts(connection: Any, named: Sequence[str] | None, most: int) -> tuple[list[RoomPart], list[RoomPart]]:
    """Returns two divisions of the rooms into parts, each with the largest parts first.

    In the first division, each large room is one part. In the second division, each large room has several parts, which
    are ranges of stream orderings.
    """
    with connection.cursor() as cursor:
        cursor.execute(SESSION)
        sized = _ranges(_all_sizes(connection), most) if named is None else _lists(_sizes_of(cursor, named), most)
        found = sorted(sized, key=itemgetter(0), reverse=True)
        cut: list[RoomPart] = []
        for _, part, large in found:
            if large is None:
                cut.append(part)
                continue
            cursor.execute(CUTS, {"room": large, "size": most})
            cut += [RoomPart(rooms=(large,), first=first, last=last) for first, last in cursor.fetchall()]
    return [part for _, part, _ in found], cut


def _all_sizes(connection: Any) -> Iterator[tuple[str, int]]:
    with connection.cursor(name="sizes") as cursor:
        cursor.itersize = _ROOMS_PER_QUERY
        cursor.execute(ALL_SIZES)
        yield from cursor


def _sizes_of(cursor: Any, rooms: Sequence[str]) -> Iterator[tuple[str, int]]:
    for start in range(0, len(rooms), _ROOMS_PER_QUERY):
        cursor.execute(NAMED_SIZES, {"rooms": list(rooms[start : start + _ROOMS_PER_QUERY])})
        yield from cursor.fetchall()


def _ranges(sizes: Iterable[tuple[str, int]], most: int) -> Iterator[tuple[int, RoomPart, str | None]]:
    """Divides all rooms into ranges of room IDs. ``sizes`` are (room ID, number of events), in the order of room IDs.

    Yields (number of events, part, room ID or None) for each range. The room ID is given if the range ends with a room
    of more than ``most`` events.

    There is no gap between the ranges. So rooms without events, which are not in ``sizes``, are in a range, too.
    """
    after: str | None = None
    last: str | None = None
    size = 0
    for room_id, events in sizes:
        if size and size + events > most:
            yield size, RoomPart(after=after, upto=last), None
            after, size = last, 0
        size += events
        if events > most:
            yield size, RoomPart(after=after, upto=room_id), room_id
            after, size = room_id, 0
        last = room_id
    yield size, RoomPart(after=after), None


def _lists(sizes: Iterable[tuple[str, int]], most: int) -> Iterator[tuple[int, RoomPart, str | None]]:
    """Divides named rooms into lists. ``sizes`` are (room ID, number of events).

    Yields (number of events, part, room ID or None) for each list. The room ID is given if the list is a single room
    with more than ``most`` events.
    """
    small: list[tuple[str, int]] = []
    for room_id, events in sizes:
        if events > most:
            yield events, RoomPart(rooms=(room_id,)), room_id
        else:
            small.append((room_id, events))
    for part in bounded_batches(small, itemgetter(1), most, _ROOMS_PER_PART):
        yield sum(events for _, events in part), RoomPart(rooms=tuple(room_id for room_id, _ in part)), None


# --- tasks ------------------------------------------------------------------------------------------------------------


def _queries(
    work: _Reading, sql: Callable[[RoomPart], str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs the query ``sql(part)`` for each part of a task. Yields the rows of all queries."""
    for part in work.parts_of(batches):
        with in_snapshot(work.dsn, work.snapshot, _NAME) as cursor:
            cursor.execute(SESSION)
            cursor.fetchall()
            yield from read_batches(cursor, sql(part))


def _read_frame(schema: FrameSchema, work: _Reading, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    arrow = schema.arrow()
    for rows in _queries(work, partial(frame_sql, schema.name), batches):
        yield rows.cast(arrow)


def _find_damage(work: _Reading, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for part in work.parts_of(batches):
        yield from damage_of_rooms(work.dsn, work.snapshot, _NAME, part)


def _read_source(work: _Reading, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa  # noqa: PLC0415 - executors only

    parser, schema = _StoredEvents(work), EVENTS.arrow()
    for rows in _queries(work, source_sql, batches):
        events = [*parser.events(rows.to_pydict())]
        found = event_arrays(events)
        arrays = [found[kind.name] if kind.name in found else pa.nulls(len(events), kind.type) for kind in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


class _StoredEvents:
    """A parser of stored events. The rows of a room must follow one another, because the parser caches values of one room."""

    def __init__(self, work: _Reading) -> None:
        self._work = work
        self._room: tuple[str, str] | None = None
        self._parser = EventParser(room_version("1"))

    def events(self, columns: Mapping[str, Sequence[Any]]) -> Iterator[ParsedEvent]:
        """Yields the events in some rows of the query ``source_sql``. ``columns`` maps column names to values.

        The ``json`` of an event has the bytes that are to be stored for it.
        """
        rows = [self._row(row) for row in zip(*columns.values(), strict=True)]
        lost = [row.event_id for _, row, _ in rows if row.parsed is None]
        links = dict(self._links(lost)) if lost else {}
        for room, row, json in rows:
            if row.parsed is not None:
                yield replace(row.parsed, json=row.parsed.json or json)
            elif row.columns is not None:
                edges, auth = links[row.event_id]
                about = row._replace(columns=row.columns._replace(edges=edges, auth=auth))
                yield event_of_row(about, *room)

    def _row(self, row: Sequence[Any]) -> tuple[tuple[str, str], StoredEvent, bytes]:
        room = row[0], row[1]
        if room != self._room:  # rows come room by room, so the values of one room are kept at a time
            self._room, self._parser = room, EventParser(room_version(row[1]))
        json, stored_by = row[_JSON], row[_STORED_BY]
        stored = None if json is None else (json, stored_by)
        columns = Columns._make((*row[_FIRST_COLUMN:_STORED_BY], (), None))
        return room, self._parser.event(tuple(row[_FIRST_OWN:_FIRST_COLUMN]), stored, columns), json or b""

    def _links(self, event_ids: Sequence[str]) -> Iterator[tuple[str, tuple[Sequence[str], Sequence[str] | None]]]:
        # On another connection, because the task's connection is still delivering rows.
        with in_snapshot(self._work.dsn, self._work.snapshot, _NAME) as cursor:
            for rows in read_batches(cursor, links_sql(event_ids)):
                for event_id, edges, auth in zip(*rows.to_pydict().values(), strict=True):
                    yield event_id, (edges, auth)
