"""Events per second of ``resync rooms --all``: state, visibility and extremities recomputed beside what is stored, on Spark.

The rooms are imported from made histories (``histories``): 10^6 events in 2,000 rooms, one of which has 200,000. First nothing
differs; then every tenth room is damaged, in one of three ways, and mended; then everybody's view of every room is lost. Last, a
part of the rooms in one process without Spark. CPU is in microseconds per event. The rate is without the seconds that Spark
takes to start, which do not depend on the events; they are told. A run that does not find just what was planted, or leaves
something, ends the benchmark.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from django.db import connection

from pipeline.models import Job
from pipeline.operations.resync_and_room_mend import Resync
from script.benchmarks.histories import make_history, sizes_of_rooms
from script.benchmarks.import_ import once
from script.benchmarks.import_once import Meter
from script.benchmarks.report import Report
from streams.jobs.run import run_job
from streams.writing.name import use_instance

EVENTS = int(os.environ.get("REPLSITE_BENCH_EVENTS") or 1_000_000)
LEAST_PER_SECOND = 20_000
DAMAGED = 10
IN_PROCESS_EVENTS = 40_000
_NUMBERED = "(SELECT room_id, row_number() OVER (ORDER BY room_id) AS number FROM events_room) r"
#: A wrong delta, a wrong range, a lost extremity: each in every thirtieth room.
_DAMAGE = (
    f"""
    UPDATE state_stategroupdelta SET event_id = '$wrong' FROM {_NUMBERED} JOIN state_stategroup g USING (room_id)
    WHERE r.number % {3 * DAMAGED} = 0 AND state_stategroupdelta.chain = g.chain
      AND state_stategroupdelta.state_group = g.id AND type = 'm.room.power_levels'
    """,
    f"""
    UPDATE events_eventvisibility v SET last = first FROM {_NUMBERED}
    WHERE r.number % {3 * DAMAGED} = {DAMAGED} AND v.room_id = r.room_id AND last IS NULL
      AND kind IN ('joined', 'shared', 'world')
    """,
    f"""
    DELETE FROM events_forwardextremity f USING {_NUMBERED}
    WHERE r.number % {3 * DAMAGED} = {2 * DAMAGED} AND f.room_id = r.room_id
    """,
)


def damage() -> int:
    """Plant it; returns how many rooms differ now."""
    with connection.cursor() as cursor:
        for statement in _DAMAGE:
            cursor.execute(statement)
        cursor.execute("SELECT count(*) FROM events_room")
        return int(cursor.fetchone()[0]) // DAMAGED


def lose_views() -> int:
    """Nobody sees anything; returns the number of rooms."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM events_eventvisibility")
        cursor.execute("SELECT count(*) FROM events_room")
        return int(cursor.fetchone()[0])


def some_rooms() -> list[str]:
    """Rooms of together about as many events as one process is given."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT room_id, count(*) FROM events_event GROUP BY 1 ORDER BY 2")
        found, events = [], 0
        for room_id, count in cursor.fetchall():
            if events + count <= IN_PROCESS_EVENTS:
                found.append(room_id)
                events += count
    return found


def resync(name: str, wrong: int, **arguments: Any) -> dict[str, Any]:
    """One run with its figures; raises when it does not find so many rooms that differ, or leaves one so."""
    meter = Meter()
    with meter, meter.step("all"):
        summary: Mapping[str, Any] = run_job(Resync.name, {"what": "rooms", **arguments}, stream=StringIO())
    if (summary["rooms_wrong"], summary["left"], summary["unknown"]) != (wrong, 0, []):
        raise RuntimeError(f"{name}: {wrong} rooms were damaged, but: {summary}")
    rate = Job.objects.latest("pk").rate or 0.0
    seconds = meter.steps["all"].pop("wall")
    spent = {who: cpu / summary["events"] * 1e6 for who, cpu in meter.steps["all"].items()}
    return {
        "run": name,
        "events": summary["events"],
        "per_second": rate,
        "cpu_us": sum(spent.values()),
        "workers_us": spent["workers"],
        "postgres_us": spent["postgres"],
        "start_s": seconds - summary["events"] / rate,
        "workers_mb": meter.most_mb["workers"],
    }


def main() -> None:
    """Import, then the four runs."""
    report = Report("resync", f"state, visibility and extremities of {EVENTS:,} events recomputed and compared")
    with tempfile.TemporaryDirectory() as folder:
        make_history(Path(folder), sizes_of_rooms(EVENTS, max(EVENTS // 500, 40), EVENTS // 5))
        once(sorted(Path(folder).iterdir()))
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
    use_instance("bench")
    spark = {"master": "local[2]"}
    for name, prepare in (("all well", lambda: 0), ("1 in 10 wrong", damage)):
        row = resync(name, prepare(), **spark)
        ratio = row["per_second"] / LEAST_PER_SECOND
        report.add(**row, limit=LEAST_PER_SECOND, ratio=ratio, well="yes" if ratio >= 1 else "NO")
    report.add(**resync("no views", lose_views(), **spark))
    report.add(**resync("one process", 0, rooms=some_rooms()))
    report.finish()
