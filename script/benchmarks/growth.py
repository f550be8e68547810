"""CPU of each job that goes through stored rows, by the number of rows: what a row costs at each size, and how that grows.

The rows are put into an empty database by PostgreSQL itself. Then the job runs as its command. CPU is that of the command with
its processes, and of the whole database server. Autovacuum is off, since it comes at any time; a VACUUM and a checkpoint at the
end are counted. What the same command takes for 1,000 rows is taken off: its start. *growth* is the cost of a row over that at
the smallest size that took a second or more; 1 is linear.

``--sizes`` names the sizes, the smallest first. ``--jobs`` runs some jobs only; what was measured of the others stays.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.management import call_command
from django.db import connection

from script.benchmarks.broadcast import PROJECT
from script.benchmarks.catchup import make_past
from script.benchmarks.cpu_seconds import CpuSeconds
from script.benchmarks.filled_room import ROOM, SERVER, Shape, fill_rooms
from script.benchmarks.report import RESULTS, Report
from script.benchmarks.sizes import sizes
from streams.holds.maintenance import session_changing_facts

SIZES = sizes("100000,300000,1000000")
START = 1_000
"""Rows of the run whose cost is taken off."""
MOST_GROWTH = 1.25
LEAST_SECONDS = 1.0
"""A run that takes less CPU than this, without its start, is not compared with: the start varies by as much."""
_ROOM_OF_MANY = 500
"""Events of each room where there are many rooms."""
#: What a purge leaves behind that was stopped before it came to the state groups.
_CUT_SHORT = (
    "DELETE FROM events_eventedge WHERE event_id IN (SELECT event_id FROM events_event WHERE topological_ordering < %(cut)s)",
    """
    WITH gone AS (DELETE FROM events_event WHERE topological_ordering < %(cut)s AND state_key IS NULL RETURNING event_id)
    DELETE FROM events_eventjson WHERE event_id IN (SELECT event_id FROM gone)
    """,
    "UPDATE events_event SET outlier = true, state_group = NULL WHERE topological_ordering < %(cut)s",
    "VACUUM ANALYZE",
)
Command = Sequence[str]


@dataclass(frozen=True, slots=True)
class Job:
    """A job: the rows it goes through, and its command for so many of them. ``before`` runs while there are no rows yet."""

    name: str
    fill: Callable[[int], object]
    command: Callable[[int], Command]
    before: Command = ()


def one_room(rows: int) -> None:
    """A room with a new member in twenty events."""
    fill_rooms(Shape(rows))


def one_room_with_copies(rows: int) -> None:
    """A room of 100 users who change their memberships, whose state is stored in full every 100 changes."""
    fill_rooms(Shape(rows, users=100, copy_every=100))


def many_rooms(rows: int) -> None:
    """Rooms of 500 events and 25 users each."""
    fill_rooms(Shape(rows, rooms=max(rows // _ROOM_OF_MANY, 1), users=25))


def many_rooms_with_copies(rows: int) -> None:
    """The same, with the state stored in full every ten changes."""
    fill_rooms(Shape(rows, rooms=max(rows // _ROOM_OF_MANY, 1), users=25, copy_every=10))


def cut_short(rows: int) -> None:
    """Rooms whose older half was purged, but for the state groups."""
    many_rooms(rows)
    with connection.cursor() as cursor:
        for statement in _CUT_SHORT:
            cursor.execute(statement, {"cut": _ROOM_OF_MANY // 2} if "%(" in statement else None)


_PIPELINE = ("pipeline", "run", "--until-idle", "1")
JOBS = (
    Job("purge history, one room", one_room, lambda rows: ("purge", "history", ROOM, "--before-token", f"t{rows}-0")),
    Job("purge room", one_room, lambda _: ("purge", "room", ROOM, "--force")),
    Job("purge orphans, many rooms", cut_short, lambda _: ("purge", "orphans")),
    Job("purge stream, one half", make_past, lambda rows: ("purge", "stream", "caches", "--keep", str(rows // 2))),
    Job("compress_state, one room", one_room_with_copies, lambda _: ("compress_state", ROOM)),
    Job("compress_state, many rooms", many_rooms_with_copies, lambda _: ("compress_state", "--all")),
    Job("statistics, one room", one_room, lambda _: _PIPELINE),
    Job("statistics, many rooms", many_rooms, lambda _: _PIPELINE),
)


def run(command: Command) -> None:
    """Run a command on a site whose users are those of the rooms."""
    done = subprocess.run(
        [sys.executable, "manage.py", *command],
        cwd=PROJECT, env={**os.environ, "REPLSITE_SERVER_NAME": SERVER},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout[-2000:]}")


def cost(job: Job, rows: int) -> CpuSeconds:
    """The CPU of a job over so many rows, in an empty database but for them."""
    with session_changing_facts(connection):
        call_command("flush", interactive=False, verbosity=0)
    if job.before:
        run(job.before)
    job.fill(rows)
    execute("VACUUM", "CHECKPOINT")
    with CpuSeconds() as cpu:
        run(job.command(rows))
        execute("VACUUM", "CHECKPOINT")
    return cpu


def execute(*statements: str) -> None:
    """Execute the statements, each in a transaction of its own."""
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    connection.close()


def measure(job: Job) -> Iterator[dict[str, Any]]:
    """A row for each size. The start is the lesser of two, since the first run in a new database warms it."""
    start = min((cost(job, START) for _ in range(2)), key=lambda spent: spent.seconds)
    least: Mapping[str, float] = {}
    for rows in SIZES:
        spent = cost(job, rows)
        each = {
            "application": (spent.application - start.application) / (rows - START) * 1e6,
            "server": (spent.server - start.server) / (rows - START) * 1e6,
        }
        each["cpu"] = sum(each.values())
        if not least and each["cpu"] * rows / 1e6 >= LEAST_SECONDS:
            least = each
        growth = each["cpu"] / least["cpu"] if least else None
        well = "" if growth is None else "yes" if growth <= MOST_GROWTH else "NO"
        yield {"job": job.name, "rows": rows, **each, "growth": growth, "limit": MOST_GROWTH, "well": well}


def main() -> None:
    """Each job, at each size."""
    report = Report("growth", "microseconds of CPU for each row that a job goes through")
    execute("ALTER SYSTEM SET autovacuum = off", "SELECT pg_reload_conf()")  # the database ends with the benchmark
    wanted = os.environ.get("REPLSITE_BENCH_JOBS", "")
    rows = {job.name: [row for row in before() if row["job"] == job.name] for job in JOBS}
    for job in JOBS:
        if wanted in job.name:
            rows[job.name] = list(measure(job))
    for found in rows.values():
        for row in found:
            report.add(**row)
    report.finish()


def before() -> list[dict[str, Any]]:
    """The rows of the last run."""
    path = RESULTS / "growth.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    return rows
