"""Helpers for tests of programs that use the engine: they release what this process holds between tests.

Tests that really commit end by emptying the tables, including the one of writer names. A process that still held its name
then would find its lease gone, so it must release the name first. It takes the name again at its next append.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streams.reading import cache_feed
from streams.waiting import wait
from streams.writing import process

__all__ = ["as_instance", "forget_writers"]


def forget_writers() -> None:
    """Releases all writer names of this process, without announcing it and without waiting for open transactions.

    Also stops the listeners for positions, since the tables are going to be emptied.
    """
    wait.forget_views()
    cache_feed.stop_feeds()
    for stop in process.before_leaving:
        stop()
    for writer in list(process._writers.values()):
        writer.close()
    process._writers.clear()


@contextmanager
def as_instance(pattern: str) -> Iterator[None]:
    """Context manager that writes under that name or pattern. Names held before and after are released."""
    before = process._instance
    forget_writers()
    process._instance = pattern
    try:
        yield
    finally:
        forget_writers()
        process._instance = before
