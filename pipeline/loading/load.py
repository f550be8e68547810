"""Loads the rooms of frames into the database. Runs in Spark's driver, and needs Django.

    def work(run):
        with spark_session(…) as spark, read_events(spark, sources) as read:
            return load(work_out_rooms(read.events), dsn, run).summary()

Each Spark task loads one pack, in one transaction (``pipeline.loading.load_pack``). If a job was killed, run the job again.
It then loads the rooms that are still missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import connections

from pipeline.errors import RoomsKnown
from pipeline.frames.task_rows import BatchFunction
from pipeline.frames.work_out_rooms import WorkedOutRooms
from pipeline.loading.load_pack import LOADED, LoadWork, load_packs
from pipeline.spark.job_steps import spark_steps
from pipeline.spark.run_tasks import spark_errors
from pipeline.spark.stages import FinishedTasks
from streams.jobs.checkpoints import watched_checkpoints
from streams.jobs.job_run import JobRun
from streams.writing.name import writer_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["Loaded", "load"]

_ROOMS_PER_QUERY = 10_000
_MOST_NAMED = 3
#: Selects the given rooms that are stored and that this job has not loaded.
_KNOWN = """
SELECT room_id FROM events_room r WHERE room_id = ANY(%s)
AND NOT EXISTS (SELECT FROM pipeline_importedroom done WHERE done.job_id = %s AND done.room_id = r.room_id)
"""
_OF_JOB = """
SELECT count(*), coalesce(sum(imported), 0), coalesce(sum(rejected), 0), coalesce(sum(unresolved), 0)
FROM pipeline_importedroom WHERE job_id = %s
"""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The number of rooms and events that a job has loaded, in this run and in earlier runs.

    ``unresolved`` counts loaded events whose state is unknown. ``left_out`` has the IDs of rooms that this run did not
    load. Another transaction has created such a room meanwhile, or the room is being purged, or it is blocked.
    """

    rooms: int
    events: int
    rejected: int
    unresolved: int
    left_out: Sequence[str]

    def summary(self) -> dict[str, Any]:
        """Returns the figures to store in the job's row: name -> number."""
        figures = {"rooms": self.rooms, "events": self.events, "rejected": self.rejected, "unresolved": self.unresolved}
        return {**figures, "left_out": len(self.left_out)}


def load(worked_out: WorkedOutRooms, dsn: str, job: JobRun) -> Loaded:
    """Stores rooms, as the writer of this process. Tasks connect to ``dsn``, a libpq connection string.

    All rooms are computed before the first room is stored. Until a room is stored, its rows are on the executors'
    disks, or where the caller has put them before (``WorkedOutRooms.persist``, ``keep``). Rooms that this job has
    loaded before are not loaded again.

    Raises ``RoomsKnown`` before anything is stored, if the database has one of the rooms and this job did not load it.
    Raises ``SparkFailed`` if a task fails, and the errors of ``JobRun.step``. After these errors, loaded rooms stay,
    and the job can be run again.
    """
    spark = worked_out.bundles.sparkSession
    work = LoadWork(dsn, job.id, writer_name())
    with (
        spark_steps(job, spark),
        spark_errors(),
        _kept(worked_out) as map_bundles,
    ):
        with job.watch("rooms", None, "tasks", FinishedTasks(spark)):
            contents = worked_out.contents()
            _refuse_known(contents.room_ids, job)
        with watched_checkpoints(job), job.watch("load", contents.events, "events", lambda: _of_job(job)[1]):
            outcomes = map_bundles(_task(work), LOADED).toArrow()
    left_out = sorted(room for rooms in outcomes.column("left_out").to_pylist() for room in rooms)
    return Loaded(*_of_job(job), left_out)


def _task(work: LoadWork) -> Any:
    def load_them(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return load_packs(work, batches)

    return load_them


@contextmanager
def _kept(worked_out: WorkedOutRooms) -> Iterator[Callable[[BatchFunction, str], DataFrame]]:
    """Makes sure that the bundles are computed only once. Yields a function like ``WorkedOutRooms.map_bundles``.

    So a repeated task loads the same bundles. If the bundles are in files, the tasks that load them read the files.
    These bundles do not pass through Spark's JVM. If the bundles are neither in files nor persisted, they are persisted
    while the block runs.
    """
    from pyspark import StorageLevel  # noqa: PLC0415 - drivers only

    bundles = worked_out.bundles
    if bundles.storageLevel.useDisk or bundles.storageLevel.useMemory:
        yield bundles.mapInArrow
    elif worked_out.in_files is not None:
        yield worked_out.map_bundles
    else:
        bundles.persist(StorageLevel.DISK_ONLY)
        try:
            yield bundles.mapInArrow
        finally:
            bundles.unpersist()


def _refuse_known(ids: Sequence[str], job: JobRun) -> None:
    """Raises ``RoomsKnown`` if the database has one of the rooms ``ids`` and this job did not load it."""
    known: list[str] = []
    with connections[job.using].cursor() as cursor:
        for start in range(0, len(ids), _ROOMS_PER_QUERY):
            cursor.execute(_KNOWN, [list(ids[start : start + _ROOMS_PER_QUERY]), job.id])
            known += [room_id for (room_id,) in cursor.fetchall()]
    if known:
        named = ", ".join(sorted(known)[:_MOST_NAMED]) + (", …" if len(known) > _MOST_NAMED else "")
        raise RoomsKnown(
            f"{len(known):,} of {len(ids):,} rooms are stored already: {named}. Nothing was loaded. Leave their events out; "
            "manage.py import_events adds new events to rooms that are stored."
        )


def _of_job(job: JobRun) -> tuple[int, int, int, int]:
    """Returns (rooms, events, rejected events, events with unknown state) that this job has loaded in all its runs.

    May be called from another thread.
    """
    with connections[job.using].cursor() as cursor:
        cursor.execute(_OF_JOB, [job.id])
        rooms, events, rejected, unresolved = map(int, cursor.fetchone())
    return rooms, events, rejected, unresolved
