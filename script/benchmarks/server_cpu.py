"""CPU seconds of the database server's processes, read on its machine."""

from __future__ import annotations

from pathlib import Path

from django.db import connection

__all__ = ["server_seconds", "spent"]

_PROCESSES = "SELECT pid FROM pg_stat_activity WHERE backend_type NOT LIKE 'autovacuum%'"


def server_seconds() -> dict[int, float]:
    """CPU seconds of every process of the database server, its background processes included but not vacuum's, which come and go.

    Empty if the server runs on another machine.
    """
    with connection.cursor() as cursor:
        cursor.execute(_PROCESSES)
        found = {pid: Path(f"/proc/{pid}") for (pid,) in cursor.fetchall()}
    return {
        pid: int((path / "schedstat").read_text().split()[0]) / 1e9
        for pid, path in found.items()
        if path.exists() and (path / "comm").read_text().startswith("postgres")
    }


def spent(before: dict[int, float], after: dict[int, float]) -> float:
    """Seconds between two readings; a process that began in between counts from its start."""
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())
