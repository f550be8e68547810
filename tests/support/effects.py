"""For tests of handlers: a table for their effects, and readers that run in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

from streams.follow import Chunk, Reader
from streams.follow.handlers import Handler
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import session

TABLE = "test_effects"


@contextmanager
def effects_table() -> Iterator[None]:
    """The table, for the time of a test; rows may stand there twice, so that a test sees when they do."""
    with session() as cursor:
        cursor.execute(f"CREATE TABLE {TABLE} (number bigserial, reader text, token bigint)")
    try:
        yield
    finally:
        with session() as cursor:
            cursor.execute(f"DROP TABLE {TABLE}")


def take(chunk: Chunk, reader: str = "r") -> None:
    """The effect: a row for each fact, on Django's connection."""
    with connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {TABLE} (reader, token) VALUES (%s, %s)", [(reader, fact.token) for fact in chunk]
        )


def effects(reader: str = "r") -> list[int]:
    """Tokens in the order of their effects."""
    with session() as cursor:
        cursor.execute(f"SELECT token FROM {TABLE} WHERE reader = %s ORDER BY number", [reader])
        return [row[0] for row in cursor.fetchall()]


class Running:
    """A reader in a thread."""

    def __init__(self, *handlers: Handler, name: str = "r") -> None:
        self.reader = Reader(name, handlers)
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.reader.run()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def wait_for_positions(self) -> None:
        """Until it stands somewhere in each of its streams."""
        wait_until(lambda: self.error or (all(loop.cursor for loop in self.reader._loops) and self.reader._loops))


@contextmanager
def running(*handlers: Handler, name: str = "r") -> Iterator[Running]:
    """A reader that follows inside the block, from a known place on."""
    runs = Running(*handlers, name=name)
    runs.thread.start()
    try:
        runs.wait_for_positions()
        yield runs
    finally:
        runs.reader.stop()
        runs.thread.join(DEADLINE_SECONDS)
        assert not runs.thread.is_alive()
