"""Groups batches of the frame ``events`` into rooms, for the computation by ``events.history``.

A task receives its events sorted by room. ``rooms_of`` divides these events into rooms, and holds one room at a time. A
small room is held in memory. A large room is held in a temporary file that is mapped into memory. The file has no name,
so the operating system removes it even if the process is killed.

Runs in Spark's executors, without Django.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby
from typing import IO, TYPE_CHECKING, Any

from events.format.parsing import ParsedEvent
from pipeline.frames.event_columns import parsed_events
from state.rules.room_versions import room_version

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BACKWARD", "BYTES_IN_MEMORY", "Held", "RoomEvents", "rooms_of", "temporary_file"]

BACKWARD = -1
"""A stream ordering for events that are to be backfilled. Only its sign matters."""
BYTES_IN_MEMORY = 64 * 1024 * 1024
"""If the batches of a room or a pack have more bytes, they are held in a file."""


class RoomEvents:
    """The events of one room, in order. Implements ``events.history.chunked_walk.EventSource``."""

    def __init__(self, batches: Sequence[pa.RecordBatch], stream_ordering: int | None = None) -> None:
        """Takes sorted batches with the columns of ``EVENTS``. No batch may be empty.

        If ``stream_ordering`` is given, all events get this stream ordering in place of their own.
        """
        self.batches = batches
        self._stream_ordering = stream_ordering
        self._ends = list(accumulate(batch.num_rows for batch in batches))
        self.room_id: str = batches[0].column("room_id")[0].as_py()
        self.version = room_version(batches[0].column("room_version")[0].as_py())

    def __len__(self) -> int:
        return self._ends[-1]

    def event_ids(self) -> Iterator[str]:
        return (event_id for batch in self.batches for event_id in batch.column("event_id").to_pylist())

    def creations(self) -> Iterator[ParsedEvent]:
        from pyarrow import compute  # noqa: PLC0415 - executors only

        for batch in self.batches:
            creates = compute.indices_nonzero(compute.equal(batch.column("type"), "m.room.create"))
            yield from (event for event in self._parsed(_rows(batch, creates.to_pylist())) if not event.outlier)

    def fetch(self, numbers: Sequence[int]) -> Sequence[ParsedEvent]:
        found: dict[int, ParsedEvent] = {}
        for place, batch, rows in self._by_batch(numbers):
            found.update(zip((place + row for row in rows), self._parsed(_rows(batch, rows)), strict=True))
        return [found[number] for number in numbers]

    def names(self, numbers: Sequence[int]) -> Sequence[str]:
        found: dict[int, str] = {}
        for place, batch, rows in self._by_batch(numbers):
            names = batch.column("event_id").take(_numbers(rows)).to_pylist()
            found.update(zip((place + row for row in rows), names, strict=True))
        return [found[number] for number in numbers]

    def column(self, name: str) -> pa.Array:
        import pyarrow as pa  # noqa: PLC0415 - executors only

        return pa.concat_arrays([batch.column(name) for batch in self.batches])

    def _parsed(self, batch: pa.RecordBatch) -> list[ParsedEvent]:
        return parsed_events(batch, self._stream_ordering)

    def _by_batch(self, numbers: Iterable[int]) -> Iterator[tuple[int, pa.RecordBatch, Sequence[int]]]:
        """Groups events by the batch that holds them. ``numbers`` are the events' numbers within the room.

        Yields (number of the batch's first event, batch, indexes in the batch) for each such batch.
        """
        for at, some in groupby(sorted(set(numbers)), key=lambda number: bisect_right(self._ends, number)):
            first = self._ends[at - 1] if at else 0
            yield first, self.batches[at], [number - first for number in some]


def _rows(batch: pa.RecordBatch, rows: Sequence[int]) -> pa.RecordBatch:
    """Returns the rows of a batch with the indexes ``rows``, without the column ``json``. Consecutive rows are not copied."""
    narrow = batch.drop_columns(["json"])
    if rows and rows[-1] - rows[0] == len(rows) - 1:
        return narrow.slice(rows[0], len(rows))
    return narrow.take(_numbers(rows))


def _numbers(rows: Sequence[int]) -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415 - executors only

    return pa.array(rows, pa.int64())


def rooms_of(batches: Iterable[pa.RecordBatch], stream_ordering: int | None = None) -> Iterator[RoomEvents]:
    """Yields the rooms in ``batches``, which must be sorted by room. Use a room only until the next one is requested."""
    room_id, held = None, Held()
    try:
        for batch in batches:
            first = 0
            for found, same in groupby(batch.column("room_id").to_pylist()):
                rows = sum(1 for _ in same)
                if found != room_id and held:
                    yield RoomEvents(held.batches(), stream_ordering)
                    held.close()
                    held = Held()
                room_id = found
                held.add(batch.slice(first, rows))
                first += rows
        if held:
            yield RoomEvents(held.batches(), stream_ordering)
    finally:
        held.close()


def temporary_file() -> IO[bytes]:
    """Opens a file without a name, in the first of the folders that Spark names to its workers for temporary files."""
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
    return tempfile.TemporaryFile(dir=folder)


class Held:
    """The batches of one room or one pack, in memory or in a file."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: Any = None

    def __bool__(self) -> bool:
        return bool(self._batches) or self._file is not None

    @property
    def in_memory(self) -> bool:
        """True if the batches are in memory, and not in a file."""
        return self._file is None

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds a batch. If all batches together become large, they are moved to a file."""
        if self._writer is not None:
            self._writer.write_batch(batch)
            return
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._bytes > BYTES_IN_MEMORY:
            self._to_file()

    def _to_file(self) -> None:
        import pyarrow as pa  # noqa: PLC0415 - executors only

        self._file = temporary_file()
        self._writer = pa.ipc.new_file(self._file, self._batches[0].schema)
        for batch in self._batches:
            self._writer.write_batch(batch)
        self._batches = []

    def batches(self) -> Sequence[pa.RecordBatch]:
        """Returns all batches. After this call, ``add`` may not be called any more."""
        if self._file is None:
            return self._batches
        import pyarrow as pa  # noqa: PLC0415 - executors only

        self._writer.close()
        self._file.flush()
        mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        reader = pa.ipc.open_file(pa.py_buffer(mapped))
        return [reader.get_batch(number) for number in range(reader.num_record_batches)]

    def close(self) -> None:
        """Removes the file. Its mapped memory is freed with the last batch that uses it."""
        if self._file is not None:
            self._file.close()
