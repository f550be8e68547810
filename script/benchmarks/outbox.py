"""The same shop with seven tools: facts a second, CPU for each fact, and milliseconds from commit to handled.

Each producing transaction inserts a business row and one fact; each fact has one effect, a row. Both rows are inserted by the
same SQL in all shops. *Producing*: one fact a transaction. *Handling*: a worker starts with a backlog and writes the effects,
one fact a transaction (the tool's own way), or in chunks of 1,000 where the tool has them. *200 a second*: a worker runs while
facts come at a steady pace; CPU is that of both processes. CPU is milliseconds for each fact, of the application's processes
and of the server's without vacuum. ``of_ours`` is the CPU as a multiple of replsite's on the same driver, pair by pair over
the rounds. All is measured a second time beside a transaction of the same database that stays open meanwhile, with a snapshot
and an ID, and that does nothing.

All shops have a database each on one server, with its settings as they are: each commit is on the disk before it is known, for
facts as for effects. Every process keeps its connections. One worker is one process with its tool's settings, of which these
matter:

* procrastinate's worker listens, and runs ten jobs at a time.
* eventsourcing inserts business rows and effects in the transactions of its recorders, by hooks, on its own connections.
* django-pgpubsub notifies by a trigger and stores notifications; its worker recovers a backlog in one transaction.
* pgmq's worker pops a message in the transaction of its effect, and looks every 100 ms.
* PgQ is that of Debian's package in PL/pgSQL. Its worker ticks every 100 ms, and handles what was committed between two ticks in
  one transaction: it has no handling of single facts, and a backlog is one chunk.
* The outbox has a trigger that notifies, and an index of what was not sent. Its worker looks at least once a second.

The number of effects must be that of the facts, each once, or the benchmark fails. ``script/bench`` makes an environment for
the tools of others below ``.tools``, from ``script/benchmarks/shops/requirements.txt`` and Debian's package of PgQ. A tool
that cannot be installed is left out. ``REPLSITE_BENCH_ROUNDS`` is the number of rounds (3).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, cast

from django.db import connection

from script.benchmarks.latency import percentile
from script.benchmarks.report import BESIDE_OPEN, Report, median_ratio
from script.benchmarks.server_cpu import server_seconds, spent

PROJECT = Path(__file__).resolve().parents[2]
CHUNK = 1_000
TITLE = "the same shop with several tools; cpu, p50, p99: milliseconds; of_ours: cpu as a multiple of replsite's on that driver"
PER_SECOND = 200
ENDS_WITHIN = 30.0


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    rounds: int = 3
    facts: int = 1_000
    threads: tuple[int, ...] = (1, 8)
    chunked: int = 20_000
    warm: int = 100
    paced: int = 1_000


@dataclass(frozen=True)
class Tool:
    """A tool on a driver: which module is its shop, and how its processes are started."""

    name: str
    shop: str
    driver: str
    python: str = sys.executable
    path: str = ""
    chunks: bool = False
    singles: bool = True


PEERS = {
    Tool("procrastinate", "with_procrastinate", "psycopg 3"): "import procrastinate",
    Tool("eventsourcing", "with_eventsourcing", "psycopg 3"): "import eventsourcing",
    Tool("django-pgpubsub", "with_pgpubsub", "psycopg 3"): "import pgpubsub",
    Tool("pgmq", "with_pgmq", "psycopg 3", chunks=True): "import pgmq",
    Tool("PgQ", "with_pgq", "psycopg 3", chunks=True, singles=False): "import sys; open(sys.prefix + '/pgq.sql')",
}
"""Tools of others -> a statement that fails in Python where the tool is not installed."""


@dataclass(frozen=True)
class Figures:
    """Of one measure: facts a second, milliseconds of CPU for each fact, and milliseconds from commit to handled."""

    per_second: float
    application: float
    server: float
    delays: Sequence[float] = ()

    @property
    def cpu(self) -> float:
        """Both sides."""
        return self.application + self.server


def tools() -> list[Tool]:
    """Those that can run here; says which cannot."""
    found = [
        Tool("replsite", "ours", "psycopg2", chunks=True),
        Tool("outbox table", "outbox_table", "psycopg2", chunks=True),
    ]
    if psycopg := os.environ.get("REPLSITE_BENCH_PSYCOPG", ""):
        found += [Tool(tool.name, tool.shop, "psycopg 3", path=psycopg, chunks=True) for tool in found]
    python = os.environ.get("REPLSITE_BENCH_PEERS", "")
    for tool, needs in PEERS.items():
        tries = [python, "-c", needs]
        if python and subprocess.run(tries, check=False, capture_output=True).returncode == 0:
            found.append(replace(tool, python=python))
        else:
            print(f"{tool.name} is not installed here, so it is left out")
    return found


# --- one shop ---------------------------------------------------------------------------------------------------------


class Process:
    """A process of a shop."""

    def __init__(self, tool: Tool, database: Mapping[str, Any], rows: int, log: Path) -> None:
        self._log = log
        path = os.pathsep.join(filter(None, [tool.path, str(PROJECT)]))
        own = {name: value for name, value in os.environ.items() if not name.startswith(("DATABASE_", "REPLSITE_"))}
        with log.open("ab") as errors:
            self._running = subprocess.Popen(
                [tool.python, "-m", "script.benchmarks.shops.process"],
                env=own
                | {
                    "DJANGO_SETTINGS_MODULE": "script.benchmarks.shops.settings", "PYTHONPATH": path, "SHOP": tool.shop,
                    "SHOP_DATABASE": json.dumps(database), "SHOP_ROWS": str(rows), "REPLSITE_LOG_LEVEL": "ERROR",
                },
                cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip

    def say(self, do: str, **parameters: Any) -> None:
        """Gives a command."""
        pipe = cast("IO[str]", self._running.stdin)
        pipe.write(json.dumps({"do": do, **parameters}) + "\n")
        pipe.flush()

    def hear(self) -> dict[str, Any]:
        """The next answer."""
        if line := cast("IO[str]", self._running.stdout).readline():
            return dict(json.loads(line))
        raise RuntimeError(f"a process of a shop ended: {self._log.read_text()[-3000:]}")

    def close(self) -> None:
        """Ends it."""
        self._running.terminate()
        try:
            self._running.communicate(timeout=ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self._running.kill()
            self._running.communicate()


@dataclass
class Shop:
    """A tool's shop in a database of its own, with the process that makes facts."""

    tool: Tool
    database: Mapping[str, Any]
    log: Path
    made: int = 0
    handled: int = 0
    producer: Process = field(init=False)

    def open(self) -> None:
        """Makes tables, and starts the process."""
        self.producer = self._process(1)
        self.producer.say("prepare")
        self.producer.hear()

    @contextmanager
    def worker(self, rows: int) -> Iterator[Process]:
        """A process that handles facts as soon as it is told to."""
        running = self._process(rows)
        try:
            yield running
        finally:
            running.close()

    def _process(self, rows: int) -> Process:
        running = Process(self.tool, self.database, rows, self.log)
        running.hear()
        return running

    def produce(self, facts: int, threads: int) -> Figures:
        """Makes facts, one a transaction."""
        self.producer.say("produce", first=self._next(facts), facts=facts, threads=threads)
        number = self.producer.hear()["facts"]
        server = server_seconds()
        self.producer.say("go on")
        said = self.producer.hear()
        figures = _figures(said["before"], said["after"], server, number)
        self.producer.say("go on")
        return figures

    def handle(self, rows: int) -> Figures:
        """Handles what is there."""
        waiting = self.made - self.handled
        with self.worker(rows) as worker:
            server = server_seconds()
            worker.say("handle", until=[waiting])
            before = worker.hear()
            figures = _figures(before, worker.hear(), server, waiting)
        self.handled += waiting
        self.check()
        return figures

    def backlog(self, facts: int) -> None:
        """Makes facts, which is not measured."""
        self.producer.say("backlog", first=self._next(facts), facts=facts)
        self.producer.hear()

    def paced(self, warm: int, facts: int, per_second: int = PER_SECOND, together: int = 1, rows: int = 1) -> Figures:
        """Makes facts at a steady pace, so many in a transaction, while a worker handles them."""
        with self.worker(rows) as worker:
            worker.say("handle", until=[warm, warm + facts])
            worker.hear()
            self._pace(warm, per_second, together)
            before, server = worker.hear(), server_seconds()
            produced = self._pace(facts, per_second, together)
            after = worker.hear()
            figures = _figures(before, after, server, facts)
        self.handled += warm + facts
        self.check()
        delays = [(after["times"][order] - at) * 1000 for order, at in produced["times"].items()]
        return Figures(figures.per_second, figures.application + 1000 * produced["cpu"] / facts, figures.server, delays)

    def _pace(self, facts: int, per_second: int, together: int) -> dict[str, Any]:
        first = self._next(facts)
        self.producer.say("pace", first=first, facts=facts, per_second=per_second, together=together)
        return self.producer.hear()

    def _next(self, facts: int) -> int:
        first = self.made
        self.made += facts
        return first

    def check(self) -> None:
        """Raises an error if the effects are not those of the facts, each once."""
        with self._connected() as cursor:
            cursor.execute(
                "SELECT (SELECT count(*) FROM goods_basket), count(*), count(DISTINCT order_id) FROM goods_invoice"
            )
            baskets, effects, different = cursor.fetchone()
        if (baskets, effects, different) != (self.made, self.handled, self.handled):
            raise RuntimeError(
                f"{self.tool.name}: {baskets} business rows of {self.made} and {effects} effects, {different} of them "
                f"different, of {self.handled} facts"
            )

    @contextmanager
    def beside_open_transaction(self) -> Iterator[None]:
        """Keeps a transaction open meanwhile, and cleans up what it kept."""
        with self._connected() as cursor:
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()")
            yield
            cursor.execute("ROLLBACK")
            cursor.execute("VACUUM")

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        own = connection.copy("shop")
        own.settings_dict["NAME"] = self.database["NAME"]
        try:
            with own.cursor() as cursor:
                yield cursor
        finally:
            own.close()


def _figures(before: Mapping[str, Any], after: Mapping[str, Any], server: dict[int, float], facts: int) -> Figures:
    return Figures(
        per_second=facts / (after["at"] - before["at"]),
        application=1000 * (after["cpu"] - before["cpu"]) / facts,
        server=1000 * spent(server, server_seconds()) / facts,
    )


@contextmanager
def opened(tool: Tool, number: int, folder: Path) -> Iterator[Shop]:
    """The shop of a tool; its database is dropped afterwards."""
    name = f"bench_shop_{os.getpid()}_{number}"
    connection.ensure_connection()
    info = connection.connection.info
    database = {"NAME": name, "HOST": info.host, "PORT": info.port, "USER": info.user, "PASSWORD": info.password or ""}
    shop = Shop(tool, database, folder / f"{name}.log")
    with connection.cursor() as cursor:
        cursor.execute(f'CREATE DATABASE "{name}"')
    try:
        shop.open()
        yield shop
    finally:
        if hasattr(shop, "producer"):
            shop.producer.close()
        with connection.cursor() as cursor:
            cursor.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


# --- all of them ------------------------------------------------------------------------------------------------------

Measured = dict[str, dict[Tool, list[Figures]]]
"""What -> tool -> figures of each round."""


def measure(found: Sequence[Tool], sizes: Sizes) -> Measured:
    """Measures the tools in turns."""
    measured: Measured = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as open_shops:
        shops = [open_shops.enter_context(opened(tool, n, Path(folder))) for n, tool in enumerate(found)]
        for shop in shops:  # plans, caches and files
            shop.backlog(sizes.warm)
            shop.handle(1)
        for _ in range(sizes.rounds):
            _measure(measured, shops, sizes, "")
            with ExitStack() as open_transactions:
                for shop in shops:
                    open_transactions.enter_context(shop.beside_open_transaction())
                _measure(measured, shops, sizes, BESIDE_OPEN)
    return measured


def _measure(measured: Measured, shops: Sequence[Shop], sizes: Sizes, beside: str) -> None:
    for threads in sizes.threads:
        for shop in shops:
            what = f"producing, {threads} thread{'s' if threads > 1 else ''}{beside}"
            measured[what][shop.tool].append(shop.produce(sizes.facts, threads))
    for shop in shops:
        if shop.tool.singles:
            measured[f"handling{beside}"][shop.tool].append(shop.handle(1))
    for shop in shops:
        if shop.tool.chunks:
            shop.backlog(sizes.chunked)
            measured[f"handling, chunks{beside}"][shop.tool].append(shop.handle(CHUNK))
    for shop in shops:
        measured[f"{PER_SECOND} a second{beside}"][shop.tool].append(shop.paced(sizes.warm, sizes.paced))


def add(report: Report, what: str, of_tools: Mapping[Tool, Sequence[Figures]]) -> None:
    """Rows of a measure: medians over the rounds."""
    ours = {tool.driver: figures for tool, figures in of_tools.items() if tool.shop == "ours"}
    for tool, figures in of_tools.items():
        delays = {
            name: statistics.median(percentile(list(one.delays), share) for one in figures) if figures[0].delays else ""
            for name, share in (("p50", 0.5), ("p99", 0.99))
        }
        base = ours.get(tool.driver)
        report.add(
            what=what,
            tool=tool.name,
            driver=tool.driver,
            facts_per_second=statistics.median(one.per_second for one in figures),
            cpu_application=statistics.median(one.application for one in figures),
            cpu_postgresql=statistics.median(one.server for one in figures),
            cpu=statistics.median(one.cpu for one in figures),
            of_ours=median_ratio([one.cpu for one in figures], [one.cpu for one in base]) if base else "",
            **delays,
        )


def main() -> None:
    """Measures all tools that can run here."""
    report = Report("outbox", TITLE)
    sizes = Sizes(rounds=int(os.environ.get("REPLSITE_BENCH_ROUNDS", "3")))
    for what, of_tools in measure(tools(), sizes).items():
        add(report, what, of_tools)
    report.finish()
