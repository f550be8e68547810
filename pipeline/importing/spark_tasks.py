"""The Spark side of an import: one task for each part of a file, and for each handful of rooms.

Tasks are numbered and given to Spark in order, largest first where sizes differ. What runs in the executors is imported by
name from the pure modules; only plain values travel.
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
    """Look at every part once; the answers are in the order of the parts."""

    def scan(number: int) -> str:
        found = scan_part(parts[number], limit_bytes, keys)
        return json.dumps([found.lines, dict(found.versions)])

    return [PartScan(*json.loads(answer)) for answer in run_tasks(spark, len(parts), scan)]


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
