"""What this process lets go after a test: listeners, kept events, hot caches, and the rows that outlive a rollback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

__all__ = ["everything_let_go"]

#: Written by the looker's own connection, so that a test whose changes are rolled back leaves them.
_ROWS_OF_LOOKS = ("streams_streamposition",)


@contextmanager
def everything_let_go(request: pytest.FixtureRequest) -> Iterator[None]:
    """Around one test."""
    from streams.reading import looker  # needs Django's apps, which are loaded by now
    from streams.writing import name

    marker = request.node.get_closest_marker("django_db")
    commits = "transactional_db" in request.fixturenames or bool(marker and marker.kwargs.get("transaction"))
    if commits:
        request.getfixturevalue("transactional_db")  # so that it is torn down after this one
    yield
    _let_go(rows_stay=not commits and bool(looker._lookers or looker._callers))
    name._instance = None  # a command or a thread of the test may have set its own


def _let_go(*, rows_stay: bool) -> None:
    from events.notifier import notifier
    from events.persist import room_cache
    from streams.db import driver
    from streams.testing import forget_writers
    from tests.support.writing import session

    notifier.stop_feeds()
    room_cache.clear_caches()
    if shared := sys.modules.get("replsite.live_rows.shared"):
        shared.SHARED.__init__()  # a snapshot of this test's rows is young enough for the next test
    forget_writers()
    if source := sys.modules.get(
        "pipeline.source.read_rows"
    ):  # a piece that was read here keeps its connection, as in a worker
        for _, connection in source._kept:
            connection.close()
        source._kept.clear()
    if rows_stay:
        with (
            suppress(driver.DatabaseError),
            session() as cursor,
        ):  # the test's own transaction may hold a row for long
            cursor.execute("SET lock_timeout = '5s'")
            for table in _ROWS_OF_LOOKS:
                cursor.execute(f"DELETE FROM {table}")
