"""Converts errors that a full disk causes, in PostgreSQL, Spark or the operating system, to ``DiskFull``."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import Error as DjangoError

from pipeline.errors import DiskFull, TaskFailed
from streams.db import driver

__all__ = ["disk_full"]

_STATE = "53100"
_WORDS = ("DiskFull", "No space left on device")


@contextmanager
def disk_full() -> Iterator[None]:
    """Raises ``DiskFull`` if an error of the block was caused by a full disk. Other errors pass unchanged."""
    try:
        yield
    except (DjangoError, driver.DatabaseError, TaskFailed, OSError) as error:
        if not _is_full(error):
            raise
        raise DiskFull(
            f"A disk is full: {str(error).strip()} Free space, then go on with --resume (a queued import: queue it again). "
            "What was loaded stays."
        ) from error


def _is_full(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOSPC
    state = driver.sqlstate(error)
    return state == _STATE or any(word in str(error) for word in _WORDS)
