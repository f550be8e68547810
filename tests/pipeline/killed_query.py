"""Killing the query of ``query_driver``: its whole process tree, by SIGKILL, while facts come under ever other names.

    python -m tests.pipeline.killed_query [KILLS]     (20)

makes a database of its own and exits with 1 unless every fact is in the Parquet files exactly once. About ten seconds a kill.
The suite kills once (``test_source_killed``).
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from replsite.postgres.server import EmbeddedServer
from tests.support.waiting import DEADLINE_SECONDS, wait_until

PROJECT = Path(__file__).resolve().parents[2]
HIDDEN = ("DJANGO_", "REPLSITE_", "DATABASE_URL")
BUSIEST = 60  # facts of one writer before the next one joins
NAMES = 25
MOST_STARTS = 5
PATIENCE = 1_200
"""Seconds within which a query goes on even where many others work: a start of Spark took 200 s at a load of 20."""


class KilledQuery:
    """The driver's process, again and again, on one checkpoint."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.folder = folder
        self._dsn = dsn
        self._process: subprocess.Popen[str] | None = None

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Begin at the checkpoint, in an environment that tells nothing of the site."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN)}
        command = [sys.executable, "-m", "tests.pipeline.query_driver", str(self.folder), *arguments]
        said = (self.folder / "stderr").open("w")
        self._process = subprocess.Popen(
            command, cwd=PROJECT, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said,
        )  # fmt: skip
        said.close()
        self._process.stdin.write(self._dsn)
        self._process.stdin.close()
        return self._process

    def numbers(self, log: str) -> set[int]:
        """Batches that stand in a log of the checkpoint: ``offsets`` when planned, ``commits`` when done."""
        found = self.folder / "checkpoint" / log
        return {int(path.name) for path in found.iterdir() if path.name.isdigit()} if found.exists() else set()

    def is_in_a_batch(self) -> bool:
        """Whether a batch is planned and not done."""
        return bool(self.numbers("offsets") - self.numbers("commits"))

    def said(self) -> str:
        """The end of what it wrote to stderr."""
        return (self.folder / "stderr").read_text()[-4000:]

    def runs(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """The driver, its JVM and all Python workers at once."""
        if self._process is None:
            return
        driver = psutil.Process(self._process.pid) if self.runs() else None
        tree = [driver, *driver.children(recursive=True)] if driver else []
        for one in tree:
            try:
                one.kill()
            except psutil.NoSuchProcess:  # ended by itself meanwhile
                continue
        self._process.wait(DEADLINE_SECONDS)
        self._process.stdout.close()
        self._process = None


class Joining(threading.Thread):
    """Appends facts; every few of them under another name."""

    def __init__(self) -> None:
        super().__init__()
        self._ended = threading.Event()
        self.joined = 0

    def run(self) -> None:
        from django.db import connections

        from streams import registry
        from streams.catalog.models import CacheInvalidation
        from streams.reading.looker import look_now
        from streams.writing.name import use_instance

        while not self._ended.is_set():
            use_instance(f"w{self.joined % NAMES}")
            for number in range(BUSIEST // 3):
                registry.get("caches").append(
                    *(CacheInvalidation(cache_name="c", keys=[str(number)]) for _ in range(3))
                )
                look_now("default", even_if_led=True)  # no process of a site stores positions here
                self._ended.wait(0.05)
            self.joined += 1
        connections.close_all()

    def end(self) -> None:
        """Wait for the thread."""
        self._ended.set()
        self.join()


def torture(kills: int, dsn: str, folder: Path) -> tuple[int, int, int, int]:
    """Kill the query so often, at moments that a seed decides; (facts, rows in the files, facts in the files, writers)."""
    from streams.catalog.models import CacheInvalidation

    moments, query, joining = random.Random(5), KilledQuery(dsn, folder), Joining()
    joining.start()
    try:
        for number in range(kills):
            enough = len(query.numbers("commits")) + moments.randrange(3)
            _run_until(query, lambda enough=enough: len(query.numbers("commits")) > enough)
            if number % 2:
                wait_until(lambda: query.is_in_a_batch() or not query.runs(), PATIENCE)
            time.sleep(moments.random() / 3)
            query.kill()
            sys.stderr.write(f"kill {number + 1}: {len(query.numbers('commits'))} batches, {joining.joined} writers\n")
            if not joining.is_alive():
                raise RuntimeError("nobody writes any more, so nothing is shown")
    finally:
        query.kill()
        joining.end()
    words = _read_to_the_end(query)
    return CacheInvalidation.objects.count(), int(words[1]), int(words[3]), joining.joined


def _read_to_the_end(query: KilledQuery) -> list[str]:
    """Everything that is there is read; the words in which the driver tells what the files hold."""
    for _ in range(MOST_STARTS):
        process = query.start("end")
        words = process.stdout.read().split()
        process.stdout.close()
        if process.wait(PATIENCE) == 0:
            return words
        sys.stderr.write(f"it has ended by itself: {query.said()}\n")
    raise RuntimeError(f"the query cannot be ended: {query.said()}")


def _run_until(query: KilledQuery, condition) -> None:
    """Start the query and wait; one that ends by itself (Spark gives up on a machine that is too busy) is started again."""
    for _ in range(MOST_STARTS):
        query.start()
        if wait_until(lambda: condition() or not query.runs(), PATIENCE) and query.runs():
            return
        sys.stderr.write(f"it has ended by itself: {query.said()}\n")
        query.kill()
    raise RuntimeError(f"the query does not go on: {query.said()}")


def main() -> int:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    folder = Path(tempfile.mkdtemp(prefix="replsite-kills-"))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "replsite.settings")
    os.environ["REPLSITE_DATA_DIR"] = str(folder / "data")
    os.environ["REPLSITE_LOG_LEVEL"] = "ERROR"
    try:
        import django

        django.setup()
        from django.core.management import call_command

        from streams.db.driver import dsn

        call_command("migrate", verbosity=0)
        facts, rows, distinct, joined = torture(kills, dsn(), folder)
    finally:
        EmbeddedServer(folder / "data").stop_for_good()
        shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write(
        f"{kills} kills, {joined} writers: {facts} facts, {rows} rows in Parquet, {distinct} facts in Parquet\n"
    )
    return 0 if facts == rows == distinct > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
