"""Shared by the tests of the engine on a real server: facts of the stream ``caches``, and what the tables say."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, TypeVar

from django.db import DatabaseError, connection, connections, transaction

from streams import registry
from streams.catalog.models import CacheInvalidation
from streams.db import driver
from streams.db.sequences import move_forward
from streams.reading import looker
from streams.reading.rows import StoredPosition, linear_position, stored_positions
from streams.writing import name as names
from tests.support.waiting import DEADLINE_SECONDS, wait_until

T = TypeVar("T")


@contextmanager
def as_instance(pattern: str) -> Iterator[None]:
    """This process writes under that instance name."""
    before, names._instance = names._instance, pattern
    try:
        yield
    finally:
        names._instance = before


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
    """The stored positions of a stream, read on a connection of their own, after a look: without listeners nobody looks."""
    looker.look_now(stream().database, even_if_led=True)
    return looked(lambda cursor: stored_positions(cursor, [name]).get(name, {}))


def store_positions() -> None:
    """Store the positions of this moment: nobody looks in a test without listeners."""
    assert looker.look_now(stream().database, even_if_led=True)


def linear(name: str = "caches") -> int:
    """The linear position by the table, after a look."""
    return linear_position(stored(name).values())


def wait_for_linear(position: int) -> None:
    """Until the linear position is there; fails when it is not, or goes beyond."""
    wait_until(lambda: linear() >= position, what=f"linear position {position}")
    assert linear() == position


@contextmanager
def session() -> Iterator[Any]:
    """A cursor on a connection of its own, in autocommit mode."""
    with closing(driver.direct_connection(application_name="test")) as own, own.cursor() as cursor:
        yield cursor


#: Connections for ``looked``, by where they lead: what waits looks again and again, and a new one takes 6 ms of CPU.
_kept: list[tuple[str, Any]] = []


def looked(work: Callable[[Any], T]) -> T:
    """What the work reads in single statements, on a connection of its own that is kept until the test ends."""
    where = driver.dsn()
    while _kept:
        place, own = _kept.pop()
        if place != where:
            own.close()
            continue
        with suppress(*driver.connection_lost):  # it was cut, or the server was started anew
            return _on(own, where, work)
    return _on(driver.direct_connection(application_name="test"), where, work)


def _on(own: Any, where: str, work: Callable[[Any], T]) -> T:
    try:
        with own.cursor() as cursor:
            found = work(cursor)
    except BaseException:
        own.close()
        raise
    _kept.append((where, own))
    return found


def stop_looking() -> None:
    """Close what ``looked`` keeps: the tables, or the database, are to go."""
    while _kept:
        _kept.pop()[1].close()


def give_out(upto: int, name: str = "caches") -> None:
    """Have the sequence give out IDs up to there, as it has where positions and facts are put into the tables by hand."""
    with session() as cursor:
        move_forward(cursor, registry.get(name).declaration.sequence, upto)


def far_above() -> int:
    """A position of ``caches`` up to which IDs are still to be given out. Tests before may have taken a million of them."""
    with session() as cursor:
        return stream().sequence_value(cursor) + 1_000_000


def store_position(position: int) -> None:
    """Store a position of the writer ``north`` of ``caches``, and notify nobody."""
    with session() as cursor:
        cursor.execute(
            "INSERT INTO streams_streamposition (stream, instance_name, position) VALUES ('caches', 'north', %s) "
            "ON CONFLICT (stream, instance_name) DO UPDATE SET position = excluded.position",
            [position],
        )


def fact_of_north(name: str = "x", key: str = "a") -> int:
    """Returns the token of a new fact of that writer, which drops the key of a cache."""
    with session() as cursor:
        cursor.execute(
            "INSERT INTO streams_cacheinvalidation (instance_name, cache_name, keys) VALUES ('north', %s, %s) "
            "RETURNING stream_id",
            [name, [key]],
        )
        token: int = cursor.fetchone()[0]
    return token


@contextmanager
def other_writer(name: str) -> Iterator[Any]:
    """A cursor of a session that appends as that writer, as another process would."""
    with session() as cursor:
        cursor.execute("SELECT set_config('streams.writer', %s, false)", [name])
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


@contextmanager
def held_open(count: int = 2) -> Iterator[list[int]]:
    """Yields so many facts of the open transaction of another thread. It commits behind the block, unless it was ended."""
    begun, done = threading.Event(), threading.Event()
    held: list[int] = []

    def hold() -> None:
        with suppress(DatabaseError), transaction.atomic():
            held.extend(append(count))
            begun.set()
            done.wait(2 * DEADLINE_SECONDS)

    thread = in_thread(hold)
    try:
        assert begun.wait(DEADLINE_SECONDS)
        yield held
    finally:
        done.set()
        thread.join()


@contextmanager
def writer_waits_for(program: str) -> Iterator[list[int]]:
    """The open transaction of a writer waits for a lock of another program. Yields its facts, of which there are none before it
    went on; it has behind the block."""
    written: list[int] = []

    def write() -> None:
        with transaction.atomic():
            found = append()
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_xact_lock(4711)")
        written.extend(found)

    with closing(driver.direct_connection(application_name=program)) as stranger, stranger.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(4711)")
        writer = in_thread(write)
        wait_until(waiting_sessions)
        yield written
    writer.join()


def server_process() -> int:
    """Number of the server process behind this thread's Django connection."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


# --- sessions of this test's database: other tests use other databases of the same server -----------------------------

_SESSIONS = """
SELECT pid, application_name FROM pg_stat_activity WHERE datname = current_database()
AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND application_name LIKE %s
"""
_WAITING_SESSIONS = """
SELECT DISTINCT pid, query FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE datname = current_database()
AND backend_type = 'client backend' AND application_name LIKE %s AND NOT granted AND database IS DISTINCT FROM 0
"""


def sessions(name: str = "%") -> dict[int, str]:
    """Numbers and names of the client sessions in this test's database; ``name`` is a pattern of LIKE. Not the one that asks."""
    return dict(_rows(_SESSIONS, name))


def waiting_sessions(name: str = "%") -> list[int]:
    """Those of ``sessions`` that wait for a lock. What all databases share does not count: the lock of commits that notify."""
    return list(waiting_queries(name))


def waiting_queries(name: str = "%") -> dict[int, str]:
    """What ``waiting_sessions`` wait to do."""
    return dict(_rows(_WAITING_SESSIONS, name))


def is_open(process: int) -> bool:
    """True while the server process lives."""
    return bool(_rows("SELECT pid FROM pg_stat_activity WHERE pid = %s", process))


def cut(name: str) -> int:
    """End those of ``sessions`` from outside; returns how many there were."""
    return terminate(*sessions(name))


def terminate(*pids: int) -> int:
    """End server processes from outside, as an operator would; returns how many."""
    for pid in pids:
        _rows("SELECT pg_terminate_backend(%s, 5000)", pid)
    return len(pids)


def _rows(statement: str, value: object) -> list[Any]:
    def work(cursor: Any) -> list[Any]:
        cursor.execute(statement, [value])
        return list(cursor.fetchall())

    return looked(work)
