"""Holds the rows of one pack until they are copied into the tables. Runs in Spark's executors, without Django.

In the rows of a pack, events and state groups have numbers within the room. This module replaces the numbers by IDs.

A small pack is held in memory, a large pack in a temporary file without a name. In both cases, some columns of the
events and the rows of the rooms are in memory. They take about 100 bytes for each event. No step copies more than some
megabytes of a pack at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from operator import attrgetter
from typing import IO, TYPE_CHECKING, Any

from events.columns import COLUMNS
from events.declarations import BACKFILL, EVENTS
from pipeline.errors import PackIncomplete
from pipeline.frames.choose_events import in_order
from pipeline.frames.room_events import BYTES_IN_MEMORY, temporary_file
from pipeline.frames.schemas import ROOM_FRAMES
from pipeline.loading.copy_rows import varchar_arrays
from streams.runtime.batches import bounded_batches

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["COPIED_BEFORE_IDS", "COPIED_WITH_IDS", "Numbered", "Pack", "Positions", "state_groups", "table_rows"]

BYTES_PER_SORT = 32 * 1024 * 1024
"""So many bytes of rows are sorted together."""
_BYTES_PER_BATCH = 1024 * 1024
"""Sorted rows are copied in batches of about this size."""
_ORDER = (("stream_ordering", "ascending"), ("source", "ascending"), ("line", "ascending"))
_NO_PLACE = -1
_OF_EVENTS = (
    "room_id", "number", "backfilled", "stream_ordering", "source", "line", "rejected_reason", "state_unresolved",
)  # fmt: skip

#: Frame -> the column by which its rows are sorted before they are copied. Event IDs are hashes: without sorting, the pages of
#: their indexes would be visited at random.
COPIED_BEFORE_IDS = {
    "event_json": "event_id",
    "edges": "event_id",
    "auth_edges": "event_id",
    "forward_extremities": None,
    "backward_extremities": None,
    "current_state": None,
}
#: Frames whose rows have IDs of state groups or positions.
COPIED_WITH_IDS = (
    "state_groups",
    "state_group_deltas",
    "events",
    "current_state_deltas",
    "visibility",
    "timeline_gaps",
)


class Pack:
    """The rows of a pack, grouped by frame. No method returns rows of the rooms whose IDs are in ``without``."""

    def __init__(self) -> None:
        self._batches: dict[str, list[pa.RecordBatch]] = {name: [] for name in ROOM_FRAMES}
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._places: dict[str, list[tuple[int, int]]] = {name: [] for name in ROOM_FRAMES}
        """The rows in the file: (first byte, number of bytes) of each batch."""
        self.without: Collection[str] = ()

    def add(self, frame: str, batch: pa.RecordBatch) -> None:
        """Adds rows of a frame. Do not call this method after rows were read."""
        self._batches[frame].append(batch)
        self._bytes += batch.nbytes
        if self._bytes > BYTES_IN_MEMORY or self._file is not None:
            self._move_to_file()

    def _move_to_file(self) -> None:
        file = self._file = self._file or temporary_file()
        for frame, batches in self._batches.items():
            self._places[frame] += [(file.tell(), file.write(batch.serialize())) for batch in batches]
            batches.clear()

    def close(self) -> None:
        """Frees the rows, and removes the temporary file."""
        self._batches.clear()
        if self._file is not None:
            self._file.close()

    def batches(self, frame: str) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a frame in batches, without the rooms in ``without``."""
        yield from map(self._kept, self._batches[frame] if self._file is None else self._in_file(self._file, frame))

    def _in_file(self, file: IO[bytes], frame: str) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 - executors only

        schema = ROOM_FRAMES[frame].arrow()
        for place, length in self._places[frame]:
            file.seek(place)
            yield pa.ipc.read_record_batch(pa.py_buffer(file.read(length)), schema)

    def _kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self.without:
            return batch
        import pyarrow as pa  # noqa: PLC0415 - executors only
        from pyarrow import compute  # noqa: PLC0415

        left_out = pa.array(self.without, pa.string())
        return batch.filter(compute.invert(compute.is_in(batch.column("room_id"), left_out)))

    def sorted_batches(self, frame: str, key: str | None) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a frame in batches. So many rows as have ``BYTES_PER_SORT`` bytes are sorted by ``key``.

        If ``key`` is null, the rows are not sorted.
        """
        if key is None:
            yield from self.batches(frame)
            return
        import pyarrow as pa  # noqa: PLC0415 - executors only
        from pyarrow import compute  # noqa: PLC0415

        filled = (batch for batch in self.batches(frame) if batch.num_rows)
        for some in bounded_batches(filled, attrgetter("nbytes"), BYTES_PER_SORT):
            keys = pa.chunked_array([batch.column(key) for batch in some])
            order = compute.sort_indices(keys).cast(pa.int64()).to_numpy()
            # Event IDs are hashes. So rows of all sizes are mixed, and a batch has about the average.
            rows = len(order) * _BYTES_PER_BATCH // sum(batch.nbytes for batch in some)
            yield from in_order(some, order, max(rows, 1))

    def rooms(self) -> list[Sequence[Any]]:
        """Returns the rows of the frame ``rooms``, in the order of the room IDs."""
        rows = [row for batch in self.batches("rooms") for row in zip(*batch.to_pydict().values(), strict=True)]
        return sorted(rows, key=lambda row: str(row[0]))

    def members(self) -> dict[str, list[str]]:
        """Returns room -> IDs of the users with a membership in the room's current state.

        Rooms without a current state are missing in the result.
        """
        found: dict[str, list[str]] = {}
        for batch in self.batches("current_state"):
            columns = (batch.column(name).to_pylist() for name in ("room_id", "type", "state_key"))
            for room_id, type_, state_key in zip(*columns, strict=True):
                users = found.setdefault(room_id, [])
                if type_ == "m.room.member":
                    users.append(state_key)
        return found


# --- numbers ----------------------------------------------------------------------------------------------------------


class Numbered:
    """A mapping from (room, number) to ID, for the state groups or for the events of a pack.

    The IDs are in one list, room after room. Within a room, the IDs are in the order of the numbers. So one call finds
    the IDs for a whole column of numbers.
    """

    def __init__(self, rooms: pa.Array, numbers: pa.Array, items: str) -> None:
        """Takes two columns: the room and the number of each item. ``items`` names them in errors, such as ``events``.

        Raises ``PackIncomplete`` if the numbers of a room are not 0 to n - 1, each exactly once.
        """
        import pyarrow as pa  # noqa: PLC0415 - executors only
        from pyarrow import compute  # noqa: PLC0415

        self._items = items
        counted = pa.table({"room": rooms, "number": numbers}).group_by("room").aggregate([("number", "count")])
        counts = counted.column("number_count").combine_chunks()
        self._rooms = counted.column("room").combine_chunks()
        self._first = compute.subtract(compute.cumulative_sum(counts), counts)
        self._ids: pa.Array | None = None
        self.count = len(numbers)
        self.places = self._places(rooms, numbers)
        in_order = self.places.take(compute.sort_indices(self.places))
        if not in_order.equals(pa.array(range(self.count), pa.int64())):
            raise PackIncomplete(f"A pack has not all {items} of a room. Nothing of the pack was loaded.")

    def _places(self, rooms: pa.Array, numbers: pa.Array) -> pa.Array:
        """Returns, for each (room, number), the index of its ID in the list of IDs. If the number is null, the index is null."""
        from pyarrow import compute  # noqa: PLC0415 - executors only

        at = compute.index_in(rooms, self._rooms)
        if compute.any(compute.and_(compute.is_null(at), compute.is_valid(numbers))).as_py():
            raise PackIncomplete(
                f"A pack has rows of a room without its {self._items}. Nothing of the pack was loaded."
            )
        return compute.add(self._first.take(at), numbers)

    def give(self, ids: pa.Array) -> None:
        """Sets the list of IDs: room after room, and within a room in the order of the numbers."""
        self._ids = ids

    def ids(self, rooms: pa.Array, numbers: pa.Array) -> pa.Array:
        """Returns the ID for each (room, number). If the number is null, the ID is null."""
        if self._ids is None:
            raise ValueError("no IDs were given yet")
        return self._ids.take(self._places(rooms, numbers))


def state_groups(pack: Pack) -> Numbered:
    """Returns the mapping for the state groups of a pack. The caller sets the IDs later, with ``give``."""
    rooms, numbers = _columns(pack, "state_groups", ("room_id", "number"))
    return Numbered(rooms, numbers, "state groups")


class Positions:
    """The positions of the events of a pack, and the numbers of events of each room for the ledger.

    Over all rooms of the pack, positions ascend with the stream orderings that the source gives. Events without a
    stream ordering come last, in the order of the source's lines. Positions of backfilled events are negative IDs of
    the stream ``backfill``, so the newest of these events gets the lowest ID.
    """

    def __init__(self, pack: Pack) -> None:
        import pyarrow as pa  # noqa: PLC0415 - executors only
        from pyarrow import compute  # noqa: PLC0415

        columns = dict(zip(_OF_EVENTS, _columns(pack, "events", _OF_EVENTS), strict=True))
        self.numbered = Numbered(columns["room_id"], columns["number"], "events")
        by_place = pa.table(columns).take(compute.sort_indices(self.numbered.places))
        for name in ("source", "line"):
            filled = compute.fill_null(by_place.column(name), _NO_PLACE)  # a source without places sorts first
            by_place = by_place.set_column(by_place.column_names.index(name), name, filled)
        # The sort is stable, and the numbers of a room follow the same order. So positions ascend with the numbers.
        order = compute.sort_indices(by_place, sort_keys=_ORDER)  # null comes last
        backfilled = by_place.column("backfilled").combine_chunks().take(order)
        self._forward = order.filter(compute.invert(backfilled))
        self._backward = order.filter(backfilled)
        self.counts = {EVENTS.name: len(self._forward), BACKFILL.name: len(self._backward)}
        """The number of IDs that are needed, by stream."""
        self.by_room = _by_room(by_place)
        """Room -> (number of events, number of rejected events, number of events whose state is unknown)."""

    def give(self, ids: Mapping[str, Sequence[int]]) -> None:
        """Sets the positions of the events. ``ids`` maps each of the two streams to its reserved IDs, positive and ascending."""
        import pyarrow as pa  # noqa: PLC0415 - executors only
        from pyarrow import compute  # noqa: PLC0415

        places = pa.concat_arrays([self._forward, self._backward])
        backward = (-number for number in reversed(ids.get(BACKFILL.name, ())))
        positions = pa.array([*ids.get(EVENTS.name, ()), *backward], pa.int64())
        self.numbered.give(positions.take(compute.sort_indices(places)))


def _columns(pack: Pack, frame: str, names: Sequence[str]) -> list[pa.Array]:
    """Returns the columns ``names`` of a frame, each as one array over all rows of the pack."""
    import pyarrow as pa  # noqa: PLC0415 - executors only

    types = ROOM_FRAMES[frame].arrow()
    found: list[list[pa.Array]] = [[] for _ in names]
    for batch in pack.batches(frame):
        for column, name in zip(found, names, strict=True):
            # Copied, because a slice would keep all other columns of its batch in memory.
            column.append(pa.concat_arrays([batch.column(name), pa.array([], types.field(name).type)]))
    return [
        pa.concat_arrays(column) if column else pa.array([], types.field(name).type)
        for column, name in zip(found, names, strict=True)
    ]


def _by_room(events: pa.Table) -> Mapping[str, tuple[int, int, int]]:
    """Returns room -> (number of events, number of rejected events, number of events with unknown state)."""
    import pyarrow as pa  # noqa: PLC0415 - executors only
    from pyarrow import compute  # noqa: PLC0415

    counted = (
        pa.table(
            {
                "room": events.column("room_id"),
                "rejected": compute.cast(compute.is_valid(events.column("rejected_reason")), pa.int64()),
                "unresolved": compute.cast(events.column("state_unresolved"), pa.int64()),
            }
        )
        .group_by("room")
        .aggregate([("room", "count"), ("rejected", "sum"), ("unresolved", "sum")])
    )
    names = ("room", "room_count", "rejected_sum", "unresolved_sum")
    return {room: tuple(rest) for room, *rest in zip(*(counted.column(n).to_pylist() for n in names), strict=True)}


# --- rows of tables ---------------------------------------------------------------------------------------------------


class _Kind(StrEnum):
    """The way in which a column of a table is made from a column of the frame for this table."""

    GROUP = "group"  # the ID of the state group whose number the frame has
    POSITION = "position"  # the position of the event whose number the frame has
    WRITER = "writer"  # the name of the job's writer
    TEXTS = "texts"
    SMALLINT = "smallint"
    INTEGER = "integer"


#: Column of a table -> how it is made, and from which column of the frame. All others are columns of the frame.
_MADE = {
    "id": (_Kind.GROUP, "number"),
    "prev_group": (_Kind.GROUP, "prev_number"),
    "chain": (_Kind.GROUP, "chain_number"),
    "state_group": (_Kind.GROUP, "group_number"),
    "stream_ordering": (_Kind.POSITION, "number"),
    "first": (_Kind.POSITION, "first_number"),
    "last": (_Kind.POSITION, "last_number"),
    "instance_name": (_Kind.WRITER, ""),
    "auth_event_ids": (_Kind.TEXTS, "auth_event_ids"),
    "hops": (_Kind.SMALLINT, "hops"),
    "keys": (_Kind.INTEGER, "keys"),
    "rows_to_read": (_Kind.INTEGER, "rows_to_read"),
}


def table_rows(frame: str, batch: pa.RecordBatch, writer: str, positions: Numbered, groups: Numbered) -> pa.RecordBatch:
    """Converts rows of a frame to rows of the database table for this frame."""
    import pyarrow as pa  # noqa: PLC0415 - executors only
    from pyarrow import compute  # noqa: PLC0415

    def column(kind: _Kind, name: str) -> pa.Array:
        match kind:
            case _Kind.GROUP | _Kind.POSITION:
                numbered = groups if kind is _Kind.GROUP else positions
                found = numbered.ids(batch.column("room_id"), batch.column(name))
                return compute.fill_null(found, 0) if name == "first_number" else found  # 0: below all live events
            case _Kind.WRITER:
                return pa.repeat(pa.scalar(writer, pa.string()), batch.num_rows)
            case _Kind.TEXTS:
                return varchar_arrays(batch.column(name))
            case _Kind.SMALLINT:
                return batch.column(name).cast(pa.int16())
            case _Kind.INTEGER:
                return batch.column(name).cast(pa.int32())

    names = COLUMNS[str(ROOM_FRAMES[frame].table)]
    return pa.RecordBatch.from_pydict(
        {name: column(*_MADE[name]) if name in _MADE else batch.column(name) for name in names}
    )
