"""For tests of programs that use the engine: let go of what this process holds between tests.

Tests that really commit end by emptying the tables, the one of writer names too. A process that still held its name then
would find its lease gone, so it has to let go first; it takes the name again at its next append.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streams.reading import cache_feed
from streams.waiting import wait
from streams.writing import process

__all__ = ["as_instance", "forget_writers"]


def forget_writers() -> None:
    """Let all writer names of this process go, without a word and without waiting for open transactions.

    And stop hearing of positions: the tables are going to be emptied.
    """
    wait.forget_views()
    cache_feed.forget_feeds()
    for stop in process.before_leaving:
        stop()
    for writer in list(process._writers.values()):
        writer.close()
    process._writers.clear()


@contextmanager
def as_instance(pattern: str) -> Iterator[None]:
    """Write under that name or pattern inside; the names held before and after are let go."""
    before = process._instance
    forget_writers()
    process._instance = pattern
    try:
        yield
    finally:
        forget_writers()
        process._instance = before
