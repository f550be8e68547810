"""Appends per second, against the same insert through Django's own connection without any of it, and against a table lock.

The *peer* does ``BEGIN; INSERT … nextval … RETURNING; COMMIT`` into a bare table: no hold, no position, no announcement, and a
reader that polls by ID would lose facts of it. Both are measured alone, and inside the caller's ``atomic()`` block with 1, 10 and
100 facts, where the peer inserts them by one statement. *lock* is what simpler designs do so that none is lost: one table lock
per append, held to the end of the transaction. Also counts announcements per append.

*psycopg3* are the same appends, in the same rounds, by a process in which Django uses psycopg 3. ``script/bench`` names the
folder that has it; without the folder the columns are left out.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial

from django.db import connection, connections, transaction
from django.db.backends.postgresql.psycopg_any import is_psycopg3

from script.benchmarks.report import Report, median_ratio, rounds
from streams import registry
from streams.catalog.models import CacheInvalidation
from streams.db import driver
from streams.reading.position_notifications import CHANNEL
from streams.writing.name import use_instance

SECONDS = 1.0
ROUNDS = 3
THREADS = (1, 8, 32)
BATCH = 10
BATCH_THREADS = (1, 8)
IN_ATOMIC = (1, 10, 100)
"""Facts of an append inside the caller's ``atomic()`` block, the usual place of an outbox."""

_ROW = "(nextval('bench_bare_seq'), 'peer', 'bench', ARRAY['key'])"
_PEER = "INSERT INTO bench_bare (stream_id, instance_name, cache_name, keys) VALUES {} RETURNING stream_id"
_BARE_TABLE = """
CREATE TABLE IF NOT EXISTS bench_bare (LIKE streams_cacheinvalidation INCLUDING ALL);
CREATE SEQUENCE IF NOT EXISTS bench_bare_seq AS bigint
"""
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


def ours_in_batch() -> None:
    """One append of several facts."""
    ours(BATCH)


def ours_in_turn() -> None:
    """As many appends in one transaction."""
    with transaction.atomic():
        for _ in range(BATCH):
            ours()


@transaction.atomic
def ours_in_atomic(rows: int) -> None:
    """One append inside a transaction of the caller."""
    ours(rows)


WORK: dict[str, Callable[[], None]] = {
    "ours": ours,
    "ours_in_batch": ours_in_batch,
    "ours_in_turn": ours_in_turn,
    **{f"ours_in_atomic_{rows}": partial(ours_in_atomic, rows) for rows in IN_ATOMIC},
}


_SERVE = "import django; django.setup(); from script.benchmarks.appends import serve; serve()"


class OnPsycopg3:
    """A process in which Django uses psycopg 3, on the same database. It measures when it is asked to."""

    def __init__(self, folder: str) -> None:
        path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVE],
            env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def per_second(self, work: str, threads: int) -> float:
        """How often a function of ``WORK`` ends in a second there."""
        print(work, threads, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())  # type: ignore[union-attr]

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()


def serve() -> None:
    """Answers what ``OnPsycopg3`` asks."""
    if not is_psycopg3:
        raise SystemExit("Django does not use psycopg 3 here")
    use_instance("bench")
    for line in sys.stdin:
        work, threads = line.split()
        WORK[work]()
        print(per_second(WORK[work], int(threads)), flush=True)


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
        said.append(len(driver.received(listener)))


def counted(threads: int, shares: list[float]) -> float:
    """Our appends per second; adds announcements per append to ``shares``."""
    said: list[int] = []
    with announcements(said):
        rate = per_second(ours, threads)
    shares.append(said[0] / (rate * SECONDS))
    return rate


def single_appends(report: Report, other: OnPsycopg3 | None) -> None:
    """One fact per transaction."""
    for threads in THREADS:
        shares: list[float] = []
        measures: dict[str, Callable[[], float]] = {
            "ours": partial(counted, threads, shares),
            "peer": partial(per_second, peer, threads),
            "lock": partial(per_second, lock, threads),
        }
        if other is not None:
            measures["psycopg3"] = partial(other.per_second, "ours", threads)
        result = rounds(ROUNDS, measures)
        add(report, "one append", threads, result, 1, announcements=statistics.median(shares))


def batches(report: Report, other: OnPsycopg3 | None) -> None:
    """Ten facts per transaction, in one call and in ten, and appends inside the caller's transaction."""
    kinds = [
        (f"one append of {BATCH}", "ours_in_batch", partial(peer, BATCH), BATCH, BATCH_THREADS),
        (f"{BATCH} appends", "ours_in_turn", partial(peer, 1, BATCH), BATCH, BATCH_THREADS),
        *((f"in atomic(), {n}", f"ours_in_atomic_{n}", partial(peer, n), n, THREADS) for n in IN_ATOMIC),
    ]
    for name, work, bare, facts, of_threads in kinds:
        for threads in of_threads:
            measures: dict[str, Callable[[], float]] = {
                "ours": partial(per_second, WORK[work], threads),
                "peer": partial(per_second, bare, threads),
            }
            if other is not None:
                measures["psycopg3"] = partial(other.per_second, work, threads)
            add(report, name, threads, rounds(ROUNDS, measures), facts)


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
        psycopg3_ratio=median_ratio(result["psycopg3"], result["ours"]) if "psycopg3" in result else "",
        announcements="" if announcements is None else announcements,
    )


def main() -> None:
    """Measure with 1, 8 and 32 threads."""
    use_instance("bench")
    folder = os.environ.get("REPLSITE_BENCH_PSYCOPG", "")
    report = Report("appends", "facts appended per second")
    ours()
    with connection.cursor() as cursor:
        cursor.execute(f"{_LOCKED_TABLE}; {_BARE_TABLE}")
    other = OnPsycopg3(folder) if folder and not is_psycopg3 else None
    try:
        single_appends(report, other)
        batches(report, other)
    finally:
        if other is not None:
            other.close()
    report.finish()
