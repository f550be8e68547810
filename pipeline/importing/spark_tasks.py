"""The Spark tasks of an import: one for each part of a source, and one for each pack of rooms.

A pack is a list of rooms that one task computes. Tasks are numbered, and Spark starts them in the order of the numbers.
Packs of large rooms come first. Executors import the code of tasks by name from modules without Django, so a task
carries plain values only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from events.room.verification import KeyRing
from pipeline.importing import work_out_rooms as on_executors
from pipeline.importing.parse_lines import LineWork, PartScan, scan_part, stage_part
from pipeline.importing.plan import PlannedRoom
from pipeline.importing.sources.parts import Part
from pipeline.importing.work_out_rooms import RoomWork
from pipeline.spark.run_tasks import run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["pack_rooms", "scan_parts", "stage_parts", "stage_rooms"]

EVENTS_PER_TASK = 20_000


def scan_parts(
    spark: SparkSession, parts: Sequence[Part], limit_bytes: int, keys: KeyRing | None = None
) -> list[PartScan]:
    """Scans each part for its number of lines and for room versions. Returns the results in the order of the parts."""

    def scan(number: int) -> str:
        found = scan_part(parts[number], limit_bytes, keys)
        return json.dumps([found.lines, dict(found.versions)])

    return [PartScan(*json.loads(answer)) for answer in run_tasks(spark, len(parts), scan)]


def stage_parts(spark: SparkSession, work: LineWork, parts: Sequence[Part]) -> None:
    """Parses all parts into the staging tables."""

    def stage(number: int) -> str:
        return str(stage_part(work, number, parts[number]))

    run_tasks(spark, len(parts), stage)


def stage_rooms(spark: SparkSession, work: RoomWork, packs: Sequence[Sequence[PlannedRoom]]) -> None:
    """Computes the rows of all rooms and stores them in the staging tables."""

    def stage(number: int) -> str:
        rooms = [(room.room_no, room.room_id, room.events) for room in packs[number]]
        return str(on_executors.stage_rooms(work, rooms))

    run_tasks(spark, len(packs), stage)


def pack_rooms(rooms: Sequence[PlannedRoom], events: int = EVENTS_PER_TASK) -> list[list[PlannedRoom]]:
    """Divides the rooms into packs of at most ``events`` events. A larger room is a pack of its own.

    The largest rooms come first, so that none of them is left running alone at the end.
    """
    packs: list[list[PlannedRoom]] = []
    size = events
    for room in sorted(rooms, key=lambda room: -room.events):
        if size + room.events > events:
            packs.append([])
            size = 0
        packs[-1].append(room)
        size += room.events
    return packs
