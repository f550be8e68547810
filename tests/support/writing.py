"""Shared by the tests of the engine on a real server: facts of the stream ``caches``, and what the tables say."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from django.db import connection, connections

from streams import registry
from streams.db import driver
from streams.db.sequences import move_forward
from streams.models import CacheInvalidation
from streams.reading.rows import StoredPosition, linear_position, stored_positions
from streams.writing import lease
from tests.support.waiting import wait_until


def stream() -> Any:
    """The stream that the tests write."""
    return registry.get("caches")


def fact(name: str = "test") -> CacheInvalidation:
    """A fact that was not appended yet."""
    return CacheInvalidation(cache_name=name, keys=["k"])


def append(count: int = 1) -> list[int]:
    """Append facts in one transaction of their own, or in the open one."""
    return list(stream().append(*(fact() for _ in range(count))))


def ids() -> list[int]:
    """What is in the table, as this connection sees it."""
    return list(CacheInvalidation.objects.order_by("stream_id").values_list("stream_id", flat=True))


def stored(name: str = "caches") -> dict[str, StoredPosition]:
    """The stored positions of a stream, read on a connection of their own."""
    with session() as cursor:
        return stored_positions(cursor, [name]).get(name, {})


def linear(name: str = "caches") -> int:
    """The linear position by the table."""
    return linear_position(stored(name).values())


def wait_for_linear(position: int, seconds: float = 5.0) -> None:
    """Until the linear position is there; fails when it is not, or goes beyond."""
    wait_until(lambda: linear() >= position, seconds, f"linear position {position}")
    assert linear() == position


@contextmanager
def session() -> Iterator[Any]:
    """A cursor on a connection of its own, in autocommit mode."""
    with closing(driver.direct_connection(application_name="test")) as own, own.cursor() as cursor:
        yield cursor


def give_out(upto: int, name: str = "caches") -> None:
    """Have the sequence give out IDs up to there, as it has where positions and facts are put into the tables by hand."""
    with session() as cursor:
        move_forward(cursor, registry.get(name).declaration.sequence, upto)


@contextmanager
def other_writer(name: str) -> Iterator[Any]:
    """A cursor of a session that holds the name of a writer, as another process would: what it says of that writer counts."""
    with session() as cursor:
        lease.take(cursor, name, lease.Identity("far", 1, "x"), 1.0)
        yield cursor


def in_thread(work: Callable[[], None]) -> threading.Thread:
    """Run in a thread that closes its database connection."""

    def run() -> None:
        try:
            work()
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def server_process() -> int:
    """Number of the server process behind this thread's Django connection."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def cut(application_name: str) -> None:
    """End the connections of that name to this test's database, from outside."""
    with session() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE application_name = %s AND datname = current_database()",
            [application_name],
        )


def terminate(process: int) -> None:
    """End a server process from outside, as an operator would."""
    with session() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [process])
