"""Facts per second of a follower that is far behind and counts, from the table; and the server's memory meanwhile.

The facts are made by PostgreSQL itself, as those of a writer that has left. While the follower comes back a writer goes on
appending and ``manage.py runreplication`` serves, so the figures are those of a follower that converges on a live stream.
"""

from __future__ import annotations

import os
import statistics
import threading

from django.db import connection, connections

from script.benchmarks.broadcast import hear, process
from script.benchmarks.memory import MemoryWatch
from script.benchmarks.report import Report
from streams import registry
from streams.catalog.models import CacheInvalidation
from streams.models import StoredCursor
from streams.writing.name import use_instance

FACTS = int(os.environ.get("REPLSITE_BENCH_FACTS") or 200_000)
ROUNDS = 3
WRITER_PAUSE_SECONDS = 0.01
LEAST_PER_SECOND = 200_000
MOST_SERVER_GROWTH = 100 * 1024 * 1024

_MAKE = """
SET LOCAL streams.maintenance = on;
INSERT INTO streams_cacheinvalidation (stream_id, instance_name, cache_name, keys, invalidation_ts)
SELECT n, 'past', 'get_user_by_id', ARRAY['@user' || n || ':example.org'], 1600000000000 + n FROM generate_series(%s, %s) AS n
"""
_WRITER = """
INSERT INTO streams_streamposition (stream, instance_name, position, last_write_position, state)
VALUES ('caches', 'past', %s, %s, 'retired')
"""


def make_past(facts: int = FACTS) -> int:
    """All the facts that the followers are behind; returns the last token."""
    stream = registry.get("caches")
    with connection.cursor() as cursor:
        first = stream.sequence_value(cursor) + 1
        last = first + facts - 1
        cursor.execute("SELECT setval('streams_cacheinvalidation_seq', %s)", [last])
        cursor.execute(_MAKE, [first, last])
        cursor.execute(_WRITER, [last, last])
        cursor.execute("VACUUM ANALYZE streams_cacheinvalidation")
    return last


class Appending:
    """A writer that goes on in a thread."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._append)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _append(self) -> None:
        stream = registry.get("caches")
        while not self._stop.wait(WRITER_PAUSE_SECONDS):
            stream.append(CacheInvalidation(cache_name="bench", keys=["key"]))
        connections.close_all()


def once(where: str, view: str, upto: int) -> tuple[float, float, float]:
    """(facts per second, growth of the follower's memory in MB, its CPU seconds for 10^6 facts)."""
    StoredCursor.objects.all().delete()
    with process("-m", "script.benchmarks.catchup_follower", where, view, str(upto)) as follower:
        _, seconds, facts, growth, cpu = hear(follower).split()
    return int(facts) / float(seconds), int(growth) / 1024 / 1024, float(cpu) / int(facts) * 1e6


def main() -> None:
    """Measure followers and readers in both views."""
    use_instance("bench")
    report = Report("catchup", f"facts per second from the table, {FACTS} behind, a writer going on")
    upto = make_past()
    with process("manage.py", "runreplication", "--bind", "127.0.0.1:0") as server, Appending():
        port = hear(server).rsplit(":", 1)[1]
        once(port, "writer", upto)  # warm the server and the table
        for who, where in (("follower", port), ("reader", "reader")):
            for view in ("writer", "linear"):
                with MemoryWatch(server.pid) as memory:
                    results = [once(where, view, upto) for _ in range(ROUNDS)]
                rate = statistics.median(rate for rate, _, _ in results)
                growth = memory.growth_bytes
                report.add(
                    who=who,
                    view=view,
                    facts_per_second=rate,
                    limit=LEAST_PER_SECOND,
                    well=rate >= LEAST_PER_SECOND and growth <= MOST_SERVER_GROWTH,
                    cpu_per_million=min(cpu for _, _, cpu in results),
                    follower_growth_mb=max(growth for _, growth, _ in results),
                    server_growth_mb=growth / 1024 / 1024,
                    server_limit_mb=MOST_SERVER_GROWTH / 1024 / 1024,
                )
    report.finish()
