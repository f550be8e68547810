"""Settings of the embedded server that need its restart, for scripts on a server of their own (``own_server``)."""

from __future__ import annotations

import os
from pathlib import Path

from django.db import connection

from replsite.postgres.server import EmbeddedServer
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
    """Stops the server, and starts it again unless a thread of this process has already."""
    connection.close()
    server = EmbeddedServer(Path(os.environ["REPLSITE_DATA_DIR"]), fsync=False)
    server.stop()
    server.ensure_running()
