"""Settings of the embedded server that need its restart, for scripts on a server of their own (``own_server``)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from django.db import connection
from django.db.backends.postgresql.base import Database

from tests.support.waiting import wait_until
from tests.support.writing import session

__all__ = ["restart", "set_and_restart"]


def set_and_restart(name: str, value: int) -> str:
    """Changes a setting, restarts the server, and returns what the server then says."""
    with session() as cursor:
        cursor.execute(f"ALTER SYSTEM SET {name} = {value}")
    restart()
    with session() as cursor:
        cursor.execute(f"SHOW {name}")
        said: str = cursor.fetchone()[0]
    return said


def restart() -> None:
    """Ends the server, and waits until its keeper has started it again."""
    connection.close()
    before = _server_process()
    os.kill(int(before), signal.SIGINT)
    wait_until(lambda: _answers() and _server_process() != before)


def _server_process() -> str:
    folder = Path(os.environ["REPLSITE_DATA_DIR"]) / "postgres/data"
    return (folder / "postmaster.pid").read_text().split()[0]


def _answers() -> bool:
    try:
        with session() as cursor:
            cursor.execute("SELECT 1")
    except Database.Error:
        return False
    return True
