"""Helpers for tests of programs that use the engine. They release the writer names that this process holds.

A test that really commits ends by emptying all tables, including the table of writer names. A process that still held
its name would then find its lease gone. So the name must be released before. The next append takes a name again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streams.reading import cache_feed
from streams.waiting import wait
from streams.writing import process

__all__ = ["as_instance", "forget_writers"]


def forget_writers() -> None:
    """Releases all writer names of this process. Announces nothing, and does not wait for open transactions.

    Also stops the listeners for positions, because the tables are going to be emptied.
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
    """Context manager inside which this process writes under the instance name or pattern ``pattern``.

    All names that the process holds are released at the start and at the end.
    """
    before = process._instance
    forget_writers()
    process._instance = pattern
    try:
        yield
    finally:
        forget_writers()
        process._instance = before
