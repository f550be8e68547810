"""Packs rows of a frame into bundles: each bundle is one binary value, so that Spark handles few values.

A task that computes rooms makes rows of the 13 frames of rooms, and of the frame ``set_aside``. The task yields all
these rows as bundles. A bundle has some thousand rows of one frame, from one room or several rooms. ``unbundled``
returns the rows of one frame.

Runs in Spark's executors, without Django.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from pipeline.frames.schemas import ROOM_FRAMES, SET_ASIDE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["BUNDLES", "Contents", "bundled", "contents_of", "describing", "gathered", "unbundled"]

BUNDLES = "pack bigint, frame string, rows bigint, content binary"
"""The columns of bundles. ``pack`` is the number of the pack, ``content`` an Arrow record batch without its schema."""
#: The frames that come in bundles.
_FRAMES = {**ROOM_FRAMES, SET_ASIDE.name: SET_ASIDE}
_ROWS = 5_000
_BYTES = 2 * 1024 * 1024


def gathered(rows: Iterable[tuple[str, pa.RecordBatch]]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yields the rows in batches of some thousand rows or some megabytes. So many small rooms do not make many small batches.

    ``rows`` yields (name of the frame, batch of its rows). A batch may exceed the limits by one batch of ``rows``.
    """
    import pyarrow as pa  # noqa: PLC0415 - executors only

    waiting: dict[str, list[pa.RecordBatch]] = {name: [] for name in _FRAMES}
    sizes = dict.fromkeys(_FRAMES, (0, 0))
    for name, batch in rows:
        if batch.num_rows:
            waiting[name].append(batch)
            count, size = sizes[name]
            sizes[name] = count + batch.num_rows, size + batch.nbytes
            if sizes[name][0] >= _ROWS or sizes[name][1] >= _BYTES:
                yield name, pa.concat_batches(waiting[name])
                waiting[name], sizes[name] = [], (0, 0)
    for name, left in waiting.items():
        if left:
            yield name, pa.concat_batches(left)


def bundled(pack: int, rows: Iterable[tuple[str, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Yields the rows as bundles, one bundle in each batch. ``rows`` yields (name of the frame, batch of its rows)."""
    import pyarrow as pa  # noqa: PLC0415 - executors only

    for name, batch in gathered(rows):
        content = batch.serialize()
        ends = pa.array([0, content.size], pa.int32()).buffers()[1]
        columns = {
            "pack": [pack],
            "frame": [name],
            "rows": [batch.num_rows],
            "content": pa.Array.from_buffers(pa.binary(), 1, [None, ends, content]),  # not copied
        }
        yield pa.RecordBatch.from_pydict(columns)


def unbundled(bundles: DataFrame, name: str) -> DataFrame:
    """Returns the frame ``name``, with its rows from all bundles."""
    schema = _FRAMES[name]

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 - executors only

        arrow = schema.arrow()
        for batch in batches:
            for content in batch.column("content"):
                yield pa.ipc.read_record_batch(content.as_buffer(), arrow)

    return bundles.where(f"frame = '{name}'").select("content").mapInArrow(unpack, schema.spark())


# --- contents ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of some bundles: the number of events, and the IDs of the rooms."""

    events: int
    room_ids: Sequence[str]

    @classmethod
    def of_descriptions(cls, descriptions: Iterable[str]) -> Self:
        """Returns the contents of all bundles for which ``describing`` wrote these descriptions."""
        found = [json.loads(text) for text in descriptions]
        return cls(
            sum(bundles["events"] for bundles in found), [room for bundles in found for room in bundles["rooms"]]
        )


def describing(batches: Iterator[pa.RecordBatch], descriptions: list[str]) -> Iterator[pa.RecordBatch]:
    """Yields the bundles unchanged. At the end, appends a JSON text with their contents (``Contents``) to ``descriptions``."""
    import pyarrow as pa  # noqa: PLC0415 - executors only

    events, room_ids = 0, list[str]()
    for batch in batches:
        for name, rows, content in zip(*map(batch.column, ("frame", "rows", "content")), strict=True):
            events += rows.as_py() if name.as_py() == "events" else 0
            if name.as_py() == "rooms":
                rooms = pa.ipc.read_record_batch(content.as_buffer(), ROOM_FRAMES["rooms"].arrow())
                room_ids += rooms.column("room_id").to_pylist()
        yield batch
    descriptions.append(json.dumps({"events": events, "rooms": room_ids}))


def contents_of(bundles: DataFrame) -> Contents:
    """Computes the contents of bundles by one Spark job.

    Only the rows of the frame ``rooms`` are passed to Python. For the frame ``events``, only the row count of each
    bundle is passed.
    """

    def describe(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 - executors only

        descriptions: list[str] = []
        for _ in describing(batches, descriptions):
            pass
        yield pa.RecordBatch.from_pydict({"description": descriptions})

    counted = bundles.where("frame IN ('events', 'rooms')")
    without_events = counted.selectExpr("frame", "rows", "if(frame = 'rooms', content, null) AS content")
    described = without_events.mapInArrow(describe, "description string").collect()
    return Contents.of_descriptions(row.description for row in described)
