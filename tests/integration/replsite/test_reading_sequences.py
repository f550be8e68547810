"""What is read of a sequence was given out: never a value that PostgreSQL has only written ahead, and the first one exactly."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection

from tests.support.writing import in_thread, session, stream

pytestmark = pytest.mark.django_db(transaction=True)
NAME = "streams_cacheinvalidation_seq"
READS = 20_000
#: Reads by a statement of the program's, and then what was given out by then.
_LOOK = """
DO $look$
DECLARE
    seen bigint;
    ahead int := 0;
BEGIN
    FOR n IN 1..{reads} LOOP
        EXECUTE $read${statement}$read$ INTO seen;
        IF seen > pg_sequence_last_value('{sequence}') THEN
            ahead := ahead + 1;
        END IF;
    END LOOP;
    PERFORM set_config('replsite.ahead', ahead::text, false);
END $look$
"""


class Recorder:
    """A cursor that keeps the statements that it is given."""

    def __init__(self, cursor: Any) -> None:
        self._cursor, self.statements = cursor, []

    def execute(self, statement: str, values: Any = None) -> None:
        self.statements.append(statement)
        self._cursor.execute(statement, values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


@contextmanager
def busy_writers() -> Iterator[None]:
    """Two sessions that take IDs, each so few at a time that the log is written often."""
    stop = threading.Event()

    def take() -> None:
        with session() as cursor:
            while not stop.is_set():
                cursor.execute("SELECT count(nextval(%s)) FROM generate_series(1, 1000)", [NAME])

    threads = [in_thread(take) for _ in range(2)]
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_beside_busy_writers_nothing_is_read_that_was_not_given_out():
    """``nextval`` writes a value ahead into the shared page before the true one; a plain scan reads it there."""
    with session() as cursor:
        recorder = Recorder(cursor)
        stream().sequence_value(recorder)
        (statement,) = recorder.statements
        read = f"SELECT pg_sequence_last_value FROM ({statement}) AS read".replace("%(sequences)s", f"ARRAY['{NAME}']")
        with busy_writers():
            cursor.execute(_LOOK.format(reads=READS, statement=read, sequence=NAME))
        cursor.execute("SELECT current_setting('replsite.ahead')")
        assert cursor.fetchone() == ("0",)


def _value() -> int:
    with connection.cursor() as cursor:
        return int(stream().sequence_value(cursor))


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("SELECT setval('{name}', 41, false)", 40),  # as by hand: the next one is the greatest that is there and one
        ("SELECT setval('{name}', 1, false)", 0),  # as in a schema without rows
        ("ALTER SEQUENCE {name} RESTART WITH 7", 6),
        ("ALTER SEQUENCE {name} START WITH 2; SELECT setval('{name}', 1, false)", 0),
        ("SELECT setval('{name}', 41)", 41),
    ],
)
def test_a_sequence_that_has_not_begun_stands_before_its_next_value(
    change: str, value: int, put_back: Callable[[], None]
):
    with connection.cursor() as cursor:
        cursor.execute(change.format(name=NAME))
        assert _value() == value
        cursor.execute("SELECT nextval(%s)", [NAME])
        assert cursor.fetchone() == (value + 1,)
    assert _value() == value + 1


@pytest.fixture
def put_back() -> Iterator[Callable[[], None]]:
    """The sequence goes back to where the test found it."""
    before = _value()

    def back() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT setval(%s, %s)", [NAME, before])

    yield back
    back()
