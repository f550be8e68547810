"""The site under torture: a folder, an embedded PostgreSQL of its own, and what its tables say.

The server is the one that the product starts and restarts by itself; here its processes are only found and killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg2

from replsite.postgres.launcher import LaunchSettings, ensure_running, release
from tests.support.session import PROJECT
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.torture.logs import checksum
from tests.torture.processes import Nursery
from tests.torture.streams import STREAMS
from tests.torture.verdict import Key, TableFact

__all__ = ["Site", "site_in"]


class Site:
    """One folder; may be used for several runs, one after another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._settings = LaunchSettings(folder / "data", fsync=False)
        kept = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
        self.environment = kept | {
            "REPLSITE_DATA_DIR": str(folder / "data"),
            "REPLSITE_POSTGRES_FSYNC": "off",
            "REPLSITE_LOG_LEVEL": "WARNING",
            "DJANGO_SETTINGS_MODULE": "tests.torture.settings",
        }
        folder.mkdir(parents=True, exist_ok=True)
        self.manage("migrate", "--verbosity", "0")
        self.nursery = Nursery(self.environment, folder)

    def close(self) -> None:
        """End all processes, and let the server stop."""
        self.nursery.close()
        release(self._settings.data_dir)
        wait_until(lambda: not self._settings.folder.has_keeper(), what="the server to stop")

    def manage(self, *arguments: str) -> str:
        """Run a command to its end; its stdout."""
        ensure_running(self._settings)
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=PROJECT, env=self.environment, capture_output=True, text=True, timeout=2 * DEADLINE_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise AssertionError(f"manage.py {' '.join(arguments)}: status {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout

    # --- tables ---------------------------------------------------------------------------------------------------

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        """On a connection of its own; the server must be up."""
        parameters = ensure_running(self._settings)
        with closing(psycopg2.connect(**parameters, dbname="replsite", connect_timeout=10)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                yield cursor

    def is_up(self) -> bool:
        """Whether the server answers."""
        try:
            with self.cursor() as cursor:
                cursor.execute("SELECT 1")
        except psycopg2.Error:
            return False
        return True

    def last_ids(self) -> dict[str, int]:
        """Where the sequences are: what comes later belongs to the next run."""
        found = {}
        with self.cursor() as cursor:
            for name, stream in STREAMS.items():
                cursor.execute(f"SELECT last_value FROM {stream.sequence}")
                found[name] = int(cursor.fetchone()[0])
        return found

    def facts(self, after: Mapping[str, int]) -> dict[Key, TableFact]:
        """What the tables hold above these IDs, read without any code of the product."""
        rows: dict[Key, tuple[str, list[int]]] = {}
        with self.cursor() as cursor:
            for name, stream in STREAMS.items():
                columns = ", ".join(stream.columns)
                cursor.execute(
                    f"SELECT stream_id, instance_name, {columns} FROM {stream.table} WHERE stream_id > %s ORDER BY id",
                    [after[name]],
                )
                for number, writer, *values in cursor:
                    rows.setdefault((name, number), (writer, []))[1].append(checksum(values))
        return {key: TableFact(writer, tuple(sums)) for key, (writer, sums) in rows.items()}

    # --- the server's processes -----------------------------------------------------------------------------------

    def kill_postmaster(self) -> bool:
        """``kill -9`` of the whole server's first process."""
        postmaster = self._postmaster()
        if postmaster is None:
            return False
        with suppress(psutil.NoSuchProcess):
            postmaster.send_signal(signal.SIGKILL)
        return True

    def signal_backend(self, rng: random.Random, number: signal.Signals) -> bool:
        """A signal to one connection's server process; SIGKILL makes the server restart all of them."""
        postmaster = self._postmaster()
        backends = [] if postmaster is None else _backends(postmaster)
        if not backends:
            return False
        with suppress(psutil.NoSuchProcess):
            rng.choice(sorted(backends, key=lambda process: process.pid)).send_signal(number)
        return True

    def _postmaster(self) -> psutil.Process | None:
        try:
            number = int((self._settings.folder.cluster / "postmaster.pid").read_text().split()[0])
            process = psutil.Process(number)
            is_ours = str(self._settings.folder.cluster) in process.cmdline()
        except (OSError, ValueError, IndexError, psutil.Error):
            return None
        return process if is_ours else None


def _backends(postmaster: psutil.Process) -> list[psutil.Process]:
    found = []
    for child in postmaster.children():
        with suppress(psutil.Error):
            if "127.0.0.1(" in " ".join(child.cmdline()):
                found.append(child)
    return found


@contextmanager
def site_in(folder: Path) -> Iterator[Site]:
    """A site that is closed at the end."""
    site = Site(folder)
    try:
        yield site
    finally:
        site.close()


def read_json(text: str) -> Any:
    """What a command printed with ``--json``."""
    return json.loads(text)
