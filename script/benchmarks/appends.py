"""Appends per second, against the same insert through Django's own connection without any of it.

The peer does ``BEGIN; INSERT … nextval … RETURNING; COMMIT``: no reservation, no position, no announcement, and a reader that
polls by ID would lose facts of it. Also counts announcements per append.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable

from django.db import connection, connections, transaction

from script.benchmarks.report import Report, median_ratio, rounds
from streams import registry, writers
from streams.models import CacheInvalidation

SECONDS = 2.0
ROUNDS = 3
THREADS = (1, 8, 32)

_PEER = """
INSERT INTO streams_cacheinvalidation (stream_id, instance_name, cache_name, keys)
VALUES (nextval('streams_cacheinvalidation_seq'), 'peer', 'bench', ARRAY['key']) RETURNING stream_id
"""


def peer() -> None:
    """One transaction of the peer."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_PEER)
        cursor.fetchone()


def ours() -> None:
    """One append."""
    registry.get("caches").append(CacheInvalidation(cache_name="bench", keys=["key"]))


def per_second(work: Callable[[], None], threads: int) -> float:
    """How often ``work`` ends in a second, over all threads."""
    stop = time.perf_counter() + SECONDS
    counts = [0] * threads

    def run(number: int) -> None:
        connection.ensure_connection()
        while time.perf_counter() < stop:
            work()
            counts[number] += 1
        connections.close_all()

    begun = time.perf_counter()
    running = [threading.Thread(target=run, args=(n,)) for n in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return sum(counts) / (time.perf_counter() - begun)


def announcements() -> int:
    """How often the stored position of this process was written so far."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'streams_streamposition'")
        return int(cursor.fetchone()[0])


def main() -> None:
    """Measure with 1, 8 and 32 threads."""
    writers.use_instance("bench-{n}")
    report = Report("appends", "appends per second", ["threads", "ours", "peer", "ratio"])
    ours()
    for threads in THREADS:
        result = rounds(
            ROUNDS, {"ours": lambda n=threads: per_second(ours, n), "peer": lambda n=threads: per_second(peer, n)}
        )  # type: ignore[misc]
        report.add(
            threads=threads,
            ours=statistics.median(result["ours"]),
            peer=statistics.median(result["peer"]),
            ratio=median_ratio(result["ours"], result["peer"]),
        )
    writers.retire_all()
    report.finish()
