"""What a notification may do, by who sent it: a position, a look at the table, or nothing; whatever comes, looks are few."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from streams import database, pokes, trust
from streams.pokes import Poke, PokeJudge


class Clock:
    """Time as the test makes it."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


class Table:
    """Answers the one question: (writer, session)."""

    def __init__(self, **sessions: int) -> None:
        self.sessions = sessions
        self.asked = 0
        self.error: Exception | None = None

    @contextmanager
    def cursor(self) -> Iterator[Table]:
        yield self

    def execute(self, statement: str) -> None:
        self.asked += 1
        if self.error is not None:
            raise self.error

    def fetchall(self) -> list[Any]:
        return list(self.sessions.items())


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(pokes, "time", made)
    monkeypatch.setattr(trust, "time", made)
    return made


@pytest.fixture
def table() -> Table:
    return Table(north=7, south=8)


@pytest.fixture
def judge(clock) -> PokeJudge:
    return PokeJudge()


LOOK = Poke("caches", "", None)


def test_the_session_of_the_writers_lock_is_believed_and_asked_about_once(judge, table, clock):
    for number in range(2, 100):
        assert judge.judge([(7, f"caches north {number}")], table.cursor) == [Poke("caches", "north", number)]
        clock.now += 0.01
    assert table.asked == 1


def test_what_was_asked_is_not_believed_for_ever(judge, table, clock):
    judge.judge([(7, "caches north 2")], table.cursor)
    table.sessions["north"] = 9  # the number of its ended session is another's now
    clock.now += trust.FRESH_SECONDS
    assert judge.judge([(7, "caches north 3")], table.cursor) == [LOOK]


@pytest.mark.parametrize("leaves", [(7, "caches north"), (8, "caches north")])
def test_a_writer_that_left_says_nothing_more(judge, table, clock, leaves):
    """Its session ends, and the number may be somebody else's at once."""
    judge.judge([(7, "caches north 2"), (8, "caches south 2")], table.cursor)
    del table.sessions["north"]
    assert judge.judge([leaves], table.cursor) == [LOOK]
    assert judge.judge([(7, "caches north 9")], table.cursor) == []
    clock.now += trust.LOOK_GAP_SECONDS
    assert judge.judge([], table.cursor) == [LOOK]
    assert judge.judge([(8, "caches south 3")], table.cursor) == [Poke("caches", "south", 3)]


def test_who_says_that_writers_left_has_nobody_asked_about_more_often(judge, table, clock):
    judge.judge([(7, "caches north 2")], table.cursor)
    for number in range(3, 100):
        judge.judge([(1, "events north"), (7, f"caches north {number}")], table.cursor)
        clock.now += 0.01
    assert table.asked == 1


@pytest.mark.parametrize(
    "given", [(8, "caches north 9"), (1, "caches north 9"), (1, "caches ghost 9"), (7, "caches north")]
)
def test_whoever_else_says_something_has_the_table_looked_at(judge, table, given):
    assert judge.judge([given], table.cursor) == [LOOK]


def test_nothing_of_a_stream_goes_before_its_look(judge, table, clock):
    """A enters and cannot be proved; what B said after it would pass A's facts."""
    judge.judge([(1, "caches x")], table.cursor)
    heard = [(1, "caches ghost 5"), (7, "caches north 7"), (7, "events north 3")]
    assert judge.judge(heard, table.cursor) == [Poke("events", "north", 3)]
    assert judge.judge([(7, "caches north 8")], table.cursor) == []
    assert 0 < judge.due_seconds <= trust.LOOK_GAP_SECONDS
    clock.now += trust.LOOK_GAP_SECONDS
    assert judge.judge([], table.cursor) == [LOOK]
    assert judge.due_seconds is None
    assert judge.judge([(7, "caches north 9")], table.cursor) == [Poke("caches", "north", 9)]


def test_a_writer_that_took_its_name_again_is_believed_at_once(judge, table, clock):
    judge.judge([(7, "caches north 2")], table.cursor)
    table.sessions["north"] = 9
    assert judge.judge([(9, "caches north 3")], table.cursor) == [Poke("caches", "north", 3)]


def test_a_flood_costs_few_looks_and_no_memory(judge, table, clock):
    looks = 0
    for number in range(1_000):
        heard = [(1, f"caches w{number} {number}"), (1, f"stream{number} w 1"), (1, "x" * 7_000)]
        looks += len(judge.judge(heard, table.cursor))
        clock.now += 0.001
    assert looks <= 1 + 1.0 / trust.LOOK_GAP_SECONDS
    assert table.asked <= looks + 1
    assert len(judge._waiting) <= 1


def test_what_others_say_is_hardly_read(judge, table, monkeypatch):
    """A flood goes as fast as PostgreSQL: with each word read followers fell behind for minutes."""
    read = []
    parse = Poke.parse

    def counted(payload: str) -> Poke:
        read.append(payload)
        return parse(payload)

    monkeypatch.setattr(Poke, "parse", counted)
    flood = [(1, f"caches w{number} {number}") for number in range(1_000)]
    assert judge.judge([*flood, (7, "events north 2")], table.cursor) == [LOOK, Poke("events", "north", 2)]
    assert set(read) == {"events north 2"}


def test_the_writer_itself_needs_no_table(table, clock):
    judge = PokeJudge(own=(5, "own"))
    assert judge.judge([(5, "caches own 3")], table.cursor) == [Poke("caches", "own", 3)]
    assert table.asked == 0
    assert judge.judge([(5, "caches north 3")], table.cursor) == [LOOK]


def test_who_may_not_read_whose_session_it_is_looks_and_asks_seldom(judge, table, clock):
    table.error = database.DatabaseError("permission denied for table streams_instance")
    for number in range(2, 100):
        assert judge.judge([(7, f"caches north {number}")], table.cursor) == [LOOK]
        clock.now += 0.1
    assert table.asked == 1


def test_a_lost_connection_is_the_callers_matter(judge, table):
    table.error = database.OperationalError("terminating connection")
    with pytest.raises(database.OperationalError):
        judge.judge([(7, "caches north 2")], table.cursor)


def test_what_could_not_be_looked_at_is_looked_at_again(judge, table, clock):
    assert judge.judge([(1, "caches x")], table.cursor) == [LOOK]
    judge.look_again({"caches"})
    clock.now += trust.LOOK_GAP_SECONDS
    assert judge.judge([], table.cursor) == [LOOK]
