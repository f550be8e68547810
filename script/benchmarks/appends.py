"""Appends per second, against the same insert through Django's own connection without any of it, and against a table lock.

The *peer* does ``BEGIN; INSERT … nextval … RETURNING; COMMIT``: no reservation, no position, no announcement, and a reader that
polls by ID would lose facts of it. *lock* is what simpler designs do so that none is lost: one table lock per append, held to
the end of the transaction. Also counts announcements per append.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial

from django.db import connection, connections, transaction

from script.benchmarks.report import Report, median_ratio, rounds
from streams import registry
from streams.db import driver
from streams.models import CacheInvalidation
from streams.reading.position_notifications import CHANNEL
from streams.writing import process

SECONDS = 1.0
ROUNDS = 3
THREADS = (1, 8, 32)
BATCH = 10
BATCH_THREADS = (1, 8)

_ROW = "(nextval('streams_cacheinvalidation_seq'), 'peer', 'bench', ARRAY['key'])"
_PEER = (
    "INSERT INTO streams_cacheinvalidation (stream_id, instance_name, cache_name, keys) VALUES {} RETURNING stream_id"
)
_LOCKED_TABLE = "CREATE TABLE IF NOT EXISTS bench_locked (LIKE streams_cacheinvalidation INCLUDING ALL)"
_LOCKED = """
INSERT INTO bench_locked (stream_id, instance_name, cache_name, keys)
SELECT coalesce(max(stream_id), 1) + 1, 'peer', 'bench', ARRAY['key'] FROM bench_locked RETURNING stream_id
"""


def peer(rows: int = 1, statements: int = 1) -> None:
    """One transaction of the peer."""
    with transaction.atomic(), connection.cursor() as cursor:
        for _ in range(statements):
            cursor.execute(_PEER.format(", ".join([_ROW] * rows)))
            cursor.fetchall()


def lock() -> None:
    """One transaction of a design without gaps: who appends has the table for itself."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("LOCK TABLE bench_locked IN EXCLUSIVE MODE")
        cursor.execute(_LOCKED)
        cursor.fetchall()


def ours(rows: int = 1) -> None:
    """One append."""
    registry.get("caches").append(*(CacheInvalidation(cache_name="bench", keys=["key"]) for _ in range(rows)))


def ours_in_turn() -> None:
    """As many appends in one transaction."""
    with transaction.atomic():
        for _ in range(BATCH):
            ours()


def per_second(work: Callable[[], None], threads: int) -> float:
    """How often ``work`` ends in a second, over all threads."""
    counts, ended = [0] * threads, [0.0] * threads
    connected = threading.Barrier(threads + 1)

    def run(number: int) -> None:
        connection.ensure_connection()
        connected.wait()
        stop = time.perf_counter() + SECONDS
        while time.perf_counter() < stop:
            work()
            counts[number] += 1
        ended[number] = time.perf_counter()
        connections.close_all()

    running = [threading.Thread(target=run, args=(n,)) for n in range(threads)]
    for thread in running:
        thread.start()
    connected.wait()
    begun = time.perf_counter()
    for thread in running:
        thread.join()
    return sum(counts) / (max(ended) - begun)


@contextmanager
def announcements(said: list[int]) -> Iterator[None]:
    """Counts what is announced inside."""
    with closing(driver.direct_connection(application_name="bench")) as listener, listener.cursor() as cursor:
        cursor.execute(f"LISTEN {CHANNEL}")
        yield
        cursor.execute("SELECT 1")
        said.append(len(listener.notifies))


def counted(threads: int, shares: list[float]) -> float:
    """Our appends per second; adds announcements per append to ``shares``."""
    said: list[int] = []
    with announcements(said):
        rate = per_second(ours, threads)
    shares.append(said[0] / (rate * SECONDS))
    return rate


def single_appends(report: Report) -> None:
    """One fact per transaction."""
    for threads in THREADS:
        shares: list[float] = []
        result = rounds(
            ROUNDS,
            {
                "ours": partial(counted, threads, shares),
                "peer": partial(per_second, peer, threads),
                "lock": partial(per_second, lock, threads),
            },
        )
        add(report, "one append", threads, result, 1, announcements=statistics.median(shares))


def batches(report: Report) -> None:
    """Ten facts per transaction: in one call, and in ten."""
    kinds: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
        f"one append of {BATCH}": (partial(ours, BATCH), partial(peer, BATCH)),
        f"{BATCH} appends": (ours_in_turn, partial(peer, 1, BATCH)),
    }
    for threads in BATCH_THREADS:
        for name, (work, other) in kinds.items():
            measures = {"ours": partial(per_second, work, threads), "peer": partial(per_second, other, threads)}
            add(report, name, threads, rounds(ROUNDS, measures), BATCH)


def add(
    report: Report,
    name: str,
    threads: int,
    result: dict[str, list[float]],
    facts: int,
    announcements: float | None = None,
) -> None:
    """A row: medians in facts per second, ratios pair by pair."""
    figures = {kind: statistics.median(rates) * facts for kind, rates in result.items()}
    report.add(
        transaction=name,
        threads=threads,
        **figures,
        ratio=median_ratio(result["ours"], result["peer"]),
        over_lock=median_ratio(result["ours"], result["lock"]) if "lock" in result else "",
        announcements="" if announcements is None else announcements,
    )


def main() -> None:
    """Measure with 1, 8 and 32 threads."""
    process.use_instance("bench-{n}")
    columns = ["transaction", "threads", "ours", "peer", "lock", "ratio", "over_lock", "announcements"]
    report = Report("appends", "facts appended per second", columns)
    ours()
    with connection.cursor() as cursor:
        cursor.execute(_LOCKED_TABLE)
    single_appends(report)
    batches(report)
    process.retire_all()
    report.finish()
