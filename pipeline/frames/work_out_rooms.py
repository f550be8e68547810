"""Computes the rows of rooms from their events, as frames. Runs in Spark's driver and executors, without Django.

First a job counts the events of rooms, and the driver divides the rooms into packs. Then tasks cut the events into
parcels, and Spark brings the parcels of each pack together (``pipeline.frames.packs``). A task for each pack chooses the
events to compute (``choose_events``), and computes its rooms one after the other (``room_rows``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from events.history.rows import EVENTS_PER_CHUNK
from pipeline.frames import kept
from pipeline.frames.bundles import BUNDLES, Contents, bundled, contents_of, describing, unbundled
from pipeline.frames.choose_events import VERSION_DIFFERS, Mark
from pipeline.frames.packs import EVENTS_PER_PACK, PARCELS, Packs, chosen_events, event_parcels, mark_parcels
from pipeline.frames.read_events import SourceFrames
from pipeline.frames.room_events import rooms_of
from pipeline.frames.room_frames import RoomFrames
from pipeline.frames.room_rows import room_rows
from pipeline.frames.schemas import EVENTS, ROOM_FRAMES, SET_ASIDE
from pipeline.frames.stored import KnownKeys
from pipeline.frames.task_rows import BatchFunction, TaskRows, as_read, mapped

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["EVENTS_PER_PACK", "VERSION_DIFFERS", "WorkedOutRooms", "work_out_rooms"]

_KIND = "rows of rooms"
_COUNTS = "room_id string, events bigint, names_ids boolean"
#: Versions of rooms in which servers choose event IDs. In all other versions, an event's ID is a hash that covers the
#: room ID.
_NAMED = ("1", "2")
_KEYS = ("source", "line", "room_id", "event_id", "outlier", "content_hash_matches")
#: An event with a negative stream ordering is backfilled. Only the sign of this value matters.
_BACKWARD = -1


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

    Of several copies of an event, one copy is used. ``known`` has the keys of a database. Events that this database
    has, and all events of rooms that it has, are not computed but set aside. Do not close ``known`` while the frames
    are used. If ``as_history`` is true, all events are backfilled. A room with more than ``chunk`` events is computed
    in chunks of this size. The size of the chunks does not change the rows.

    A Spark job counts the events of each room at once. The rows are computed when a frame is used. So the events are
    read several times. If it is expensive to read them, write them to files (``SourceFrames.keep``) or persist them.
    """
    rows = events.event_rows if isinstance(events, SourceFrames) else events
    counts = mapped(rows, ["room_id", "room_version"], _count, _COUNTS)
    packs, names_ids = _packs(counts)
    parcels = mapped(rows, EVENTS.names, event_parcels(packs), PARCELS)
    for marks in _marks(rows, counts, known, names_ids=names_ids):
        parcels = parcels.unionByName(marks.mapInArrow(mark_parcels(packs), PARCELS))
    # ``repartitionById`` uses the pack's number as the partition's number. Partitioning by hash would put several packs
    # into one partition.
    shuffled = parcels.repartitionById(len(packs), "pack")
    work_out = partial(_work_out, stream_ordering=_BACKWARD if as_history else None, chunk=chunk)

    def map_bundles(function: BatchFunction, schema: str) -> DataFrame:
        return shuffled.mapInArrow(lambda parcels: function(work_out(parcels)), schema)

    return WorkedOutRooms.of_bundles(map_bundles)


# --- packs ------------------------------------------------------------------------------------------------------------


def _count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields, for each batch, a row for each room: room ID, number of events, true if servers choose the room's event IDs."""
    import pyarrow as pa  # noqa: PLC0415 - executors only
    from pyarrow import compute  # noqa: PLC0415

    for batch in batches:
        if batch.num_rows:
            named = compute.is_in(batch.column("room_version"), value_set=pa.array(_NAMED))
            table = pa.table({"room_id": batch.column("room_id"), "names_ids": named})
            counted = table.group_by("room_id").aggregate([([], "count_all"), ("names_ids", "any")])
            found = counted.select(["room_id", "count_all", "names_ids_any"])
            yield from found.rename_columns(["room_id", "events", "names_ids"]).to_batches()


def _packs(counts: DataFrame) -> tuple[Packs, bool]:
    """Returns (packs of the rooms, true if servers choose the event IDs of at least one room)."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - drivers only

    both = f.sum("events").alias("events"), f.max("names_ids").alias("names_ids")
    large = f.when(f.col("events") > EVENTS_PER_PACK, f.col("room_id")).alias("large")
    found = counts.groupBy("room_id").agg(*both).groupBy(large).agg(*both).collect()
    small = sum(row.events for row in found if row.large is None)
    packs = Packs.of([(row.large, row.events) for row in found if row.large is not None], small, EVENTS_PER_PACK)
    return packs, any(row.names_ids for row in found)


# --- what is known from outside a pack --------------------------------------------------------------------------------


def _marks(
    rows: TaskRows | DataFrame, counts: DataFrame, known: KnownKeys | None, *, names_ids: bool
) -> Iterator[DataFrame]:
    """Yields frames of marks (``MARKS``).

    Events whose ID also occurs in another room are marked, if the event of the other room is the one that is kept.
    Events and rooms that the database already has are marked, too.
    """
    schema = ", ".join(f"{name} {EVENTS.columns[name].type}" for name in _KEYS)
    keys = mapped(rows, _KEYS, as_read, schema)
    if names_ids:
        yield _copies_elsewhere(keys)
    if known is not None:
        yield _known_events(keys, known)
        yield _known_rooms(counts, known)


def _copies_elsewhere(keys: DataFrame) -> DataFrame:
    """Returns marks for events that are in several rooms. Each of these rooms gets a mark, except the room with the best copy."""
    from pyspark.sql import Window  # noqa: PLC0415 - drivers only
    from pyspark.sql import functions as f  # noqa: PLC0415

    rooms = f.min("room_id").alias("first"), f.max("room_id").alias("last")
    several = keys.groupBy("event_id").agg(*rooms).where("first <> last").select("event_id")
    best_first = Window.partitionBy("event_id").orderBy(
        "outlier", f.col("content_hash_matches").desc(), "source", "line"
    )
    ranked = keys.join(several, "event_id", "left_semi").withColumn("best", f.first("room_id").over(best_first))
    return _marked(ranked.where("room_id <> best"), f.lit(Mark.COPY))


def _known_events(keys: DataFrame, known: KnownKeys) -> DataFrame:
    from pyspark.sql import functions as f  # noqa: PLC0415 - drivers only

    stored = known.events.select(
        "event_id", f.col("room_id").alias("stored_room"), f.col("outlier").alias("stored_outlier")
    )
    found = keys.select("event_id", "room_id").join(stored, "event_id")
    better = f.col("stored_outlier") & (f.col("stored_room") == f.col("room_id"))
    return _marked(found, f.when(better, Mark.STORED_OUTLIER).otherwise(Mark.STORED))


def _known_rooms(counts: DataFrame, known: KnownKeys) -> DataFrame:
    from pyspark.sql import functions as f  # noqa: PLC0415 - drivers only

    rooms = counts.select("room_id").distinct().join(known.rooms.select("room_id"), "room_id", "left_semi")
    return _marked(rooms.withColumn("event_id", f.lit(None).cast("string")), f.lit(Mark.ROOM_STORED))


def _marked(rows: DataFrame, mark: Any) -> DataFrame:
    return rows.select("room_id", "event_id", mark.alias("mark"))


# --- rows -------------------------------------------------------------------------------------------------------------


def _work_out(
    parcels: Iterator[pa.RecordBatch], *, stream_ordering: int | None, chunk: int
) -> Iterator[pa.RecordBatch]:
    """Computes the rooms of one pack from its parcels, and yields their rows as bundles."""
    first = next((batch for batch in parcels if batch.num_rows), None)
    if first is None:
        return
    pack = first.column("pack")[0].as_py()
    yield from bundled(pack, _rows(chosen_events(chain([first], parcels)), stream_ordering, chunk))


def _rows(
    events: Iterator[pa.RecordBatch], stream_ordering: int | None, chunk: int
) -> Iterator[tuple[str, pa.RecordBatch]]:
    yield SET_ASIDE.name, next(events)
    for room in rooms_of(events, stream_ordering):
        yield from room_rows(room, chunk)
