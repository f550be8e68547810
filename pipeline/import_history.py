"""The import of room histories, from files to visible rooms (driver, with Django).

    scan     Spark    lines and announced room versions of every part of the files
    read     Spark    lines -> parsed events and broken lines, staged            (pipeline.stage_lines)
    plan     SQL      what is new, which rooms, in which order                   (pipeline.plan)
    rooms    Spark    state, extremities, visibility of each room, staged        (pipeline.stage_rooms)
    load     SQL      staged rows -> the tables, whole rooms at a time           (pipeline.promotion)

Each step can be repeated: staging has a ledger, loading writes down what it loaded in the same transaction. A job that was
killed is continued by ``resume``; a new job finds what is loaded already as duplicates. Neither loses or doubles anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction

from pipeline.conf import pipeline_settings
from pipeline.errors import SourceChanged, UnusableArguments
from pipeline.jobs import (
    JobLock,
    abandoned_jobs,
    begin_job,
    fail_job,
    finish_job,
    hold_lock,
    resumable_job,
    show_progress,
)
from pipeline.lines import parts_of
from pipeline.models import ImportedRoom, Job
from pipeline.plan import (
    create_staging,
    drop_staging,
    finish_results,
    give_up_rooms,
    make_plan,
    planned_rooms,
    store_broken,
)
from pipeline.progress import Progress
from pipeline.promotion import EVENTS_PER_BATCH, batches, promote, ready_rooms
from pipeline.session import spark_session
from pipeline.spark_tasks import pack_rooms, scan_parts, stage_parts, stage_rooms
from pipeline.stage_lines import LineWork, PartScan
from pipeline.stage_rooms import RoomWork
from pipeline.staging import STEPS, table_name
from streams.conf import stream_settings
from streams.database import dsn
from streams.writers import retire_all, use_instance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ImportOptions", "Outcome", "check_paths", "import_history"]

KIND = "import_events"
PART_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What to import and how; ``pause`` is called with the name of each finished step, for tests that end it there."""

    paths: Sequence[Path]
    as_history: bool = False
    resume: bool = False
    master: str = "local[2]"
    events_per_batch: int = EVENTS_PER_BATCH
    pause: Callable[[str], None] = field(default=lambda step: None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an import did. ``unresolved``: loaded events whose state is not known; ``spark_seconds``: starting Spark."""

    read: int
    imported: int
    rejected: int
    quarantined: int
    rooms: int
    seconds: float
    unresolved: int
    spark_seconds: float
    job: int

    @property
    def duplicates(self) -> int:
        """Events that were here already, or more than once in the input."""
        return self.read - self.imported - self.quarantined

    def summary(self) -> dict[str, Any]:
        """The command's last line."""
        return {
            "read": self.read,
            "imported": self.imported,
            "duplicates": self.duplicates,
            "rejected": self.rejected,
            "quarantined": self.quarantined,
            "rooms": self.rooms,
            "seconds": round(self.seconds, 3),
        }


def check_paths(names: Sequence[str]) -> list[Path]:
    """The files, absolute; ``UnusableArguments`` names the first that cannot be read."""
    paths = []
    for name in names:
        path = Path(name).absolute()
        try:
            with path.open("rb") as file:
                file.read(1)
        except OSError as error:
            raise UnusableArguments(f"Cannot read {name}: {error.strerror}. Give readable JSON Lines files.") from error
        paths.append(path)
    return paths


def import_history(options: ImportOptions, progress: Callable[[Callable[..., None]], Progress]) -> Outcome:
    """Import; raises ``PipelineError`` and database errors, with the job marked as failed and resumable."""
    using = stream_settings().database
    use_instance("import_events-{n}")
    try:
        with hold_lock(using) as lock:
            return _Import(options, lock, using).run(progress)
    finally:
        retire_all()


class _Import:
    """One run of one job."""

    def __init__(self, options: ImportOptions, lock: JobLock, using: str) -> None:
        self._options = options
        self._using = using
        self._begun = time.monotonic()
        self._files = [_fingerprint(path) for path in options.paths]
        self._job = self._open_job(lock)
        self._parts = [part for file, path in enumerate(options.paths) for part in parts_of(file, path, PART_BYTES)]

    def _open_job(self, lock: JobLock) -> Job:
        arguments = {"files": self._files, "as_history": self._options.as_history}
        job = resumable_job(lock, KIND, arguments, self._using) if self._options.resume else None
        job = job or begin_job(lock, KIND, arguments, self._using)
        with self._cursor() as cursor:
            drop_staging(cursor, abandoned_jobs(lock, KIND, [job.pk], self._using))
        return job

    def run(self, progress: Callable[[Callable[..., None]], Progress]) -> Outcome:
        self._progress = progress(self._store_progress)
        try:
            outcome = self._steps()
        except BaseException as error:
            fail_job(self._job.pk, str(error) or type(error).__name__, self._using)
            raise
        with self._cursor() as cursor:
            drop_staging(cursor, [self._job.pk])
        finish_job(self._job.pk, outcome.summary(), self._using)
        return outcome

    def _steps(self) -> Outcome:
        with transaction.atomic(using=self._using), self._cursor() as cursor:
            create_staging(cursor, self._job.pk)
        settings = pipeline_settings()
        begun = time.monotonic()
        with spark_session(
            "import", folder=settings.folder, master=self._options.master, project=settings.project
        ) as spark:
            spark_seconds = time.monotonic() - begun
            self._progress.say(f"Spark: started in {spark_seconds:.1f} s")
            scans = self._read(spark)
            self._plan()
            self._rooms(spark)
        quarantined = self._store_broken(scans)
        if lost := self._load():
            with transaction.atomic(using=self._using), self._cursor() as cursor:
                give_up_rooms(cursor, self._job.pk, lost)
            quarantined = self._store_broken(scans)
        return self._outcome(quarantined, spark_seconds)

    # --- steps ------------------------------------------------------------------------------------------------------

    def _read(self, spark: SparkSession) -> list[PartScan]:
        limit = pipeline_settings().line_limit_bytes
        scans = scan_parts(spark, self._parts, limit)
        versions = self._known_versions()
        for scan in scans:
            versions = {**scan.versions, **versions}
        work = LineWork(self._job.pk, dsn(self._using), limit, versions)
        total = sum(scan.lines for scan in scans)
        with self._progress.stage("read", total, "lines", self._counter(STEPS.name, "sum(lines)")):
            stage_parts(spark, work, self._parts)
        self._check_files()
        self._options.pause("read")
        return scans

    def _known_versions(self) -> dict[str, str]:
        with self._cursor() as cursor:
            cursor.execute("SELECT room_id, room_version FROM events_room")
            return dict(cursor.fetchall())

    def _check_files(self) -> None:
        for path, before in zip(self._options.paths, self._files, strict=True):
            if _fingerprint(path) != before:
                raise SourceChanged(
                    f"{path} has changed while it was read, so nothing of it was loaded. Import it again when it is at rest."
                )

    def _plan(self) -> None:
        with (
            self._progress.stage("plan", None, "steps", lambda: 0),
            transaction.atomic(using=self._using),
            self._cursor() as cursor,
        ):
            make_plan(cursor, self._job.pk)
        self._options.pause("plan")

    def _rooms(self, spark: SparkSession) -> None:
        with self._cursor() as cursor:
            rooms = planned_rooms(cursor, self._job.pk)
        work = RoomWork(self._job.pk, dsn(self._using), self._options.as_history)
        total = sum(room.events for room in rooms)
        with self._progress.stage("rooms", total, "events", self._counter("result_room", "sum(events)")):
            stage_rooms(spark, work, pack_rooms(rooms))
        with self._cursor() as cursor:
            finish_results(cursor, self._job.pk)
        self._options.pause("rooms")

    def _store_broken(self, scans: Sequence[PartScan]) -> int:
        with transaction.atomic(using=self._using), self._cursor() as cursor:
            return store_broken(cursor, self._job.pk, self._parts, [scan.lines for scan in scans])

    def _load(self) -> set[str]:
        """Load room after room; returns those that somebody else made meanwhile."""
        with self._cursor() as cursor:
            rooms = ready_rooms(cursor, self._job.pk)
        lost: set[str] = set()
        done = 0
        with self._progress.stage("load", sum(room.events for room in rooms), "events", lambda: done):
            for batch in batches(rooms, self._options.events_per_batch):
                lost |= promote(self._job.pk, batch, self._using)
                done += sum(room.events for room in batch)
                self._options.pause("load")
        return lost

    # --- figures ----------------------------------------------------------------------------------------------------

    def _outcome(self, quarantined: int, spark_seconds: float) -> Outcome:
        loaded = list(ImportedRoom.objects.using(self._using).filter(job_id=self._job.pk))
        return Outcome(
            read=self._counter(STEPS.name, "sum(lines)")(),
            imported=sum(room.imported for room in loaded),
            rejected=sum(room.rejected for room in loaded),
            quarantined=quarantined,
            rooms=len(loaded),
            seconds=time.monotonic() - self._begun,
            unresolved=sum(room.unresolved for room in loaded),
            spark_seconds=spark_seconds,
            job=self._job.pk,
        )

    def _counter(self, table: str, what: str) -> Callable[[], int]:
        """Reads a figure of a staging table; may be called from the reporting thread, which has its own connection."""

        def count() -> int:
            with self._cursor() as cursor:
                cursor.execute(f"SELECT coalesce({what}, 0) FROM {table_name(self._job.pk, table)}")
                return int(cursor.fetchone()[0])

        return count

    def _store_progress(self, stage: str, done: int, total: int | None, rate: float | None) -> None:
        show_progress(self._job.pk, self._using, stage=stage, done=done, total=total, rate=rate)

    def _cursor(self) -> Any:
        return connections[self._using].cursor()


def _fingerprint(path: Path) -> dict[str, Any]:
    """What tells that a file is still the same, short of reading it."""
    about = path.stat()
    return {"path": str(path), "size": about.st_size, "modified_ns": about.st_mtime_ns}
