"""Warns if PostgreSQL makes checkpoints too often during a job that writes much.

After a checkpoint, the first change of a page writes the whole page to the WAL. If ``max_wal_size`` is small, a bulk
load causes one checkpoint after another. Each checkpoint makes the load write more WAL.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from django.db import connections

if TYPE_CHECKING:
    from streams.jobs.job_run import JobRun

_LEAST = 3
#: PostgreSQL itself writes a warning to its log if checkpoints are closer together (``checkpoint_warning``).
_SECONDS_BETWEEN = 30.0
_OWN_VIEW_SINCE = 170_000
#: Backups, CREATE DATABASE and the command CHECKPOINT request checkpoints, too. A few such checkpoints are no reason
#: for a warning.
_REQUESTED = "SELECT num_requested FROM pg_stat_checkpointer"
_REQUESTED_BEFORE_17 = "SELECT checkpoints_req FROM pg_stat_bgwriter"


@contextmanager
def watched_checkpoints(run: JobRun) -> Iterator[None]:
    """Writes a warning to the job's output if too many checkpoints were requested during the block.

    If the block raises an error, writes nothing.
    """
    before, started = _requested(run.using), time.monotonic()
    yield
    requested = _requested(run.using) - before
    with connections[run.using].cursor() as cursor:
        cursor.execute("SELECT current_setting('max_wal_size')")
        (size,) = cursor.fetchone()
    if words := checkpoint_words(requested, time.monotonic() - started, size):
        run.say(words)


def checkpoint_words(requested: int, seconds: float, max_wal_size: str) -> str:
    """Returns a warning about ``requested`` checkpoints within ``seconds``. Returns an empty text if these are few."""
    if requested < _LEAST or seconds / requested >= _SECONDS_BETWEEN:
        return ""
    return (
        f"PostgreSQL was asked for {requested:,} checkpoints in {seconds:,.0f} s, as max_wal_size is {max_wal_size}. After each, "
        "pages are written whole to the WAL again, and the job takes longer. Before the next one: "
        "ALTER SYSTEM SET max_wal_size = '8GB'; SELECT pg_reload_conf(); (64GB for 10^8 events; the disk needs the room)."
    )


def _requested(using: str) -> int:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT current_setting('server_version_num')::int")
        (version,) = cursor.fetchone()
        cursor.execute(_REQUESTED if version >= _OWN_VIEW_SINCE else _REQUESTED_BEFORE_17)
        return int(cursor.fetchone()[0])
