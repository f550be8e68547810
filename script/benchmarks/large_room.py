"""One large room in one worker: how much memory computing and loading it takes by the size of its chunks, and how fast it is.

The lines are staged and planned as an import does; then a process of its own loads the room, as a task of Spark would.
The peer is the room as one chunk, everything at hand. ``REPLSITE_BENCH_EVENTS`` makes the room smaller or larger; 10^6 as one
chunk take 2 GB, so from there on only chunks are measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from django.db import connection, transaction

from events.columns import COLUMNS
from pipeline.frames.parse_lines import LineRules
from pipeline.frames.sources.inputs import open_inputs, parts_of_inputs
from pipeline.importing.plan import create_staging, drop_staging, make_plan, planned_rooms
from pipeline.importing.stage_lines import LineWork, stage_part
from pipeline.models import Job
from script.benchmarks.histories import make_history
from script.benchmarks.report import Report
from streams.db.driver import dsn
from streams.holds.hold import CHANGE_FACTS

EVENTS = int(os.environ.get("REPLSITE_BENCH_EVENTS") or 200_000)
MOST_EVENTS_AT_ONCE = 500_000
CHUNKS = (5_000, 20_000, 50_000)
LEAST_OF_WHOLE = 0.9
MOST_BYTES_PER_EVENT = 600

_WORKER = """
import json, os, resource, sys, time
from pipeline.importing.load_rooms import RoomWork, load_planned
from pipeline.importing.plan import PlannedRoom
from pipeline.loading.load_pack import LoadWork
job, number, room_id, events, chunk, dsn = sys.argv[1:]
before = resource.getrusage(resource.RUSAGE_SELF)
begun = time.monotonic()
work = RoomWork(LoadWork(dsn, int(job), "bench"), False, int(chunk))
assert load_planned(work, [PlannedRoom(int(number), room_id, int(events))]) == []
after = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({
    "wall": time.monotonic() - begun,
    "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    "empty_mb": before.ru_maxrss / 1024,
    "peak_mb": after.ru_maxrss / 1024,
}))
"""


def stage(path: Path, job: int) -> tuple[int, str, int]:
    """Stage and plan a file with one room; returns its number, ID and events."""
    with transaction.atomic(), connection.cursor() as cursor:
        create_staging(cursor, job)
    with parts_of_inputs(open_inputs([str(path)]), 2**24) as parts:
        for number, part in enumerate(parts):
            stage_part(LineWork(job, dsn("default"), LineRules()), number, part)
    with transaction.atomic(), connection.cursor() as cursor:
        make_plan(cursor, job, as_history=False)
        (room,) = planned_rooms(cursor, job)
    return room.room_no, room.room_id, room.events


def load(room: tuple[int, str, int], job: int, chunk: int) -> dict[str, Any]:
    """What a worker says that computes and loads the room; the room is emptied first."""
    with connection.cursor() as cursor:
        cursor.execute(f"{CHANGE_FACTS}; TRUNCATE {', '.join((*COLUMNS, 'pipeline_importedroom'))}")
    arguments = [str(job), *map(str, room), str(chunk), dsn("default")]
    found = subprocess.run([sys.executable, "-c", _WORKER, *arguments], stdout=subprocess.PIPE, check=True, text=True)
    answer: dict[str, Any] = json.loads(found.stdout)
    return answer


def main() -> None:
    """Each size of chunks, and the whole."""
    with tempfile.TemporaryDirectory() as folder:
        (path,) = make_history(Path(folder), [EVENTS], 1)
        job = Job.objects.create(kind="import_events").pk
        room = stage(path, job)
    whole = load(room, job, EVENTS) if EVENTS <= MOST_EVENTS_AT_ONCE else None
    columns = ["chunk", "events_per_second", "cpu_us", "peak_mb", "bytes_per_event", "ratio", "ratio_limit", "ok"]
    report = Report("large_room", f"computing and loading one room of {EVENTS:,} events in one worker", columns)
    for chunk in CHUNKS:
        add(report, f"{chunk:,}", load(room, job, chunk), whole)
    if whole is not None:
        add(report, "whole", whole, None)
    with connection.cursor() as cursor:
        drop_staging(cursor, [job])
    report.finish()


def add(report: Report, chunk: str, found: dict[str, Any], whole: dict[str, Any] | None) -> None:
    """A row; CPU is compared, since the wall clock hears of everybody else."""
    carried = (found["peak_mb"] - found["empty_mb"]) * 1024 * 1024 / EVENTS
    ratio = whole["cpu"] / found["cpu"] if whole is not None else None
    well = chunk == "whole" or (carried <= MOST_BYTES_PER_EVENT and (ratio is None or ratio >= LEAST_OF_WHOLE))
    report.add(
        chunk=chunk,
        events_per_second=EVENTS / found["wall"],
        cpu_us=found["cpu"] / EVENTS * 1e6,
        peak_mb=found["peak_mb"],
        bytes_per_event=carried,
        ratio=ratio,
        ratio_limit=f">= {LEAST_OF_WHOLE} of the whole's speed, <= {MOST_BYTES_PER_EVENT} bytes an event",
        ok="yes" if well else "NO",
    )
