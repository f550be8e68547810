"""What a wake-up costs a handler loop, and that its cursor depends on the table alone, whatever was announced."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator

import pytest
from django.db import connection, transaction

from streams.core.tokens import VectorToken
from streams.db import driver
from streams.errors import ResyncNeeded
from streams.follow import Begin, Handler, View
from streams.follow.table_source import TableSource
from streams.reading.position_notifications import PositionNotification
from streams.writing.control_loop import ControlLoop
from streams.writing.writer import WriterProcess
from tests.support.waiting import wait_until
from tests.support.writing import append, as_instance, stored, stream, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)


def announced(position: int | None, writer: str = "master") -> list[PositionNotification]:
    return [PositionNotification("caches", writer, position)]


@pytest.fixture(params=[View.WRITER, View.LINEAR])
def source(request) -> Iterator[TableSource]:
    """A source that has read the first fact, with the positions by the table."""
    wait_for_linear(append(1)[0])
    handler = Handler("caches", "r", print, begin=Begin.OLDEST, view=request.param)
    source = TableSource(handler, "default")
    try:
        source.begin()
        source.next(source.next(VectorToken(0)).cursor)
        yield source
    finally:
        source.close()


@pytest.fixture
def cursor(source) -> VectorToken:
    return source.next(VectorToken(0)).cursor


@pytest.fixture
def statements(monkeypatch) -> list[str]:
    """The statements that this thread executes on direct connections from now on."""
    found: list[str] = []
    execute, own = driver.execute_prepared, threading.get_ident()

    def execute_prepared(cursor, statement, values) -> None:
        if threading.get_ident() == own:
            found.append(statement)
        execute(cursor, statement, values)

    monkeypatch.setattr(driver, "execute_prepared", execute_prepared)
    return found


def tokens(batch) -> list[int]:
    return [row.token for row in batch.rows]


def test_a_wake_up_costs_one_statement(source, cursor, statements, monkeypatch):
    monkeypatch.setattr(source, "_look_due", math.inf)  # on a slow machine a heartbeat passes
    for _ in range(3):
        number = append(1)[0]
        wait_for_linear(number)
        source.hear(announced(number))
        statements.clear()
        batch = source.next(cursor)
        assert (tokens(batch), len(statements)) == ([number], 1)
        assert batch.is_last
        cursor = batch.cursor
    statements.clear()
    assert not source.next(cursor).rows
    source.hear(announced(number))  # once more, as a writer does when it lives
    assert not source.next(cursor).rows
    assert statements == []


def test_a_position_that_the_table_does_not_have_moves_nothing(source, cursor):
    """As from a server that was left for another one, and is still heard: its facts are not here."""
    with transaction.atomic():
        held = append(1)[0]
        source.hear(announced(held + 10))
        batch = source.next(cursor)
        assert tokens(batch) == []
        assert not batch.cursor.covers("master", held)
        source.hear(announced(held))
        assert not source.next(batch.cursor).cursor.covers("master", held)
    wait_for_linear(held)
    source.hear(announced(held))
    assert tokens(source.next(batch.cursor)) == [held]


@pytest.mark.parametrize("notifications", [announced(None), []], ids=["no position", "some may be lost"])
def test_the_table_is_read_after_whatever_says_no_position(source, cursor, notifications):
    numbers = append(3)
    wait_for_linear(numbers[-1])
    source.hear(notifications)
    assert tokens(source.next(cursor)) == numbers


def test_the_table_is_read_once_a_heartbeat_without_a_notification(source, cursor, monkeypatch):
    number = append(1)[0]
    wait_for_linear(number)
    monkeypatch.setattr(source, "_look_due", 0.0)
    assert tokens(source.next(cursor)) == [number]


def test_a_writer_that_was_not_announced_is_known_before_the_next_position_of_another(source, cursor):
    """It may hold an open fact below that position."""
    north = WriterProcess("default", "north", ControlLoop)
    try:
        north.enter(stream())
        number = append(1)[0]
        wait_until(lambda: stored()["master"].position >= number)
        source.hear(announced(number))
        batch = source.next(cursor)
        assert set(source.writers) == {"master", "north"}
        assert batch.target.base <= min(at.position for at in stored().values())
    finally:
        north.close()


def test_facts_of_two_writers_come_once_each_and_in_order(source, cursor):
    found, expected = [], []
    with as_instance("north"):
        expected += append(2)
    expected += append(2)
    wait_for_linear(expected[-1])
    source.hear([*announced(expected[1], "north"), *announced(expected[-1])])
    while batch := source.next(cursor):
        found += tokens(batch)
        cursor = batch.cursor
        if not batch.rows:
            break
    assert found == expected


def test_trimmed_facts_are_missed_with_an_error(source, cursor):
    numbers = append(3)
    wait_for_linear(numbers[-1])
    with connection.cursor() as writing, transaction.atomic():
        writing.execute("DELETE FROM streams_cacheinvalidation WHERE stream_id = %s", [numbers[0]])
        writing.execute(
            "INSERT INTO streams_lowwatermark (stream, position, writers, rows_deleted, trimmed_at) "
            "VALUES ('caches', %s, jsonb_build_object('master', %s), 1, now())",
            [numbers[0], numbers[0]],
        )
    source.hear(announced(numbers[-1]))
    with pytest.raises(ResyncNeeded, match=f"up to {numbers[0]} were trimmed"):
        source.next(cursor)


def test_many_facts_that_were_announced_at_once_come_in_pieces(source, cursor, monkeypatch):
    monkeypatch.setattr(source._pace, "_rows", 10)
    monkeypatch.setattr(source._pace, "learn", lambda rows: None)
    numbers = append(25)
    wait_for_linear(numbers[-1])
    source.hear(announced(numbers[-1]))
    found = []
    while len(found) < 25:
        batch = source.next(cursor)
        found += tokens(batch)
        cursor = batch.cursor
    assert (found, batch.is_last) == (numbers, True)
