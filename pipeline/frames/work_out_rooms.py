"""Computes the rows of rooms from their events, as frames. Runs in Spark's driver and executors, without Django.

First a job counts the events of rooms, and the driver divides the rooms into packs. Then tasks cut the events into
parcels, and Spark brings the parcels of each pack together (``pipeline.frames.packs``). A task for each pack chooses the
events to compute (``choose_events``), and computes its rooms one after the other (``room_rows``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from events.history.rows import EVENTS_PER_CHUNK
from pipeline.frames import kept
from pipeline.frames.bundles import BUNDLES, Contents, bundled, contents_of, describing, unbundled
from pipeline.frames.choose_events import KEYS_OF_COPIES, MARKS, copies_elsewhere
from pipeline.frames.packs import (
    COUNTS,
    EVENTS_PER_PACK,
    PARCELS,
    PackEvents,
    Packs,
    count_rooms,
    event_parcels,
    large_rooms,
    mark_parcels,
    shuffled_pack,
)
from pipeline.frames.read_events import SourceFrames
from pipeline.frames.room_events import BACKWARD, rooms_of
from pipeline.frames.room_frames import RoomFrames
from pipeline.frames.room_rows import room_rows
from pipeline.frames.schemas import EVENTS, ROOM_FRAMES, SET_ASIDE
from pipeline.frames.stored import KnownKeys
from pipeline.frames.task_rows import BatchFunction, PersistedRows, TaskRows, as_read, mapped

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["EVENTS_PER_PACK", "WorkedOutRooms", "by_pack", "packs_of", "work_out_rooms"]

_KIND = "rows of rooms"


@dataclass(frozen=True)
class WorkedOutRooms(RoomFrames):
    """The rows of rooms that were computed from events.

    All frames are read from ``bundles``. Spark computes the bundles again each time a frame is used. Before you use
    several frames, call ``persist`` or ``keep``.
    """

    set_aside: DataFrame
    """The events that were not chosen (``SET_ASIDE``)."""
    bundles: DataFrame
    """All rows, packed: a partition for each pack."""
    map_bundles: Callable[[BatchFunction, str], DataFrame]
    """``map_bundles(function, schema)`` runs a function on the bundles of each pack, in the task that computes them.

    ``bundles.mapInArrow`` would pass all rows through Spark's JVM twice. But if bundles are persisted,
    ``bundles.mapInArrow`` reads them, while ``map_bundles`` computes them again."""
    in_files: Contents | None = None
    """The contents of the files from which the bundles are read, so that nothing is computed when the bundles are used.
    None if the bundles are not in files."""

    @classmethod
    def of_bundles(
        cls, map_bundles: Callable[[BatchFunction, str], DataFrame], *, in_files: Contents | None = None
    ) -> Self:
        """Returns the frames whose rows are in bundles. ``map_bundles`` runs a function on the bundles."""
        bundles = map_bundles(as_read, BUNDLES)
        frames = {name: unbundled(bundles, name) for name in ROOM_FRAMES}
        set_aside = unbundled(bundles, SET_ASIDE.name)
        return cls(**frames, set_aside=set_aside, bundles=bundles, map_bundles=map_bundles, in_files=in_files)

    def contents(self) -> Contents:
        """Returns the number of events and the IDs of the rooms. If the rows are not in files, runs a Spark job over all rows."""
        return self.in_files or contents_of(self.bundles)

    def persist(self) -> Self:
        """Tells Spark to keep the rows on the executors' disks once they are computed. Returns this object."""
        from pyspark import StorageLevel  # noqa: PLC0415 - drivers only

        self.bundles.persist(StorageLevel.DISK_ONLY)
        return self

    def unpersist(self) -> None:
        """Frees the disk space that ``persist`` took."""
        self.bundles.unpersist()

    def keep(self, folder: str | Path) -> Self:
        """Writes the rows as Parquet to a new folder, a path or URL. Returns frames that read this folder.

        The files hold bundles, which only the same version of this program can read. If other tools read the rows,
        write each frame to files instead. Raises ``UnusableArguments`` if the folder has files, unless a killed
        ``keep`` left them.
        """
        kept.prepare(folder)
        kept.finish(folder, self.map_bundles(kept.writing(folder, describing), kept.FILES), {"kind": _KIND})
        return self.kept(self.bundles.sparkSession, folder)

    @classmethod
    def kept(cls, spark: SparkSession, folder: str | Path) -> Self:
        """Returns the frames of a folder that ``keep`` has finished. Raises ``UnusableArguments`` for any other folder."""
        names = [column.split()[0] for column in BUNDLES.split(", ")]
        found = kept.open_kept(spark, folder, _KIND)
        return cls.of_bundles(partial(found.rows.mapped, names), in_files=Contents.of_descriptions(found.descriptions))


def work_out_rooms(
    events: DataFrame | SourceFrames,
    *,
    known: KnownKeys | None = None,
    as_history: bool = False,
    chunk: int = EVENTS_PER_CHUNK,
) -> WorkedOutRooms:
    """Computes the rows of rooms from events.

    ``events`` is the result of ``read_events``, or a frame with the columns of ``EVENTS``.

    Of several copies of an event, one copy is used. ``known`` is a database. Events that this database
    has, and all events of rooms that it has, are not computed but set aside. Do not close ``known`` while the frames
    are used. If ``as_history`` is true, all events are backfilled. A room with more than ``chunk`` events is computed
    in chunks of this size. The size of the chunks does not change the rows.

    A Spark job counts the events of each room at once. The rows are computed when a frame is used. So the events are
    read several times. If it is expensive to read them, write them to files (``SourceFrames.keep``) or persist them.
    """
    rows = events.event_rows if isinstance(events, SourceFrames) else events
    shuffled = by_pack(rows, packs_of(rows, EVENTS_PER_PACK))
    work = _Work(None if known is None else known.rows.marks, as_history, chunk)

    def map_bundles(function: BatchFunction, schema: str) -> DataFrame:
        return shuffled.mapInArrow(lambda parcels: function(_work_out(work, parcels)), schema)

    return WorkedOutRooms.of_bundles(map_bundles)


# --- packs ------------------------------------------------------------------------------------------------------------


def packs_of(rows: TaskRows | PersistedRows | DataFrame, events_per_pack: int) -> Packs:
    """Counts the events of each room by a Spark job, and divides the rooms into packs."""
    counts = mapped(rows, ["room_id", "room_version"], count_rooms, COUNTS)
    # Not by ``groupBy``: the JVM would take a second of CPU time to compile it, even for a small import.
    sums = counts.repartition("room_id").mapInArrow(lambda found: large_rooms(found, events_per_pack), COUNTS)
    return Packs.of(map(tuple, sums.collect()), events_per_pack)


def by_pack(rows: TaskRows | PersistedRows | DataFrame, packs: Packs, done: Collection[int] = ()) -> DataFrame:
    """Returns the parcels of the events: the partition with the number of a pack has all parcels of the pack.

    Packs in ``done`` have no parcels.
    """
    parcels = mapped(rows, EVENTS.names, event_parcels(packs, done), PARCELS)
    if packs.names_ids:
        schema = ", ".join(f"{name} {EVENTS.columns[name].type}" for name in KEYS_OF_COPIES)
        keys = mapped(rows, KEYS_OF_COPIES, as_read, schema)
        marks = keys.repartition("event_id").mapInArrow(_marks_of_copies, MARKS)
        parcels = parcels.unionByName(marks.mapInArrow(mark_parcels(packs, done), PARCELS))
    # ``repartitionById`` uses the pack's number as the partition's number. Partitioning by hash would put several packs
    # into one partition.
    return parcels.repartitionById(len(packs), "pack")


def _marks_of_copies(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa  # noqa: PLC0415 - executors only

    keys = list(batches)
    if keys:
        yield from copies_elsewhere(pa.Table.from_batches(keys)).to_batches()


# --- rows -------------------------------------------------------------------------------------------------------------


def _work_out(work: _Work, parcels: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Computes the rooms of one pack from its parcels, and yields their rows as bundles."""
    with shuffled_pack(parcels) as found:
        if found is not None:
            number, events = found
            yield from bundled(number, _rows(events, work))


def _rows(events: PackEvents, work: _Work) -> Iterator[tuple[str, pa.RecordBatch]]:
    chosen = events.choose(work.known)
    yield SET_ASIDE.name, chosen.set_aside
    for room in rooms_of(events.rows(chosen.order), BACKWARD if work.as_history else None):
        yield from room_rows(room, work.chunk)


@dataclass(frozen=True, slots=True)
class _Work:
    """The arguments of ``work_out_rooms`` that its tasks need."""

    known: Callable[[Sequence[pa.RecordBatch]], pa.Table] | None
    as_history: bool
    chunk: int
