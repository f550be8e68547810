"""Reads sources as two frames: the events of the sources, and the lines that are no valid events.

A source is divided into parts. First a Spark job scans all parts (``scan_parts``). Later, each time a frame is used,
one Spark task for each part parses the lines of the part. The docstring of ``SourceFrames`` says how long the frames
may be used.

Runs in Spark's driver and executors, without Django.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from events.format.parsing import LINE_LIMIT_BYTES, ParsedEvent
from events.room.verification import KeyRing
from pipeline.frames import kept
from pipeline.frames.event_columns import event_arrays
from pipeline.frames.parse_lines import LineRules, PartScan, parse_lines, scan_part
from pipeline.frames.schemas import BROKEN_LINES, EVENTS
from pipeline.frames.sources.inputs import Input, check_unchanged, open_inputs, parts_of_inputs, read_part
from pipeline.frames.sources.parts import BrokenLine, Part, lines_before
from pipeline.frames.task_rows import InSnapshot, TaskRows, as_read
from pipeline.spark.run_tasks import spark_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import Broadcast
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["LINES", "PART_BYTES", "Reading", "SourceFrames", "part_batches", "read_events", "scan_parts"]

PART_BYTES = 16 * 1024 * 1024
_ROWS_PER_BATCH = 2_000
#: A batch may exceed this by one event. Spark holds several batches at a time, in the worker and in the JVM.
_BYTES_PER_BATCH = 4 * 1024 * 1024
#: Columns of broken lines that events do not have.
_OF_BROKEN = tuple(name for name in BROKEN_LINES.names if name not in EVENTS.names)
LINES = (*EVENTS.names, *_OF_BROKEN)
"""The columns of events and of broken lines."""
_KIND = "lines of sources"


@dataclass(frozen=True, slots=True)
class SourceFrames(InSnapshot):
    """The frames of some sources. ``sources`` has the names of the sources. A source's number is the index of its name.

    ``rows`` has the rows of both frames, events and broken lines. So one pass over the sources can yield both frames. A
    row has the columns of ``EVENTS`` and the columns of ``BROKEN_LINES``. If the row is an event, the columns that only
    ``BROKEN_LINES`` has are null. If the row is a broken line, the columns that only ``EVENTS`` has are null.

    The frames read the sources each time they are used. To read the sources once, call ``keep``, which writes the rows
    to a folder. All tasks that read a PostgreSQL source use one snapshot. The snapshot ends with ``close`` or with the
    ``with`` block. After that, the frames may not be used.
    """

    rows: TaskRows
    """All lines, with the columns ``LINES``."""
    sources: Sequence[str]
    scans: Sequence[PartScan] = ()
    """The result of the scan for each part, in the order of the parts."""
    _inputs: Sequence[Input] = ()
    _open: ExitStack = field(default_factory=ExitStack)

    @property
    def event_rows(self) -> TaskRows:
        """The events as ``TaskRows``, so that a function of the caller can run in the tasks that read the events."""
        return replace(self.rows, read=partial(_chosen, self.rows.read, broken=False))

    @property
    def events(self) -> DataFrame:
        """The events (``EVENTS``)."""
        return self.event_rows.mapped(EVENTS.names, as_read, EVENTS.spark())

    @property
    def broken_lines(self) -> DataFrame:
        """The lines that are no valid events (``BROKEN_LINES``)."""
        rows = replace(self.rows, read=partial(_chosen, self.rows.read, broken=True))
        return rows.mapped(BROKEN_LINES.names, as_read, BROKEN_LINES.spark())

    def keep(self, folder: str | Path) -> SourceFrames:
        """Writes all rows as Parquet to a new folder, a path or URL. Returns frames that read this folder.

        Raises ``SourceChanged`` if a source changed meanwhile. Raises ``UnusableArguments`` if the folder has files, unless
        a killed ``keep`` left them.
        """
        kept.prepare(folder)
        written = self.rows.mapped(LINES, kept.writing(folder), kept.FILES)
        kept.finish(folder, written, {"kind": _KIND, "sources": list(self.sources)}, check=self.check_unchanged)
        return self.kept(self.rows.spark, folder)

    @classmethod
    def kept(cls, spark: SparkSession, folder: str | Path) -> SourceFrames:
        """Returns the frames of a folder that ``keep`` has finished. Raises ``UnusableArguments`` for any other folder."""
        found = kept.open_kept(spark, folder, _KIND)
        return cls(found.rows, found.about["sources"])

    def check_unchanged(self) -> None:
        """Raises ``SourceChanged`` if a source has changed since ``read_events`` opened it."""
        check_unchanged(self._inputs)


@dataclass(frozen=True, slots=True)
class Reading:
    """The values that all tasks share: the parts of the sources, and the rules for parsing lines.

    ``lines_before`` has, for each part, the number of lines before the part in the same source.
    """

    parts: Sequence[Part]
    lines_before: Sequence[int]
    rules: LineRules


def read_events(
    spark: SparkSession,
    sources: Sequence[str | Path],
    *,
    keys: KeyRing | None = None,
    server: str = "",
    versions: Mapping[str, str] | None = None,
    limit_bytes: int = LINE_LIMIT_BYTES,
) -> SourceFrames:
    """Returns the frames of some sources: files of lines, Parquet files or folders of them, and Synapse databases.

    ``keys`` verify the signatures of all events. Without ``keys`` signatures are trusted. An event of a user of
    ``server`` is soft-failed only if the source says that it is. ``versions`` maps room IDs to room versions, for
    events that name no version. A version in ``versions`` takes precedence over the version that a create event
    announces. A line longer than ``limit_bytes`` is a broken line.

    This function scans the sources at once. The events are read when the frames are used. Raises ``UnusableSource`` and
    ``SparkFailed``.
    """
    inputs = open_inputs([str(name) for name in sources])
    with ExitStack() as stack:
        parts = stack.enter_context(parts_of_inputs(inputs, PART_BYTES))
        scans = scan_parts(spark, parts, limit_bytes, keys)
        announced: dict[str, str] = {}
        for scan in scans:
            for room_id, version in scan.versions.items():
                announced.setdefault(room_id, version)
        rules = LineRules(limit_bytes, keys, server, announced | dict(versions or {}))
        # By broadcast: a closure would be sent with every task, and the versions of 10^5 rooms take megabytes.
        reading = spark.sparkContext.broadcast(
            Reading(parts, lines_before(parts, [scan.lines for scan in scans]), rules)
        )
        rows = TaskRows(spark, len(parts), partial(_read_part, reading))
        return SourceFrames(rows, [source.name for source in inputs], scans, inputs, stack.pop_all())


def scan_parts(
    spark: SparkSession, parts: Sequence[Part], limit_bytes: int, keys: KeyRing | None = None
) -> list[PartScan]:
    """Scans each part in a task. Returns a ``PartScan`` for each part, in the order of the parts."""

    def scan(number: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 - executors only

        found = scan_part(parts[number], limit_bytes, keys)
        yield pa.RecordBatch.from_pydict({"lines": [found.lines], "versions": [json.dumps(dict(found.versions))]})

    with spark_errors():
        rows = TaskRows(spark, len(parts), scan).mapped((), as_read, "lines bigint, versions string").collect()
    return [PartScan(lines, json.loads(versions)) for lines, versions in rows]


def _chosen(
    read: Callable[[int, Sequence[str]], Iterator[pa.RecordBatch]],
    number: int,
    columns: Sequence[str],
    *,
    broken: bool,
) -> Iterator[pa.RecordBatch]:
    """Reads the rows of task ``number`` with ``read``. Yields the events, or the broken lines if ``broken`` is true."""
    from pyarrow import compute  # noqa: PLC0415 - executors only

    for batch in read(number, [*columns, "reason"] if "reason" not in columns else columns):
        reason = batch.column("reason")
        if reason.null_count != (0 if broken else batch.num_rows):
            batch = batch.filter(compute.is_valid(reason) if broken else compute.is_null(reason))  # noqa: PLW2901
        if batch.num_rows:
            yield batch.select(list(columns))


def _read_part(reading: Broadcast[Reading], number: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    return (batch.select(list(columns)) for batch in part_batches(reading.value, number))


def part_batches(reading: Reading, number: int) -> Iterator[pa.RecordBatch]:
    """Parses the lines of part ``number``. Yields events and broken lines as batches of bounded rows and bytes."""
    part, before = reading.parts[number], reading.lines_before[number]
    parsed = parse_lines(read_part(part, reading.rules.limit_bytes), reading.rules)
    while lines := list(_bounded(parsed)):
        yield _batch(part, before, lines)


Parsed = tuple[int, ParsedEvent] | BrokenLine


def _bounded(parsed: Iterator[Parsed]) -> Iterator[Parsed]:
    size = 0
    for line in islice(parsed, _ROWS_PER_BATCH):
        yield line
        size += 0 if isinstance(line, BrokenLine) else len(line[1].json)
        if size > _BYTES_PER_BATCH:
            return


def _batch(part: Part, before: int, parsed: Sequence[Parsed]) -> pa.RecordBatch:
    """Returns a batch with the events in ``parsed``, followed by the broken lines in ``parsed``."""
    import pyarrow as pa  # noqa: PLC0415 - executors only

    broken = [line for line in parsed if isinstance(line, BrokenLine)]
    events = [line for line in parsed if not isinstance(line, BrokenLine)]
    numbers = [before + number for number, _ in events] + [before + line.number for line in broken]
    of_events = event_arrays([event for _, event in events])
    of_broken: dict[str, Sequence[Any]] = {
        "name": [part.name] * len(broken),
        "reason": [line.reason for line in broken],
        "detail": [line.detail for line in broken],
        "head": [line.head for line in broken],
    }
    schema = pa.schema([*EVENTS.arrow(), *(field for field in BROKEN_LINES.arrow() if field.name in _OF_BROKEN)])
    columns = []
    for found in schema:
        if found.name == "source":
            column = pa.repeat(pa.scalar(part.file, pa.int64()), len(parsed))
        elif found.name == "line":
            column = pa.array(numbers, pa.int64())
        elif found.name in of_broken:
            column = pa.concat_arrays([pa.nulls(len(events), found.type), pa.array(of_broken[found.name], found.type)])
        else:
            column = of_events[found.name]
            if broken:
                column = pa.concat_arrays([column, pa.nulls(len(broken), found.type)])
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
