"""Divides events into packs, and brings the events of a pack to the task that computes the pack.

A *pack* is a set of whole rooms that one task computes. Tasks that read events cut them into *parcels*: some hundred
rows for one pack, as one binary value. Spark shuffles parcels. So Spark's JVM handles few values. Events stay Arrow
columns from the parser to the computation of rooms.

Runs in Spark's driver and executors, without Django.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from zlib import crc32

from pipeline.frames.choose_events import NAMED, Chosen, choose_events, in_order, marks_table
from pipeline.frames.room_events import Held
from pipeline.frames.schemas import EVENTS
from pipeline.frames.task_rows import BatchFunction
from streams.runtime.batches import bounded_batches

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

__all__ = [
    "COUNTS",
    "EVENTS_PER_PACK",
    "PARCELS",
    "PackEvents",
    "Packs",
    "count_rooms",
    "event_parcels",
    "large_rooms",
    "mark_parcels",
    "pack_events",
    "shuffled_pack",
]

EVENTS_PER_PACK = 20_000
"""The approximate number of events of a pack. A room with more events is a pack of its own."""
PARCELS = "pack int, marks boolean, content binary"
"""The columns of parcels. ``marks`` tells marks from events; ``content`` is an Arrow record batch without its schema."""
COUNTS = "room_id string, events bigint, names_ids boolean"
"""The columns of counts of rooms. ``names_ids`` is true if servers choose the event IDs of the room."""
#: The size of the rows that are cut at once. A larger size yields larger parcels.
_PARCEL_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Packs:
    """The numbers of packs. The first packs have one large room each, the largest room first. Then ``small`` packs follow.

    ``large`` maps the ID of each large room to the number of its pack. All other rooms are in the ``small`` packs: a
    hash of the room ID selects the pack. ``events`` is the number of events of all rooms. ``names_ids`` is true if servers
    choose the event IDs of at least one room.
    """

    large: Mapping[str, int]
    small: int
    events: int = 0
    names_ids: bool = False

    @classmethod
    def of(cls, counts: Iterable[tuple[str | None, int, bool]], events_per_pack: int) -> Packs:
        """Returns the numbers of the packs. ``counts`` yields rows of ``large_rooms``."""
        found = list(counts)
        large = [(room_id, events) for room_id, events, _ in found if room_id is not None]
        names = [room_id for room_id, _ in sorted(large, key=lambda room: (-room[1], room[0]))]
        small = -(-sum(events for room_id, events, _ in found if room_id is None) // events_per_pack)
        return cls(
            {room_id: number for number, room_id in enumerate(names)},
            small,
            sum(events for _, events, _ in found),
            any(names_ids for *_, names_ids in found),
        )

    def __len__(self) -> int:
        return max(len(self.large) + self.small, 1)

    def number(self, room_id: str) -> int:
        found = self.large.get(room_id)
        return len(self.large) + crc32(room_id.encode()) % max(self.small, 1) if found is None else found

    def numbers(self, rooms: pa.Array) -> np.ndarray[Any, Any]:
        """Returns for each row the number of the pack of its room. ``rooms`` is the column of room IDs."""
        import numpy as np  # noqa: PLC0415 - executors only

        coded = rooms.dictionary_encode()
        numbers = np.array([self.number(room_id) for room_id in coded.dictionary.to_pylist()], dtype=np.int32)
        found: np.ndarray[Any, Any] = numbers[coded.indices.to_numpy()]
        return found


def event_parcels(packs: Packs, done: Collection[int] = ()) -> BatchFunction:
    """Returns a function that cuts batches of events into parcels. Parcels of packs in ``done`` are left out."""
    return lambda batches: _parcels(packs, batches, done, marks=False)


def mark_parcels(packs: Packs, done: Collection[int] = ()) -> BatchFunction:
    """Returns a function that cuts batches of marks into parcels. Parcels of packs in ``done`` are left out."""
    return lambda batches: _parcels(packs, batches, done, marks=True)


def _parcels(
    packs: Packs, batches: Iterable[pa.RecordBatch], done: Collection[int], *, marks: bool
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa  # noqa: PLC0415 - executors only
    from pyarrow import compute  # noqa: PLC0415

    filled = (batch for batch in batches if batch.num_rows)
    left_out = pa.array(done, pa.int32())
    for some in bounded_batches(filled, attrgetter("nbytes"), _PARCEL_BYTES):
        cut = _cut(packs, some, marks=marks)
        yield cut.filter(compute.invert(compute.is_in(cut.column("pack"), left_out))) if done else cut


def _cut(packs: Packs, batches: Sequence[pa.RecordBatch], *, marks: bool) -> pa.RecordBatch:
    import numpy as np  # noqa: PLC0415 - executors only
    import pyarrow as pa  # noqa: PLC0415

    whole = pa.concat_batches(batches)
    numbers = packs.numbers(whole.column("room_id"))
    order = np.argsort(numbers, kind="stable")
    by_pack, numbers = whole.take(pa.array(order)), numbers[order]
    starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    contents = [by_pack.slice(start, end - start).serialize().to_pybytes() for start, end in pairwise(starts)]
    columns = {
        "pack": pa.array(numbers[starts[:-1]], pa.int32()),
        "marks": pa.repeat(pa.scalar(marks), len(contents)),
        "content": pa.array(contents, pa.binary()),
    }
    return pa.RecordBatch.from_pydict(columns)


@dataclass(frozen=True, slots=True)
class PackEvents:
    """All events of a pack, in any order, with the columns of ``EVENTS``; and the marks of events in other packs."""

    batches: Sequence[pa.RecordBatch]
    marks: pa.Table

    def choose(self, known: Callable[[Sequence[pa.RecordBatch]], pa.Table] | None = None) -> Chosen:
        """Chooses the events to compute. ``known`` returns marks of what the database has of the events (``stored_marks``)."""
        import pyarrow as pa  # noqa: PLC0415 - executors only

        return choose_events(
            self.batches, self.marks if known is None else pa.concat_tables([self.marks, known(self.batches)])
        )

    def rows(self, numbers: np.ndarray[Any, Any]) -> Iterator[pa.RecordBatch]:
        """Yields the events with these row numbers, in the order of the numbers."""
        return in_order(self.batches, numbers)


@contextmanager
def pack_events(batches: Iterable[pa.RecordBatch], marks: Sequence[pa.Table] = ()) -> Iterator[PackEvents | None]:
    """Holds the events of a pack during the block, in a file if they have more than ``BYTES_IN_MEMORY`` bytes.

    ``marks`` is read after ``batches``. Yields None if there are no events.
    """
    import pyarrow as pa  # noqa: PLC0415 - executors only

    held = Held()
    try:
        for batch in batches:
            held.add(batch)
        if not held:
            yield None
            return
        found = held.batches()
        if held.in_memory:
            found, held = [pa.concat_batches(found)], Held()  # the small batches are not needed any more
        yield PackEvents(found, pa.concat_tables([marks_table(()), *marks]))
    finally:
        held.close()


@contextmanager
def shuffled_pack(parcels: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, PackEvents] | None]:
    """Holds the events in the parcels of one pack, as ``pack_events`` does. Yields (number of the pack, its events)."""
    import pyarrow as pa  # noqa: PLC0415 - executors only

    schemas = {False: EVENTS.arrow(), True: marks_table(()).schema}
    numbers: set[int] = set()
    marks: list[pa.Table] = []

    def events() -> Iterator[pa.RecordBatch]:
        for batch in parcels:
            numbers.update(batch.column("pack").to_pylist())
            for is_marks, content in zip(batch.column("marks").to_pylist(), batch.column("content"), strict=True):
                found = pa.ipc.read_record_batch(content.as_buffer(), schemas[is_marks])
                if is_marks:
                    marks.append(pa.Table.from_batches([found]))
                else:
                    yield found

    with pack_events(events(), marks) as pack:
        yield None if pack is None else (numbers.pop(), pack)


# --- sizes of rooms ---------------------------------------------------------------------------------------------------


def count_rooms(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the numbers of events of the rooms in each batch (``COUNTS``). The batches have ``room_id`` and ``room_version``."""
    import pyarrow as pa  # noqa: PLC0415 - executors only
    from pyarrow import compute  # noqa: PLC0415

    for batch in batches:
        if batch.num_rows:
            named = compute.is_in(batch.column("room_version"), value_set=pa.array(NAMED))
            table = pa.table({"room_id": batch.column("room_id"), "names_ids": named})
            counted = table.group_by("room_id").aggregate([([], "count_all"), ("names_ids", "any")])
            found = counted.select(["room_id", "count_all", "names_ids_any"])
            yield from found.rename_columns(["room_id", "events", "names_ids"]).to_batches()


def large_rooms(counts: Iterable[pa.RecordBatch], events_per_pack: int) -> Iterator[pa.RecordBatch]:
    """Adds up counts of rooms. Yields the sums of large rooms, and one sum, without a room ID, of all other rooms.

    A room is large if it has more than ``events_per_pack`` events. ``counts`` must have all counts of its rooms.
    """
    from pyarrow import compute  # noqa: PLC0415

    sums: list[pa.RecordBatch] = []
    for some in bounded_batches(counts, attrgetter("nbytes"), _PARCEL_BYTES):
        sums = _sums([*sums, *some]).to_batches()
    if sums:
        rooms = _sums(sums)
        large = compute.if_else(compute.greater(rooms["events"], events_per_pack), rooms["room_id"], None)
        yield from _sums(rooms.set_column(0, "room_id", large).to_batches()).to_batches()


def _sums(counts: Sequence[pa.RecordBatch]) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415 - executors only

    grouped = pa.Table.from_batches(counts).group_by("room_id").aggregate([("events", "sum"), ("names_ids", "any")])
    names = ["room_id", "events", "names_ids"]
    return grouped.select(["room_id", "events_sum", "names_ids_any"]).rename_columns(names)
