"""Processes that share a reader's stream by key (``handles(…, by=)``), beside one process that has it alone.

* *waits*: the handler waits 5 ms, and does nothing else. The target for 16 processes is 12 times one, and 2,400 facts a second.
* *inserts*: the handler inserts a row, by one statement. The target is 20,000 facts a second on two cores. The peer, *bare
  INSERTs*, is as many processes that execute only this statement, 500 in a transaction.
* *rows_read*: rows that the processes read whole, by facts. The target is 1.2. *ids_read*: facts of which they saw ID and part.
* *quiet*: milliseconds of CPU a second of all processes and the server while nothing or little comes, with the appends.
* *joins*: seconds until a process that is started beside others has handled its first fact. The target is 1.

The processes run when the facts are committed, all together. Each fact is handled once, or the benchmark fails.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from django.db import connection

from script.benchmarks.cpu_seconds import CpuSeconds
from script.benchmarks.report import Report, database_url
from tests.support.forking_shop import Forked, ForkingShop

KEYS = 1_000
PROCESSES = 16
WAITING, INSERTING = "waits", "inserts"
TARGETS = {(WAITING, PROCESSES): 2_400, (INSERTING, 2): 20_000}
#: What, and of how many processes -> facts.
FACTS = {
    (INSERTING, 1): 20_000,
    (INSERTING, 2): 40_000,
    (INSERTING, 4): 40_000,
    (WAITING, 1): 1_000,
    (WAITING, PROCESSES): 20_000,
}
QUIET_SECONDS = 15
MODELS = """
from django.db import models
from streams import Fact, stream

@stream("orders")
class Order(Fact):
    order_id = models.TextField()
    number = models.IntegerField()

class Done(models.Model):
    order_id = models.TextField()
    number = models.IntegerField()
"""
HANDLERS = """
import os, time
from pathlib import Path
from django.db import connection
from shop.models import Order
from streams import handles
from streams.follow import Begin

times = []

def shared(reader):
    return handles(Order, reader=reader, by="order_id", each=True, begin=Begin.NOW)

@shared("waits")
def wait(order):
    time.sleep(0.005)
    if not times:
        times.append(time.monotonic())
        Path(f"first-{os.getpid()}").write_text(str(times[0]))

@shared("inserts")
def insert(order):
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO shop_done (order_id, number) VALUES (%s, %s)", [order.order_id, order.number])
"""
RUN = """
import json, os, signal
from pathlib import Path
from streams.follow import Reader
from streams.follow.part_source import PartSource

read, read_facts, read_parts = [0, 0], PartSource.facts, PartSource.parts

def facts(self, wanted):
    found = read_facts(self, wanted)
    read[0] += sum(len(fact.rows) for fact in found)
    return found

def parts(self, *range):
    found = read_parts(self, *range)
    read[1] += len(found[0])
    return found

PartSource.facts, PartSource.parts = facts, parts
reader = Reader({reader!r})
signal.signal(signal.SIGTERM, lambda *_: reader.stop())
reader.run()
Path("read-" + str(os.getpid())).write_text(json.dumps(read))
"""
BARE = """
from django.db import connection, transaction
for _ in range({count} // 500):
    with transaction.atomic():
        for number in range(500):
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO shop_done (order_id, number) VALUES (%s, %s)", [str(number), number])
"""
APPEND = """
import random
from shop.models import Order
Order.objects.bulk_create([Order(order_id=str(random.randrange({keys})), number=n) for n in range({count})], batch_size=5_000)
"""
PACE = """
import time
from shop.models import Order
for number in range({per_second} * {seconds}):
    Order.objects.create(order_id=str(number % 100), number=number)
    time.sleep(1 / {per_second})
if not {per_second}:
    time.sleep({seconds})
"""


class Sharing:
    """A shop, and the processes of one of its readers."""

    def __init__(self, shop: ForkingShop) -> None:
        self._shop = shop
        self._running: list[Forked] = []
        self._reader = ""

    def start(self, reader: str, processes: int) -> list[Forked]:
        """Starts processes."""
        self._reader = reader
        started = [self._shop.fork(RUN.format(reader=reader)) for _ in range(processes)]
        self._running += started
        return started

    def stop(self) -> list[int]:
        """Ends the processes. Returns how many rows they have read, and of how many facts they saw the IDs."""
        for process in self._running:
            os.kill(process.pid, signal.SIGTERM)
        read = [0, 0]
        while self._running:
            process = self._running.pop()
            process.ended()
            found = json.loads((self._shop.folder / f"read-{process.pid}").read_text())
            read = [before + more for before, more in zip(read, found, strict=True)]
        return read

    def bare(self, rows: int, processes: int) -> float:
        """Inserts rows by processes that do nothing else. Returns rows a second."""
        begun = time.monotonic()
        for process in [self._shop.fork(BARE.format(count=rows // processes)) for _ in range(processes)]:
            process.ended()
        return rows / (time.monotonic() - begun)

    def append(self, facts: int) -> None:
        """Appends facts in one transaction."""
        self._shop.do(APPEND.format(keys=KEYS, count=facts))

    def pace(self, per_second: int) -> None:
        """Appends so many facts a second for a while, each in a transaction of its own."""
        self._shop.do(PACE.format(per_second=per_second, seconds=QUIET_SECONDS))

    def handled(self) -> int:
        """Returns the number of facts that the reader has handled."""
        return int(_value("SELECT sum(facts_handled) FROM streams_partcursor WHERE reader = %s", self._reader) or 0)

    def wait(self, facts: int) -> None:
        """Waits until so many facts are handled."""
        while self.handled() < facts:
            time.sleep(0.02)

    def first(self, process: Forked) -> float:
        """Returns the time when a process has handled its first fact."""
        path = self._shop.folder / f"first-{process.pid}"
        while not path.exists() or not path.read_text():
            time.sleep(0.005)
        return float(path.read_text())


def _value(sql: str, *values: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return cursor.fetchone()[0]


def measure(report: Report, sharing: Sharing) -> None:
    """Facts a second."""
    one: dict[str, float] = {}
    for (reader, processes), facts in FACTS.items():
        bare = sharing.bare(facts, processes) if reader == INSERTING else 0
        sharing.start(reader, processes)
        time.sleep(3)
        before = sharing.handled()
        with CpuSeconds() as cpu:
            sharing.append(facts)
            begun = time.monotonic()
            sharing.wait(before + facts)
            seconds = time.monotonic() - begun
        if (handled := sharing.handled() - before) != facts:
            raise RuntimeError(f"{handled} facts were handled of {facts}")
        read, seen = sharing.stop()
        per_second = facts / seconds
        report.add(
            what=reader,
            processes=processes,
            facts_per_second=per_second,
            target=TARGETS.get((reader, processes), ""),
            of_one=per_second / one.setdefault(reader, per_second),
            bare=bare or "",
            of_bare=per_second / bare if bare else "",
            cpu_application=1000 * cpu.application / facts,
            cpu_postgresql=1000 * cpu.server / facts,
            rows_read=read / facts,
            ids_read=seen / facts,
        )


def quiet(report: Report, sharing: Sharing) -> None:
    """CPU of a stream on which little happens."""
    for processes in (1, PROCESSES):
        sharing.start(WAITING, processes)
        time.sleep(3)
        for per_second in (0, 1, 10):
            begun = time.monotonic()
            with CpuSeconds() as cpu:
                sharing.pace(per_second)
            seconds = time.monotonic() - begun
            report.add(
                what="quiet, ms of CPU a second",
                processes=processes,
                facts_per_second=per_second * QUIET_SECONDS / seconds,
                cpu_application=1000 * cpu.application / seconds,
                cpu_postgresql=1000 * cpu.server / seconds,
            )
        sharing.stop()


def joins(report: Report, sharing: Sharing) -> None:
    """How soon one more process works."""
    for processes in (1, PROCESSES - 1):
        sharing.start(WAITING, processes)
        goal = sharing.handled() + 20_000
        sharing.append(20_000)
        time.sleep(2)
        begun = time.monotonic()
        (joined,) = sharing.start(WAITING, 1)
        seconds = sharing.first(joined) - begun
        if sharing.handled() >= goal:
            raise RuntimeError("the other processes were through before it began")
        sharing.stop()
        report.add(what="joins, seconds to its first fact", processes=processes + 1, seconds=seconds, target=1)


def main() -> None:
    """Measures all."""
    report = Report("by_key", "processes that share a stream by key; cpu: milliseconds for each fact")
    with tempfile.TemporaryDirectory() as folder, connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA by_key; SET search_path = by_key")
        url = f"{database_url()}?options=-csearch_path%3Dby_key"
        shop = ForkingShop(Path(folder), url, {"shop/models.py": MODELS, "shop/handlers.py": HANDLERS})
        try:
            for command in ("'makemigrations', 'shop'", "'migrate'"):
                shop.do(f"from django.core.management import call_command\ncall_command({command}, verbosity=0)")
            sharing = Sharing(shop)
            measure(report, sharing)
            quiet(report, sharing)
            joins(report, sharing)
        finally:
            shop.close()
    report.finish()
