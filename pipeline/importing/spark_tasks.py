"""Runs the Spark tasks of an import: one task for each part of a source, and one task for each pack of rooms.

A pack is a list of rooms that one task computes. Tasks are numbered, and Spark starts them in the order of the numbers.
Packs of large rooms come first. Executors import the functions of tasks by name, from modules that do not need Django.
So Spark sends only plain values with a task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.frames.sources.parts import Part
from pipeline.importing import work_out_rooms as on_executors
from pipeline.importing.parse_lines import LineWork, stage_part
from pipeline.importing.plan import PlannedRoom
from pipeline.importing.work_out_rooms import RoomWork
from pipeline.spark.run_tasks import run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["pack_rooms", "stage_parts", "stage_rooms"]

EVENTS_PER_TASK = 20_000


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

    The largest rooms come first. So no large room is computed alone at the end, while other cores are idle.
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
