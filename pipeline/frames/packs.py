"""Divides events into packs, and brings the events of a pack to the task that computes the pack.

A *pack* is a set of whole rooms that one task computes. Tasks that read events cut them into *parcels*: some hundred
rows for one pack, as one binary value. Spark shuffles parcels. So Spark's JVM handles few values. Events stay Arrow
columns from the parser to the computation of rooms.

Runs in Spark's driver and executors, without Django.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from zlib import crc32

from pipeline.frames.choose_events import choose_events, in_order
from pipeline.frames.room_events import Held
from pipeline.frames.schemas import EVENTS, SET_ASIDE
from streams.runtime.batches import bounded_batches

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

__all__ = ["EVENTS_PER_PACK", "PARCELS", "Packs", "chosen_events", "event_parcels", "mark_parcels"]

EVENTS_PER_PACK = 20_000
"""The approximate number of events of a pack. A room with more events is a pack of its own."""
PARCELS = "pack int, marks boolean, content binary"
"""The columns of parcels. ``marks`` tells marks from events; ``content`` is an Arrow record batch without its schema."""
#: The size of the rows that are cut at once. A larger size yields larger parcels.
_PARCEL_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Packs:
    """The numbers of packs. The first packs have one large room each, the largest room first. Then ``small`` packs follow.

    ``large`` maps the ID of each large room to the number of its pack. All other rooms are in the ``small`` packs: a
    hash of the room ID selects the pack.
    """

    large: Mapping[str, int]
    small: int

    @classmethod
    def of(cls, large: Sequence[tuple[str, int]], events_of_small: int, events_per_pack: int) -> Packs:
        """Returns the numbers of the packs. ``large`` has (room ID, number of events) of each large room.

        ``events_of_small`` is the number of events in all other rooms together.
        """
        names = [room_id for room_id, _ in sorted(large, key=lambda room: (-room[1], room[0]))]
        small = -(-events_of_small // events_per_pack)
        return cls({room_id: number for number, room_id in enumerate(names)}, small)

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


def event_parcels(packs: Packs) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function that cuts batches of events into parcels."""
    return lambda batches: _parcels(packs, batches, marks=False)


def mark_parcels(packs: Packs) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function that cuts batches of marks into parcels."""
    return lambda batches: _parcels(packs, batches, marks=True)


def _parcels(packs: Packs, batches: Iterable[pa.RecordBatch], *, marks: bool) -> Iterator[pa.RecordBatch]:
    filled = (batch for batch in batches if batch.num_rows)
    return (_cut(packs, some, marks=marks) for some in bounded_batches(filled, attrgetter("nbytes"), _PARCEL_BYTES))


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


def chosen_events(parcels: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Chooses the events of a pack. Yields one batch with the events that are set aside, then batches with the chosen events.

    The first batch has the columns of ``SET_ASIDE``, all others have those of ``EVENTS``. The chosen events are sorted
    by room, and then by their order in the room. The rows of a pack with more than ``BYTES_IN_MEMORY`` bytes are held
    in a file.
    """
    import pyarrow as pa  # noqa: PLC0415 - executors only

    marks = pa.schema([(name, pa.string()) for name in ("room_id", "event_id", "mark")])
    events, held, marked = EVENTS.arrow(), Held(), []
    try:
        for batch in parcels:
            for is_marks, content in zip(batch.column("marks").to_pylist(), batch.column("content"), strict=True):
                if is_marks:
                    marked.append(pa.ipc.read_record_batch(content.as_buffer(), marks))
                else:
                    held.add(pa.ipc.read_record_batch(content.as_buffer(), events))
        if not held:
            yield pa.RecordBatch.from_pylist([], schema=SET_ASIDE.arrow())
            return
        found = held.batches()
        if held.in_memory:
            found, held = [pa.concat_batches(found)], Held()  # the small batches are not needed any more
        chosen = choose_events(found, pa.Table.from_batches(marked, schema=marks))
        yield chosen.set_aside
        yield from in_order(found, chosen.order)
    finally:
        held.close()
