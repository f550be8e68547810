"""The Spark side of an import: one task for each part of a file, and for each handful of rooms.

Tasks are numbered and given to Spark in order, largest first where sizes differ. What runs in the executors is imported by
name from the pure modules; only plain values travel.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from events.room.verification import KeyRing
from pipeline.errors import SparkFailed
from pipeline.importing import work_out_rooms as on_executors
from pipeline.importing.parse_lines import LineWork, PartScan, scan_part, stage_part
from pipeline.importing.plan import PlannedRoom
from pipeline.importing.sources.parts import Part
from pipeline.importing.work_out_rooms import RoomWork

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["finished_tasks", "last_words", "pack_rooms", "run_tasks", "scan_parts", "stage_parts", "stage_rooms"]

_ERROR_NAMED = re.compile(r"[\w.]+(Error|Exception|Refused|Missing)\b|psycopg2\.errors\.\w+:")
EVENTS_PER_TASK = 20_000


def scan_parts(
    spark: SparkSession, parts: Sequence[Part], limit_bytes: int, keys: KeyRing | None = None
) -> list[PartScan]:
    """Look at every part once; the answers are in the order of the parts."""

    def scan(number: int) -> str:
        found = scan_part(parts[number], limit_bytes, keys)
        return json.dumps([found.lines, dict(found.versions)])

    return [PartScan(*json.loads(answer)) for answer in run_tasks(spark, len(parts), scan)]


def finished_tasks(spark: SparkSession) -> int:
    """How many tasks of what Spark works on now are done; may be asked from another thread."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)


def stage_parts(spark: SparkSession, work: LineWork, parts: Sequence[Part]) -> None:
    """Parse every part into the staging tables."""

    def stage(number: int) -> str:
        return str(stage_part(work, number, parts[number]))

    run_tasks(spark, len(parts), stage)


def stage_rooms(spark: SparkSession, work: RoomWork, packs: Sequence[Sequence[PlannedRoom]]) -> None:
    """Work out every room into the staging tables."""

    def stage(number: int) -> str:
        rooms = [(room.room_no, room.room_id, room.events) for room in packs[number]]
        return str(on_executors.stage_rooms(work, rooms))

    run_tasks(spark, len(packs), stage)


def pack_rooms(rooms: Sequence[PlannedRoom], events: int = EVENTS_PER_TASK) -> list[list[PlannedRoom]]:
    """Rooms in tasks of about equal size, the largest first, so that no large room is left for the end."""
    packs: list[list[PlannedRoom]] = []
    size = events
    for room in sorted(rooms, key=lambda room: -room.events):
        if size + room.events > events:
            packs.append([])
            size = 0
        packs[-1].append(room)
        size += room.events
    return packs


def run_tasks(spark: SparkSession, tasks: int, work: Callable[[int], str]) -> list[str]:
    """``work(0)`` to ``work(tasks - 1)``, each in a Spark task of its own; the answers in that order."""
    if not tasks:
        return []

    def each(numbers: Iterable[int]) -> Iterable[str]:
        from streams.runtime.gc_pause import keep_for_good  # noqa: PLC0415 - in the executor

        for number in numbers:
            yield work(number)
        keep_for_good()

    from py4j.protocol import Py4JError  # noqa: PLC0415 - the rest of this module needs no Spark
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:  # of RDDs, since a data frame's first query would cost the JVM seconds
        return spark.sparkContext.parallelize(range(tasks), tasks).mapPartitions(each).collect()
    except (PySparkException, Py4JError) as error:  # its text needs the JVM, which may be gone when somebody prints it
        raise SparkFailed(f"Spark could not finish: {last_words(str(error))}") from None


def last_words(text: str) -> str:
    """Of a remote traceback the line that says what happened, and where in our rooms."""
    lines = [line.strip() for line in text.splitlines()]
    python = [
        line
        for line in lines
        if line and not line.startswith(("at ", "...", "Driver stacktrace", "SQLSTATE", "^", "~"))
    ]
    named = [line for line in python if _ERROR_NAMED.match(line)]
    where = [line for line in python if line.startswith("File ")]
    return " ".join([*(named or python)[-1:], *where[-1:]])[:1000]
