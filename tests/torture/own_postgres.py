"""An embedded PostgreSQL of a test's own, whose processes the test may find and kill.

The server is the one that the product starts and restarts by itself.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg2

from replsite.postgres.server import EmbeddedServer

__all__ = ["OwnPostgres"]


class OwnPostgres:
    """The server of one folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.server = EmbeddedServer(folder / "data", fsync=False)
        self.database = "postgres"

    def close(self) -> None:
        """Stop the server."""
        self.server.stop_for_good()

    def parameters(self) -> dict[str, Any]:
        """Where the server is, for a driver. Starts it when it is down."""
        return {**self.server.ensure_running(), "dbname": self.database, "connect_timeout": 10}

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        """On a connection of its own; the server must be up."""
        with closing(psycopg2.connect(**self.parameters())) as connection:
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
            number = int((self.server.cluster / "postmaster.pid").read_text().split()[0])
            process = psutil.Process(number)
            is_ours = str(self.server.cluster) in process.cmdline()
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
