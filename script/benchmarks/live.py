"""The live pipeline, a million facts behind: how fast it catches up, and what it costs when there is nothing to do.

* *catch up*: events per second from the start of the queries (of a running session) until all are in the statistics;
  *after the first batch* leaves out what Java and Python need to get going. The peer is PostgreSQL summing up the same rows
  by room in one query.
* *idle*: share of one core that the driver, the JVM, the Python workers and PostgreSQL take together while nothing comes in.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field

from django.db import connection

from pipeline.live.process import LiveOptions, run
from pipeline.models import BatchLedger, RoomStatistics
from script.benchmarks.import_once import Meter
from script.benchmarks.report import Report
from streams import registry

FACTS = int(os.environ.get("REPLSITE_BENCH_FACTS") or 1_000_000)
ROOMS, USERS = 2_000, 20_000
LEAST_PER_SECOND, LEAST_STEADY = 30_000, 60_000
MOST_IDLE_SHARE = 0.25
_IDLE_SECONDS = 10.0
_DEADLINE_SECONDS = 300.0

_MAKE = """
SET LOCAL streams.maintenance = on;
INSERT INTO events_event
  (stream_ordering, instance_name, event_id, room_id, type, sender, topological_ordering, origin_server_ts)
SELECT n, 'past', '$' || md5(n::text) || ':example.org', '!room' || n::bigint * 7919 %% %(rooms)s || ':example.org',
  'm.room.message', '@user' || n::bigint * 104729 %% %(users)s || ':example.org', n, 1600000000000 + n
FROM generate_series(%(first)s, %(last)s) AS n
"""
_WRITER = """
INSERT INTO streams_streamposition (stream, instance_name, position, last_write_position, state)
VALUES ('events', 'past', %(last)s, %(last)s, 'retired')
"""
_PEER = """
SELECT count(*) FROM (
  SELECT room_id, count(*), count(*) FILTER (WHERE type = 'm.room.message'), max(stream_ordering)
  FROM events_event WHERE stream_ordering > 0 GROUP BY 1
) AS summed
"""


def make_past() -> None:
    """Events that nobody has counted, as those of a writer that has left."""
    stream = registry.get("events")
    with connection.cursor() as cursor:
        first = stream.sequence_value(cursor) + 1
        last = first + FACTS - 1
        cursor.execute("SELECT setval('events_event_stream_seq', %s)", [last])
        cursor.execute(_MAKE, {"first": first, "last": last, "rooms": ROOMS, "users": USERS})
        cursor.execute(_WRITER, {"last": last})
        cursor.execute("VACUUM ANALYZE events_event")


def peer_seconds() -> float:
    """PostgreSQL alone, twice; the second counts."""
    seconds = 0.0
    for _ in range(2):
        begun = time.perf_counter()
        with connection.cursor() as cursor:
            cursor.execute(_PEER)
        seconds = time.perf_counter() - begun
    return seconds


@dataclass
class Measured:
    """What a run showed."""

    begun: float = 0.0
    cpu: float = 0.0
    batches: list[tuple[float, int, float]] = field(default_factory=list)
    """(seconds, events, CPU seconds) after each batch, from the start."""
    idle_share: float = 0.0


def measure() -> Measured:
    """Run the pipeline here until it has caught up and was idle for a while."""
    found, done, meter = Measured(), threading.Event(), Meter()

    def cpu_seconds() -> float:
        return sum(meter.cpu().values())

    def begin() -> None:
        found.begun, found.cpu = time.perf_counter(), cpu_seconds()
        threading.Thread(target=watch, daemon=True).start()

    def watch() -> None:
        try:
            while (seconds := time.perf_counter() - found.begun) < _DEADLINE_SECONDS:
                events = counted()
                if events > (found.batches[-1][1] if found.batches else 0):
                    found.batches.append((seconds, events, cpu_seconds() - found.cpu))
                if events >= FACTS:
                    break
                time.sleep(0.1)
            time.sleep(3.0)  # the last figures
            before = cpu_seconds()
            time.sleep(_IDLE_SECONDS)
            found.idle_share = (cpu_seconds() - before) / _IDLE_SECONDS
        finally:
            connection.close()
            done.set()

    run(LiveOptions(), done.is_set, begin)
    if counted() != FACTS:
        raise AssertionError(f"{counted()} of {FACTS} events are in the statistics")
    return found


def counted() -> int:
    """Events in the statistics."""
    return sum(RoomStatistics.objects.values_list("events", flat=True))


def main() -> None:
    """Make the past, then catch up."""
    make_past()
    report = Report("live", f"the live pipeline, {FACTS} facts behind, {ROOMS} rooms, {USERS} users")
    peer = FACTS / peer_seconds()
    found = measure()
    (first, begun_with, cpu_first), (last, events, cpu_last) = found.batches[0], found.batches[-1]
    for what, limit, count, seconds, cpu in (
        ("catch up, events/s", LEAST_PER_SECOND, events, last, cpu_last),
        ("after the first batch", LEAST_STEADY, events - begun_with, last - first, cpu_last - cpu_first),
    ):
        rate = count / max(seconds, 0.001)
        report.add(
            what=what, ours=rate, limit=limit, well=rate >= limit, peer=peer, ratio=rate / peer,
            cpu_per_million=cpu / max(count, 1) * 1e6, batches=BatchLedger.objects.get(query="statistics").batches,
        )  # fmt: skip
    report.add(
        what="idle, share of one core",
        ours=found.idle_share,
        limit=MOST_IDLE_SHARE,
        well=found.idle_share <= MOST_IDLE_SHARE,
    )
    report.finish()
