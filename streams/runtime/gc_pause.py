"""Pauses of the garbage collector while many rows are built at once.

Rows that are being built are all alive and contain no cycles, so a collection during that time frees nothing. Without
pauses, collections took two thirds of the time of reading facts. A pause is short, because it covers one bounded batch
of rows. Several threads may pause the collector at the same time.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

_lock = threading.Lock()
_pauses = 0
_was_enabled = False


@cache
def freeze_objects() -> None:
    """Excludes all present objects from later collections. Later calls in the same process do nothing.

    For workers of Spark: their daemon collects garbage after every task, and would visit all imported modules each
    time.
    """
    gc.freeze()


@contextmanager
def collector_paused() -> Iterator[None]:
    """Context manager that turns off automatic collection.

    The end of the last open pause restores the former setting.
    """
    global _pauses, _was_enabled  # noqa: PLW0603 - the collector is one for the process
    with _lock:
        if _pauses == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if _pauses == 0 and _was_enabled:
                gc.enable()
