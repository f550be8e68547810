"""Events a second of ``purge history`` on one large room, its share of a core, and how a replication server answers beside it.

The share of a core is that of the command and of its database sessions with their parallel workers, over the whole run with its
rests. What the whole database server takes meanwhile, with vacuum, checkpoints and followers, is told beside it. PINGs come
from a server whose interval is set to 100 ms, to 20 followers; each is late by what it came after its time, idle first and then
during the purge. A fact of the purge's own stream goes out for every transaction of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass

import psutil
from django.db import connection

from events.models import Event
from script.benchmarks.broadcast import PROJECT, hear, process, say
from script.benchmarks.cpu_seconds import CpuSeconds
from script.benchmarks.filled_room import fill_room
from script.benchmarks.latency import percentile
from script.benchmarks.report import Report
from script.benchmarks.sampling import Sampling

EVENTS = int(os.environ.get("REPLSITE_BENCH_EVENTS") or 1_000_000)
LEAST_PER_SECOND = 10_000
MOST_OF_A_CORE = 0.5
MOST_LATE_MS = 100.0
FOLLOWERS, INTERVAL_MS = 20, 100
IDLE_SECONDS = 5.0
_SESSIONS = """
SELECT pid, coalesce(leader_pid, pid) FROM pg_stat_activity WHERE backend_type IN ('client backend', 'parallel worker')
"""


class CpuWatch(Sampling):
    """CPU seconds of a command and of the database sessions that come with it; the last sample of each counts."""

    def __init__(self, pid: int, others: set[int]) -> None:
        super().__init__(0.1)
        self._pid, self._others = pid, others
        self._spent: dict[int, float] = {}

    @property
    def seconds(self) -> float:
        """All of them together."""
        return sum(self._spent.values())

    def sample(self) -> None:
        """Those that have ended keep their last figure."""
        for pid in {self._pid, *(pid for pid, leader in sessions() if leader not in self._others)}:
            try:
                times = psutil.Process(pid).cpu_times()
            except psutil.NoSuchProcess:
                continue
            self._spent[pid] = float(times.user + times.system)

    def ended(self) -> None:
        """The thread's own connection."""
        connection.close()


def sessions() -> set[tuple[int, int]]:
    """The database's sessions, each with the one that it works for; the watch's own costs next to nothing."""
    with connection.cursor() as cursor:
        cursor.execute(_SESSIONS)
        return set(cursor.fetchall())


@dataclass(frozen=True, slots=True)
class Purged:
    """One run of the command, its start included; seconds of CPU: its own, and of the whole database server meanwhile."""

    events: int
    seconds: float
    cpu: float
    server_cpu: float


def purge(room_id: str, cut: int) -> Purged:
    """Run the command."""
    command = ["manage.py", "purge", "history", room_id, "--before-token", f"t{cut}-0", "--json"]
    others = {pid for pid, _ in sessions()}
    begun, server = time.monotonic(), CpuSeconds()
    with (
        server,
        subprocess.Popen(
            [sys.executable, *command], cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as running,
    ):
        with CpuWatch(running.pid, others) as watch:
            out, _ = running.communicate()
        if running.returncode:
            raise RuntimeError(f"the purge failed: {out}")
    summary = json.loads(out)
    events = summary["deleted"] + summary["became_outliers"]
    return Purged(events, time.monotonic() - begun, watch.seconds, server.server)


def main() -> None:
    """Purge the room, but for its last event."""
    report = Report("purge", f"purge of {EVENTS} events")
    room_id = fill_room(EVENTS)
    os.environ["REPLSITE_PING_INTERVAL_SECONDS"] = str(INTERVAL_MS / 1000)
    with process("manage.py", "runreplication", "--bind", "127.0.0.1:0") as server:
        port = hear(server).rsplit(":", 1)[1]
        with process("-m", "script.benchmarks.pings", port, str(FOLLOWERS), str(INTERVAL_MS)) as followers:
            hear(followers)
            lateness(followers)
            time.sleep(IDLE_SECONDS)
            idle = lateness(followers)
            done = purge(room_id, EVENTS)
            beside = lateness(followers)
            say(followers, "end")
    left = Event.objects.filter(room_id=room_id, outlier=False).count()
    rate, share, late = done.events / done.seconds, done.cpu / done.seconds, percentile(beside, 0.99)
    report.add(measure="events per second", value=rate, limit=LEAST_PER_SECOND, ratio=rate / LEAST_PER_SECOND,
               well=rate >= LEAST_PER_SECOND, note=f"{done.events} in {done.seconds:.1f} s, {left} left")  # fmt: skip
    report.add(measure="share of a core", value=share, limit=MOST_OF_A_CORE, ratio=share / MOST_OF_A_CORE,
               well=share <= MOST_OF_A_CORE, note=f"{done.cpu / done.events * 1e6:.1f} µs of CPU for an event")  # fmt: skip
    report.add(measure="the whole database server's share", value=done.server_cpu / done.seconds,
               note="vacuum, checkpoints and followers as well")  # fmt: skip
    report.add(measure="PING late by, p99 in ms", value=late, limit=MOST_LATE_MS, ratio=late / MOST_LATE_MS,
               well=late <= MOST_LATE_MS, note=f"{len(beside)} PINGs; idle {percentile(idle, 0.99):.1f} ms")  # fmt: skip
    report.finish()


def lateness(followers: subprocess.Popen[str]) -> list[float]:
    """Milliseconds of every PING since this was asked last."""
    say(followers, "report")
    found: list[float] = json.loads(hear(followers))
    return found
