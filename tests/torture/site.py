"""The site under torture: a folder, an embedded PostgreSQL of its own, and what its tables say.

The server is the one that the product starts and restarts by itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.session import PROJECT
from tests.support.waiting import DEADLINE_SECONDS
from tests.torture.holds.tables import PLANTS
from tests.torture.logs import checksum
from tests.torture.own_postgres import OwnPostgres
from tests.torture.processes import Nursery
from tests.torture.streams import STREAMS
from tests.torture.verdict import Key, TableFact

__all__ = ["Site", "site_in"]


class Site(OwnPostgres):
    """One folder; may be used for several runs, one after another."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.database = "replsite"
        kept = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
        self.environment = kept | {
            "REPLSITE_DATA_DIR": str(folder / "data"),
            "REPLSITE_POSTGRES_FSYNC": "off",
            "REPLSITE_LOG_LEVEL": "WARNING",
            "DJANGO_SETTINGS_MODULE": "tests.torture.settings",
        }
        self.manage("migrate", "--verbosity", "0")
        self.nursery = Nursery(self.environment, folder)

    def close(self) -> None:
        """End all processes, and let the server stop."""
        self.nursery.close()
        super().close()

    def manage(self, *arguments: str) -> str:
        """Run a command to its end; its stdout."""
        self.server.ensure_running()
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=PROJECT, env=self.environment, capture_output=True, text=True, timeout=2 * DEADLINE_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise AssertionError(f"manage.py {' '.join(arguments)}: status {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout

    @contextmanager
    def planted(self, plant: str) -> Iterator[None]:
        """A fault in the functions of holds, meanwhile."""
        if not plant:
            yield
            return
        with self.cursor() as cursor:
            cursor.execute("SELECT pg_get_functiondef('streams_hold()'::regprocedure)")
            (before,) = cursor.fetchone()
            PLANTS[plant].plant(cursor)
        try:
            yield
        finally:
            with self.cursor() as cursor:
                cursor.execute(before)

    # --- tables ---------------------------------------------------------------------------------------------------

    def last_ids(self) -> dict[str, int]:
        """Where the sequences are: what comes later belongs to the next run."""
        found = {}
        with self.cursor() as cursor:
            for name, stream in STREAMS.items():
                cursor.execute(f"SELECT coalesce(pg_sequence_last_value('{stream.sequence}'), 0)")
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
