"""Names staging tables of Spark writes, and drops those that are done with or left behind. Needs no Django."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Any

import psycopg2

from pipeline.connections import connect

__all__ = ["NOW", "PREFIX", "drop_staging", "staging_name", "sweep"]

PREFIX = "pipeline_facts_"
"""Prefix of staging tables. The full name continues with the time of creation (seconds, hexadecimal), an underscore and the
job."""
#: The time of the database's clock in seconds.
NOW = "SELECT extract(epoch FROM clock_timestamp())::bigint"
_LEFT_SECONDS = 86_400
_LEFT = (
    "SELECT relname FROM pg_class WHERE relkind = 'r' AND starts_with(relname::text, %s) AND pg_table_is_visible(oid)"
)


def staging_name(job: str, now: float) -> str:
    """Returns the name of a job's staging table, which contains the time when the table was made.

    ``now`` is the time of the database's clock in seconds. The age of the table is computed by the same clock.
    """
    return f"{PREFIX}{int(now):x}_{job}"


def sweep(dsn: str) -> list[str]:
    """Drops staging tables that are more than a day old, and returns their names.

    A table is kept if a task is writing to it at this moment. If a write takes longer than a day, its table may be
    dropped while no task is writing. Then the write fails, and appends nothing.

    Raises no error of the database: a write that was done must not fail, and a later one sweeps again.
    """
    dropped: list[str] = []
    with suppress(psycopg2.Error), closing(connect(dsn, "replsite spark append")) as connection:
        with connection, connection.cursor() as cursor:
            cursor.execute(NOW)
            now = cursor.fetchone()[0]
            cursor.execute(_LEFT, [PREFIX])
            names = [row[0] for row in cursor.fetchall()]
        old = [name for name in names if now - _made_at(name, now) > _LEFT_SECONDS]
        dropped += [name for name in old if drop_staging(connection, name)]
    return dropped


def _made_at(name: str, now: int) -> int:
    try:
        return int(name.removeprefix(PREFIX).partition("_")[0], 16)
    except ValueError:  # not one of our staging tables: treated as new, so it is kept
        return now


def drop_staging(connection: Any, staging: str) -> bool:
    """Drops a staging table. Returns false if this fails, for example because a late task holds a lock on the table.

    A later sweep drops the table then.
    """
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '2s'")
            cursor.execute(f"DROP TABLE IF EXISTS {staging}")
    except psycopg2.Error:  # usually the lock timeout
        return False
    return True
