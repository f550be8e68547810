"""Milliseconds from a COMMIT to *handled*, and CPU for each fact, for three ways in which readers learn of facts.

Facts are plain INSERTs into a table that holds its stream, each in a transaction of its own, followed by a hint. A reader
handles a batch in one transaction, with its cursor and an effect. It is a thread of this process, so with many readers the
figures have their waiting for each other.

* *row*: the looker stores positions and tells everybody (``streams.reading.looker``). Readers read the stored row.
* *told, look*: the same, but readers look for themselves when they are told.
* *hinted, look*: without a looker. Each hint wakes each reader, which looks for itself, and goes on as the looker does.

``REPLSITE_BENCH_ROUNDS`` is the number of rounds (3).
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections import defaultdict
from contextlib import closing
from typing import Any

from django.db import connection

from script.benchmarks.latency import percentile
from script.benchmarks.report import Report
from script.benchmarks.server_cpu import server_seconds, spent
from streams.db import driver
from streams.holds.look import look
from streams.reading.hints import CHANNEL, HINT_GAP_SECONDS, hint, hinted_word, more_follows
from streams.reading.looker import Looker, Pace
from streams.reading.notify import NotifyListener

STREAM = "bench"
READERS, PACES = (1, 20), {20: 60, 200: 400, 1_000: 2_000}
"""Numbers of readers; facts a second -> facts in a round."""
WAYS = ("row", "told, look", "hinted, look")
_DEADLINE_SECONDS = 60.0

_TABLES = """
CREATE SEQUENCE bench_seq START 2;
CREATE TABLE bench_held (stream_id bigint PRIMARY KEY, instance_name text NOT NULL, text text);
CREATE TABLE bench_cursor (reader int PRIMARY KEY, position bigint NOT NULL);
CREATE TABLE bench_effect (reader int, fact bigint);
SELECT streams_hold_table('bench_held', 'bench', 'bench_seq')
"""
_STORED = "SELECT coalesce(min(position), 0) FROM streams_streamposition WHERE stream = 'bench'"
_ROWS = "SELECT stream_id FROM bench_held WHERE stream_id > %s AND stream_id <= %s ORDER BY 1"
_EFFECTS = "INSERT INTO bench_effect SELECT %s, unnest(%s::bigint[])"


class Ear(NotifyListener[str]):
    """Wakes all readers of a round, and passes on what the looker must hear."""

    def __init__(self, way: str, readers: list[Reader], candidate: Looker | None) -> None:
        super().__init__(CHANNEL, lambda _: None, None, "bench")
        self._way, self._readers, self._candidate = way, readers, candidate

    def parse(self, heard: Any) -> list[str]:
        """Called with what was received."""
        if self._candidate is not None:
            self._candidate.received(heard)
        hinted = self._way.startswith("hinted")
        if any((hinted_word(payload) is not None) is hinted for _, payload in heard):
            follows = any(more_follows(payload) for _, payload in heard)
            for reader in self._readers:
                if follows:
                    reader.expected_until = time.perf_counter() + HINT_GAP_SECONDS
                reader.news.set()
        return []


class Reader:
    """One reader: its connection, its cursor, and when it handled which fact."""

    def __init__(self, number: int, way: str, stop: threading.Event) -> None:
        self.news, self.handled, self.expected_until = threading.Event(), dict[int, float](), 0.0
        self._number, self._way, self._stop = number, way, stop
        self._connection = driver.direct_connection(application_name="bench")
        with self._connection.cursor() as cursor:
            self._at = self._upto(cursor)
            cursor.execute("INSERT INTO bench_cursor VALUES (%s, 0) ON CONFLICT DO NOTHING", [number])

    def run(self) -> None:
        """Reads until the round is over."""
        pace, pause = Pace(), 1.0
        with closing(self._connection), self._connection.cursor() as cursor:
            while not self._stop.is_set():
                self.news.wait(pause)
                self.news.clear()
                began = time.perf_counter()
                found = self._step(cursor)
                if self._way.startswith("hinted"):
                    pause = pace.next_pause(time.perf_counter() - began, self.expected_until - began, news=found)

    def _upto(self, cursor: Any) -> int:
        if self._way == "row":
            cursor.execute(_STORED)
            return int(cursor.fetchone()[0])
        return look(cursor, [STREAM])[STREAM].position

    def _step(self, cursor: Any) -> bool:
        if (upto := self._upto(cursor)) <= self._at:
            return False
        cursor.execute(_ROWS, [self._at, upto])
        facts = [row[0] for row in cursor.fetchall()]
        with driver.in_transaction(cursor):
            cursor.execute(_EFFECTS, [self._number, facts])
            cursor.execute("UPDATE bench_cursor SET position = %s WHERE reader = %s", [upto, self._number])
        self.handled |= dict.fromkeys(facts, time.perf_counter())
        self._at = upto
        return bool(facts)


def committed(per_second: int, facts: int) -> dict[int, float]:
    """Commits facts at this pace. Returns when each was committed."""
    done: dict[int, float] = {}
    with closing(driver.direct_connection(application_name="bench")) as own, own.cursor() as cursor:
        begun = time.perf_counter()
        for number in range(facts):
            time.sleep(max(0.0, begun + number / per_second - time.perf_counter()))
            cursor.execute("INSERT INTO bench_held (text) VALUES ('bench') RETURNING stream_id")
            done[cursor.fetchone()[0]] = time.perf_counter()
            hint(cursor)
    return done


def measure(way: str, readers: int, per_second: int, facts: int) -> tuple[list[float], float]:
    """Returns the delays of all facts at all readers in milliseconds, and the microseconds of CPU for a fact."""
    stop = threading.Event()
    all_readers = [Reader(number, way, stop) for number in range(readers)]
    candidate = None if way.startswith("hinted") else Looker(connection.alias)
    ear = Ear(way, all_readers, candidate)
    ear.start()
    if candidate is not None:
        candidate.start()
    threads = [threading.Thread(target=reader.run) for reader in all_readers]
    for thread in threads:
        thread.start()
    _wait(lambda: candidate is None or candidate.is_leading)
    server, here = server_seconds(), time.process_time()
    done = committed(per_second, facts)
    _wait(lambda: all(done.keys() <= reader.handled.keys() for reader in all_readers))
    cpu = time.process_time() - here + spent(server, server_seconds())
    stop.set()
    for reader in all_readers:
        reader.news.set()
    for thread in threads:
        thread.join()
    ear.stop()
    if candidate is not None:
        candidate.stop()
    delays = [(reader.handled[fact] - at) * 1e3 for reader in all_readers for fact, at in done.items()]
    return delays, cpu * 1e6 / facts


def _wait(condition: Any) -> None:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {_DEADLINE_SECONDS} s")
        time.sleep(0.005)


def main() -> None:
    """Measures all ways in turns."""
    with connection.cursor() as cursor:
        cursor.execute(_TABLES)
        cursor.execute("INSERT INTO bench_held (text) VALUES ('first')")
    report = Report(
        "wakeups",
        "milliseconds from commit to handled, and of CPU for each fact, by the way in which readers learn of facts",
        ["readers", "per_second", "way", "p50", "p99", "cpu"],
    )
    for readers in READERS:
        for per_second, facts in PACES.items():
            found: dict[str, list[tuple[list[float], float]]] = defaultdict(list)
            for _ in range(int(os.environ.get("REPLSITE_BENCH_ROUNDS", "3"))):
                for way in WAYS:
                    found[way].append(measure(way, readers, per_second, facts))
            for way, rounds in found.items():
                report.add(
                    readers=readers,
                    per_second=per_second,
                    way=way,
                    p50=statistics.median(percentile(delays, 0.5) for delays, _ in rounds),
                    p99=statistics.median(percentile(delays, 0.99) for delays, _ in rounds),
                    cpu=statistics.median(cpu for _, cpu in rounds) / 1e3,
                )
    report.finish()
