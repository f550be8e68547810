"""Imports room histories from files and databases into the site's tables. Runs in Spark's driver, and needs Django.

    scan     tasks    count lines and find announced room versions in every part of the sources
    read     tasks    parse lines and rows, count the events of rooms, store broken lines    (pipeline.importing.read_parts)
    load     tasks    for each pack: choose new events, compute all rows of its rooms,
                      copy them into the tables                                              (pipeline.importing.import_pack)
    known    driver   store new events of existing rooms like live events                    (pipeline.importing.extend_rooms)

Spark runs the tasks (``pipeline.importing.runners``). If the sources are small, this process runs them, without a JVM.

Each step can be repeated. A ledger has the parts that are read and the packs that are loaded, each recorded in the
transaction that stores its rows. ``resume`` continues a killed job: it reads the sources again, and loads what is not
loaded. If the job was queued, the next ``runjobs`` continues the job. If a new job is started instead, the new job treats
events that are loaded already as duplicates. In all cases no event is lost or stored twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO, TypeVar

from django.db import connections, transaction

from pipeline.conf import pipeline_settings
from pipeline.disk_full import disk_full
from pipeline.errors import SourceChanged, SparkFailed
from pipeline.frames.packs import EVENTS_PER_PACK, Packs
from pipeline.frames.parse_lines import LineRules, PartScan
from pipeline.frames.read_events import PART_BYTES, Reading
from pipeline.frames.sources.inputs import (
    Input,
    bytes_of_inputs,
    check_unchanged,
    input_names,
    open_inputs,
    parts_of_inputs,
    unchanged,
)
from pipeline.frames.sources.parts import Part, lines_before
from pipeline.importing.extend_rooms import extend_rooms
from pipeline.importing.import_pack import PackWork
from pipeline.importing.keys import TRUSTED, VERIFIED, Signatures, read_keys
from pipeline.importing.read_parts import ReadWork
from pipeline.importing.runners import InProcess, OnSpark
from pipeline.importing.staging_tables import (
    create_staging,
    drop_staging,
    events_done,
    is_loaded,
    leftover_staging,
    lines_read,
    order_known_events,
    packs_done,
    planned_packs,
    store_broken,
    store_packs,
)
from pipeline.loading.load_pack import LoadWork
from pipeline.models import ImportedRoom, ImportSource
from pipeline.spark.job_steps import spark_steps
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

__all__ = ["KIND", "ImportOptions", "Outcome", "import_history", "import_in"]

T = TypeVar("T")

KIND = "import_events"
BYTES_IN_PROCESS = 128 * 1024 * 1024
"""Smaller sources, some 160,000 events, are imported in this process. Spark with two cores would not be done sooner."""
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
        spark_seconds = 0.0 if self._asked(is_loaded) else self._new_rooms()
        extend_rooms(self._run, as_stored=self._options.as_stored)
        with long_transaction(self._using) as cursor:
            quarantined = store_broken(cursor, self._job, [source.name for source in self._inputs])
        return self._outcome(quarantined, spark_seconds)

    def _new_rooms(self) -> float:
        """Loads the new rooms, and stages the new events of existing ones. Returns the seconds that Spark took to start."""
        started, spark_seconds = time.monotonic(), 0.0
        worth_it = bytes_of_inputs(self._inputs) > BYTES_IN_PROCESS
        with session_if_worth_it(self._run, "import", self._options.master, worth_it=worth_it) as spark:
            if spark is None:
                with closing(InProcess(self._run.step)) as runner:
                    self._read_and_load(runner)
            else:
                spark_seconds = time.monotonic() - started
                self._run.say(f"Spark: started in {spark_seconds:.1f} s")
                with spark_steps(self._run, spark):
                    self._read_and_load(OnSpark(spark))
        with long_transaction(self._using) as cursor:
            order_known_events(cursor, self._job, as_history=self._options.as_history)
        return spark_seconds

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

    def _read_and_load(self, runner: InProcess | OnSpark) -> None:
        with parts_of_inputs(self._inputs, PART_BYTES) as parts:
            with self._sources_at_rest():
                packs = self._read(runner, parts)
            self._options.pause("read")
            self._run.step()
            self._load(runner, packs)
        self._options.pause("load")

    def _read(self, runner: InProcess | OnSpark, parts: Sequence[Part]) -> Packs:
        """Reads all lines, and divides the rooms into packs."""
        limit, keys = pipeline_settings().import_line_limit_bytes, self._signatures.keys
        with self._run.watch("scan", len(parts), "parts", runner.finished()):
            scans = runner.scan(parts, limit, keys)
        self._store_row_counts(parts, scans)
        announced = dict(pair for scan in reversed(scans) for pair in scan.versions.items())  # the first counts
        rules = LineRules(limit, keys, stream_settings().server_name, announced)
        reading = Reading(parts, lines_before(parts, [scan.lines for scan in scans]), rules)
        work = ReadWork(self._job, dsn(self._using), reading, self._inputs)
        known = self._asked(planned_packs)
        with self._run.watch("read", sum(scan.lines for scan in scans), "lines", lambda: self._asked(lines_read)):
            packs = runner.read(work, None if known is None else Packs(**known), self._options.events_per_pack)
        if known is None:
            with self._cursor() as cursor:
                store_packs(cursor, self._job, asdict(packs))
        return packs

    @contextmanager
    def _sources_at_rest(self) -> Iterator[None]:
        """Raises ``SourceChanged`` at the end of the block if a source has changed.

        ``SourceChanged`` replaces any error of the block, because the change of the source may have caused that error.
        """
        try:
            yield
        finally:
            check_unchanged(self._inputs)

    def _store_row_counts(self, parts: Sequence[Part], scans: Sequence[PartScan]) -> None:
        rows = dict.fromkeys(range(len(self._inputs)), 0)
        for part, scan in zip(parts, scans, strict=True):
            rows[part.file] += scan.lines
        sources = list(ImportSource.objects.using(self._using).filter(job_id=self._job))
        for source in sources:
            source.rows = rows[source.number]
        ImportSource.objects.using(self._using).bulk_update(sources, ["rows"], batch_size=1_000)

    def _load(self, runner: InProcess | OnSpark, packs: Packs) -> None:
        """Computes and loads the packs that are not loaded yet."""
        work = PackWork(LoadWork(dsn(self._using), self._job, writer_name()), self._options.as_history)
        with self._run.watch("load", packs.events, "events", lambda: self._asked(events_done)):
            try:
                runner.load(work, packs, frozenset(self._asked(packs_done)))
            except SparkFailed as failed:
                if SourceChanged.__name__ in str(failed):  # raised by a task
                    check_unchanged(self._inputs)
                raise

    def _asked(self, question: Callable[[Any, int], T]) -> T:
        """Asks the job's ledger. May be called in any thread, such as the thread that reports progress."""
        with self._cursor() as cursor:
            return question(cursor, self._job)

    # --- figures ----------------------------------------------------------------------------------------------------

    def _outcome(self, quarantined: int, spark_seconds: float) -> Outcome:
        loaded = list(ImportedRoom.objects.using(self._using).filter(job_id=self._job))
        return Outcome(
            read=self._asked(lines_read),
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
