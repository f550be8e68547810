"""Imports room histories from files and databases into the site's tables. Runs in Spark's driver, and needs Django.

    scan     tasks    count lines and find announced room versions in every part of the sources
    read     tasks    parse lines and rows into events and broken lines, staged   (pipeline.importing.stage_lines)
    plan     SQL      select new events, number the rooms                         (pipeline.importing.plan)
    load     tasks    compute all rows of each room, copy them into the tables    (pipeline.importing.load_rooms)
    known    driver   store new events of existing rooms like live events         (pipeline.importing.extend_rooms)

Spark runs the tasks. If the sources are small, this process runs them, without a JVM.

Each step can be repeated. Staging records finished parts in a ledger. Loading records the loaded rooms in the
transaction that loads them. ``resume`` continues a killed job. If the job was queued, the next ``runjobs`` continues
the job. If a new job is started instead, the new job treats events that are loaded already as duplicates. In all cases
no event is lost or stored twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from django.db import connections, transaction

from pipeline.conf import pipeline_settings
from pipeline.disk_full import disk_full
from pipeline.errors import SourceChanged
from pipeline.frames.parse_lines import LineRules, PartScan
from pipeline.frames.read_events import PART_BYTES, scan_parts
from pipeline.frames.sources.inputs import (
    Input,
    bytes_of_inputs,
    check_unchanged,
    input_names,
    open_inputs,
    parts_of_inputs,
    unchanged,
)
from pipeline.frames.sources.parts import Part
from pipeline.importing.extend_rooms import extend_rooms
from pipeline.importing.keys import TRUSTED, VERIFIED, Signatures, read_keys
from pipeline.importing.load_rooms import EVENTS_PER_PACK, RoomWork, load_rooms, pack_rooms
from pipeline.importing.plan import (
    create_staging,
    drop_staging,
    events_done,
    leftover_staging,
    make_plan,
    planned_rooms,
    quarantine_rooms,
    store_broken,
    store_versions,
)
from pipeline.importing.stage_lines import LineWork, stage_parts
from pipeline.importing.staging_tables import STEPS, table_name
from pipeline.loading.load_pack import LoadWork
from pipeline.models import ImportedRoom, ImportSource
from pipeline.spark.job_steps import spark_steps
from pipeline.spark.run_tasks import InProcess, finished_tasks
from pipeline.spark.site_session import session_if_worth_it
from streams.conf import stream_settings
from streams.db.consistent_read import long_transaction
from streams.db.driver import dsn
from streams.jobs.checkpoints import watched_checkpoints
from streams.jobs.errors import JobCancelled
from streams.jobs.folders import any_folder
from streams.jobs.job_run import JobRun
from streams.jobs.rows import claim_abandoned_jobs, hold_lock
from streams.jobs.run import run_job
from streams.writing.name import writer_name, written_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["KIND", "ImportOptions", "Outcome", "import_history", "import_in"]

KIND = "import_events"
BYTES_IN_PROCESS = 64 * 1024 * 1024
"""Smaller sources, some 80,000 events, are imported in this process. Spark with two cores would take a third longer."""
_SIGNATURE_LINES = {
    TRUSTED: "Signatures: trusted, as the sources have them; --keys FILE verifies them.",
    VERIFIED: "Signatures: verified with the keys that were named.",
}


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """The sources of an import, and its options.

    ``keys`` is a file with the keys of servers, which verify all signatures. Without this file, signatures are trusted.
    ``as_stored``: the site mirrors the source, so that new events of known rooms keep the source's verdicts. Without a
    ``master``, small sources are imported in this process. ``pause`` is called with the name of each finished step. Tests
    use ``pause`` to end the job after a step.
    """

    sources: Sequence[str | Path]
    as_history: bool = False
    resume: bool = False
    master: str | None = None
    keys: str | Path | None = None
    as_stored: bool = False
    events_per_pack: int = EVENTS_PER_PACK
    pause: Callable[[str], None] = field(default=lambda step: None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of an import.

    ``unresolved`` counts loaded events whose state is unknown. ``spark_seconds`` is the time that Spark took to start, or
    0 if it was not needed.
    """

    read: int
    imported: int
    rejected: int
    quarantined: int
    rooms: int
    seconds: float
    unresolved: int
    spark_seconds: float
    job: int
    signatures: str

    @property
    def duplicates(self) -> int:
        """Returns the number of lines whose event was stored before, or was in the input more than once."""
        return self.read - self.imported - self.quarantined

    def summary(self) -> dict[str, Any]:
        """Returns the summary that the command prints as its last line."""
        return {
            "read": self.read,
            "imported": self.imported,
            "duplicates": self.duplicates,
            "rejected": self.rejected,
            "quarantined": self.quarantined,
            "rooms": self.rooms,
            "seconds": round(self.seconds, 3),
        }

    def record(self) -> dict[str, Any]:
        """Returns the figures to store in the job's row: the summary, and ``signatures`` (``trusted`` or ``verified``)."""
        return {**self.summary(), "signatures": self.signatures}


def import_history(options: ImportOptions, stream: TextIO | None = None) -> Outcome:
    """Imports as a job of this process. Writes the job's progress to ``stream``.

    Raises ``UnusableArguments`` before the job begins. Raises ``PipelineError`` and database errors while the job runs.
    Then the job is marked as failed, and can be resumed.
    """
    using = stream_settings().database
    signatures = read_keys(options.keys)
    inputs = open_inputs([str(name) for name in options.sources])
    found: list[Outcome] = []

    def work(run: JobRun) -> Mapping[str, Any]:
        found.append(import_in(run, options, inputs, signatures))
        return found[0].record()

    arguments: dict[str, Any] = {
        "sources": input_names([str(name) for name in options.sources]),
        "as_history": options.as_history,
    }
    if options.keys is not None:
        arguments["keys"] = str(Path(options.keys).absolute())
    with written_by("import_events"), any_folder():
        run_job(KIND, arguments, using, stream, resume=options.resume, work=work)
    return found[0]


def import_in(run: JobRun, options: ImportOptions, inputs: Sequence[Input], signatures: Signatures) -> Outcome:
    """Imports within the running job ``run``."""
    return _Import(run, options, inputs, signatures).run()


class _Import:
    """One run of an import job in this process."""

    def __init__(self, run: JobRun, options: ImportOptions, inputs: Sequence[Input], signatures: Signatures) -> None:
        self._run = run
        self._job = run.id
        self._using = run.using
        self._options = options
        self._given = inputs
        self._signatures = signatures
        self._started = time.monotonic()
        self._parts: list[Part] = []

    def run(self) -> Outcome:
        self._inputs = self._remember_sources()
        self._drop_leftovers()
        self._run.store_before(self._figures())
        self._run.say(_SIGNATURE_LINES[self._signatures.word])
        try:
            with disk_full(), watched_checkpoints(self._run):
                outcome = self._steps()
        except (JobCancelled, SourceChanged):  # not resumed, or not to be trusted: the staged rows are useless
            self._drop_staging([self._job])
            raise
        self._drop_staging([self._job])
        self._run.store_after(self._figures())
        return outcome

    def _steps(self) -> Outcome:
        with transaction.atomic(using=self._using), self._cursor() as cursor:
            create_staging(cursor, self._job, self._signatures.name)
        started, spark_seconds = time.monotonic(), 0.0
        worth_it = bytes_of_inputs(self._inputs) > BYTES_IN_PROCESS
        with session_if_worth_it(self._run, "import", self._options.master, worth_it=worth_it) as spark:
            if spark is not None:
                spark_seconds = time.monotonic() - started
                self._run.say(f"Spark: started in {spark_seconds:.1f} s")
            with spark_steps(self._run, spark) if spark is not None else nullcontext():
                tasks = InProcess(self._run.step) if spark is None else spark
                scans = self._read(tasks)
                self._plan()
                left_out = self._load(tasks)
        if left_out:
            with transaction.atomic(using=self._using), self._cursor() as cursor:
                quarantine_rooms(cursor, self._job, left_out)
        extend_rooms(self._run, as_stored=self._options.as_stored)
        quarantined = self._store_broken(scans)
        return self._outcome(quarantined, spark_seconds)

    # --- sources ----------------------------------------------------------------------------------------------------

    def _remember_sources(self) -> list[Input]:
        """Returns the inputs to read.

        In a new job, stores the inputs. In a resumed job, compares them with the inputs that the job stored before.

        Raises ``SourceChanged`` if a resumed job was given other sources, or if a source has changed.
        """
        rows = ImportSource.objects.using(self._using)
        known = list(rows.filter(job_id=self._job).order_by("number"))
        if not known:
            given = enumerate(self._given)
            rows.bulk_create(
                ImportSource(
                    job_id=self._job, number=number, name=source.name, form=source.form, identity=source.identity
                )
                for number, source in given
            )
            return list(self._given)
        if [row.name for row in known] != [source.name for source in self._given]:
            self._drop_staging([self._job])
            raise SourceChanged(
                f"Job {self._job} began with {len(known)} files and databases, and there are others now. Import without --resume."
            )
        try:
            return [unchanged(source, row.identity) for source, row in zip(self._given, known, strict=True)]
        except SourceChanged:
            self._drop_staging([self._job])
            raise

    def _drop_leftovers(self) -> None:
        """Drops the staging tables of other import jobs that are done, cancelled, failed or killed.

        Keeps the tables of killed jobs that ``runjobs`` will run again.
        """
        # The lock on each abandoned job is held until its tables are dropped, so that no process resumes it meanwhile.
        with hold_lock(self._using) as lock:
            over = claim_abandoned_jobs(lock, KIND, [self._job], self._using)
            with self._cursor() as cursor:
                over += leftover_staging(cursor, KIND)
            self._drop_staging(over)

    def _drop_staging(self, jobs: Sequence[int]) -> None:
        with self._cursor() as cursor:
            drop_staging(cursor, jobs)

    # --- steps ------------------------------------------------------------------------------------------------------

    def _read(self, spark: SparkSession | InProcess) -> list[PartScan]:
        limit = pipeline_settings().import_line_limit_bytes
        with self._sources_at_rest(), parts_of_inputs(self._inputs, PART_BYTES) as parts:
            self._parts = parts
            with self._run.watch("scan", len(parts), "parts", finished_tasks(spark)):
                scans = scan_parts(spark, parts, limit, self._signatures.keys)
            self._store_row_counts(scans)
            self._store_versions(scans)
            rules = LineRules(limit, self._signatures.keys, stream_settings().server_name)
            work = LineWork(self._job, dsn(self._using), rules)
            total = sum(scan.lines for scan in scans)
            with self._run.watch("read", total, "lines", self._counter(STEPS.name, "sum(lines)")):
                stage_parts(spark, work, parts)
        self._options.pause("read")
        return scans

    @contextmanager
    def _sources_at_rest(self) -> Iterator[None]:
        """Raises ``SourceChanged`` at the end of the block if a source has changed.

        ``SourceChanged`` replaces any error of the block, because the change of the source may have caused that error.
        """
        try:
            yield
        finally:
            check_unchanged(self._inputs)

    def _store_row_counts(self, scans: Sequence[PartScan]) -> None:
        rows = dict.fromkeys(range(len(self._inputs)), 0)
        for part, scan in zip(self._parts, scans, strict=True):
            rows[part.file] += scan.lines
        sources = list(ImportSource.objects.using(self._using).filter(job_id=self._job))
        for source in sources:
            source.rows = rows[source.number]
        ImportSource.objects.using(self._using).bulk_update(sources, ["rows"], batch_size=1_000)

    def _store_versions(self, scans: Sequence[PartScan]) -> None:
        with transaction.atomic(using=self._using), self._cursor() as cursor:
            for scan in scans:
                store_versions(cursor, self._job, scan.versions)

    def _plan(self) -> None:
        with (
            self._run.watch("plan", None, "steps", lambda: 0),
            long_transaction(self._using) as cursor,
        ):
            make_plan(cursor, self._job, as_history=self._options.as_history)
        self._options.pause("plan")

    def _load(self, spark: SparkSession | InProcess) -> set[str]:
        """Computes and loads the rooms that are not loaded yet. Returns the IDs of rooms that were left out."""
        with self._cursor() as cursor:
            rooms = planned_rooms(cursor, self._job)
            total = sum(room.events for room in rooms) + events_done(cursor, self._job)
        work = RoomWork(LoadWork(dsn(self._using), self._job, writer_name()), self._options.as_history)
        with self._run.watch("load", total, "events", self._events_done):
            left_out = load_rooms(spark, work, pack_rooms(rooms, self._options.events_per_pack))
        self._options.pause("load")
        return left_out

    def _events_done(self) -> int:
        with self._cursor() as cursor:
            return events_done(cursor, self._job)

    def _store_broken(self, scans: Sequence[PartScan]) -> int:
        with long_transaction(self._using) as cursor:
            return store_broken(cursor, self._job, self._parts, [scan.lines for scan in scans])

    # --- figures ----------------------------------------------------------------------------------------------------

    def _outcome(self, quarantined: int, spark_seconds: float) -> Outcome:
        loaded = list(ImportedRoom.objects.using(self._using).filter(job_id=self._job))
        return Outcome(
            read=self._counter(STEPS.name, "sum(lines)")(),
            imported=sum(room.imported for room in loaded),
            rejected=sum(room.rejected for room in loaded),
            quarantined=quarantined,
            rooms=len(loaded),
            seconds=time.monotonic() - self._started,
            unresolved=sum(room.unresolved for room in loaded),
            spark_seconds=spark_seconds,
            job=self._job,
            signatures=self._signatures.word,
        )

    def _counter(self, table: str, aggregate: str) -> Callable[[], int]:
        """Returns a function that queries a staging table for an SQL aggregate such as ``sum(events)``.

        The function may be called in any thread, such as the thread that reports progress. It uses the connection of
        that thread.
        """

        def count() -> int:
            with self._cursor() as cursor:
                cursor.execute(f"SELECT coalesce({aggregate}, 0) FROM {table_name(self._job, table)}")
                return int(cursor.fetchone()[0])

        return count

    def _figures(self) -> dict[str, int]:
        """Returns the figures that are stored before and after the work.

        The figures are the number of rooms, and the size of the database in bytes.
        """
        with self._cursor() as cursor:
            cursor.execute("SELECT (SELECT count(*) FROM events_room), pg_database_size(current_database())")
            rooms, size = cursor.fetchone()
        return {"rooms": rooms, "database_bytes": size}

    def _cursor(self) -> Any:
        return connections[self._using].cursor()
