"""What a notification may do, by who sent it: a position, a look at the table, or nothing; whatever comes, looks are few."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from streams.db import driver
from streams.reading import position_notifications, trust
from streams.reading.position_notifications import NotificationFilter, PositionNotification
from streams.reading.trust import OneTimeWords


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
    monkeypatch.setattr(position_notifications, "time", made)
    monkeypatch.setattr(trust, "time", made)
    return made


@pytest.fixture
def table() -> Table:
    return Table(north=7, south=8)


@pytest.fixture
def judge(clock) -> NotificationFilter:
    return NotificationFilter()


LOOK = PositionNotification("caches", "", None)


@pytest.fixture
def says() -> Callable[..., str]:
    """A writer's announcements, with the words that prove them."""
    words: dict[str, OneTimeWords] = {}

    def say(writer: str, position: int, stream: str = "caches") -> str:
        return f"{stream} {writer} {position} {words.setdefault(writer, OneTimeWords()).take(stream)}"

    return say


def test_the_session_of_the_writers_lock_is_believed_and_asked_about_once(judge, table, clock, says):
    for number in range(2, 100):
        assert judge.judge([(7, says("north", number))], table.cursor) == [
            PositionNotification("caches", "north", number)
        ]
        clock.now += 0.01
    assert table.asked == 1


def test_several_at_once_are_asked_about_once(judge, table, clock, says):
    heard = [(7, says("north", 2)), (8, says("south", 3)), (7, says("north", 4))]
    told = [
        PositionNotification("caches", "north", 2),
        PositionNotification("caches", "south", 3),
        PositionNotification("caches", "north", 4),
    ]
    assert judge.judge(heard, table.cursor) == told
    assert judge.judge([(7, says("north", 5))], table.cursor) == [PositionNotification("caches", "north", 5)]
    assert table.asked == 1


def test_without_words_each_is_asked_about(judge, table, clock):
    """What a writer of a version without words says, and the entry of one that comes."""
    for number in range(2, 10):
        assert judge.judge([(7, f"caches north {number}")], table.cursor) == [
            PositionNotification("caches", "north", number)
        ]
    assert table.asked == 8


@pytest.mark.parametrize("position", [3, 1_000_000])
def test_who_got_the_number_of_a_killed_writer_is_not_believed_at_any_time(judge, table, clock, says, position):
    """It has heard all that the writer said, and says it again, with another position."""
    last = says("north", 2)
    judge.judge([(7, last)], table.cursor)
    last = says("north", 3)
    assert judge.judge([(7, last)], table.cursor) == [PositionNotification("caches", "north", 3)]
    del table.sessions["north"]
    words = last.split(" ", 3)[3]
    word, digest = words.split(" ")
    for made_up in (words, f"{digest} {word}", f"{word} {word}", f"{digest} {digest}", "x y", ""):
        clock.now += trust.LOOK_GAP_SECONDS
        assert judge.judge([(7, f"caches north {position} {made_up}".strip())], table.cursor) == [LOOK]
    assert table.asked >= 2


def test_a_link_that_is_missing_is_asked_about(judge, table, clock, says):
    """The announcement was not sent, or its stream moved by somebody else's word."""
    judge.judge([(7, says("north", 2))], table.cursor)
    says("north", 3)
    assert judge.judge([(7, says("north", 4))], table.cursor) == [PositionNotification("caches", "north", 4)]
    assert judge.judge([(7, says("north", 5))], table.cursor) == [PositionNotification("caches", "north", 5)]
    assert table.asked == 2


def test_words_belong_to_session_writer_and_stream(judge, table, clock, says):
    judge.judge([(7, says("north", 2))], table.cursor)
    words = says("north", 3).split(" ", 3)[3]
    del table.sessions["north"]
    assert judge.judge([(8, f"caches north 9 {words}"), (7, f"events north 9 {words}")], table.cursor) == [
        LOOK,
        PositionNotification("events", "", None),
    ]


def test_words_of_sessions_that_ended_are_forgotten(judge, table, clock, says):
    for number in range(100):
        table.sessions["north"] = number
        judge.judge([(number, f"caches north {number} a b{number}")], table.cursor)
    assert len(judge._words._told) == 1


@pytest.mark.parametrize(
    "given", [(8, "caches north 9"), (1, "caches north 9"), (1, "caches ghost 9"), (7, "caches north")]
)
def test_whoever_else_says_something_has_the_table_looked_at(judge, table, given):
    assert judge.judge([given], table.cursor) == [LOOK]


def test_nothing_of_a_stream_goes_before_its_look(judge, table, clock, says):
    """A enters and cannot be proved; what B said after it would pass A's facts."""
    judge.judge([(7, says("north", 2)), (7, says("north", 2, "events")), (1, "caches x")], table.cursor)
    heard = [(1, "caches ghost 5"), (7, says("north", 7)), (7, says("north", 3, "events"))]
    assert judge.judge(heard, table.cursor) == [PositionNotification("events", "north", 3)]
    assert judge.judge([(7, says("north", 8))], table.cursor) == []
    assert 0 < judge.due_seconds <= trust.LOOK_GAP_SECONDS
    clock.now += trust.LOOK_GAP_SECONDS
    assert judge.judge([], table.cursor) == [LOOK]
    assert judge.due_seconds is None
    assert judge.judge([(7, says("north", 9))], table.cursor) == [PositionNotification("caches", "north", 9)]


def test_a_writer_that_took_its_name_again_is_believed_at_once(judge, table, clock):
    judge.judge([(7, "caches north 2")], table.cursor)
    table.sessions["north"] = 9
    assert judge.judge([(9, "caches north 3")], table.cursor) == [PositionNotification("caches", "north", 3)]


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
    parse = PositionNotification.parse

    def counted(payload: str) -> PositionNotification:
        read.append(payload)
        return parse(payload)

    monkeypatch.setattr(PositionNotification, "parse", counted)
    flood = [(1, f"caches w{number} {number}") for number in range(1_000)]
    assert judge.judge([*flood, (7, "events north 2")], table.cursor) == [
        LOOK,
        PositionNotification("events", "north", 2),
    ]
    assert set(read) == {"events north 2"}


def test_the_writer_itself_needs_no_table(table, clock):
    judge = NotificationFilter(own=(5, "own"))
    assert judge.judge([(5, "caches own 3")], table.cursor) == [PositionNotification("caches", "own", 3)]
    assert table.asked == 0
    assert judge.judge([(5, "caches north 3")], table.cursor) == [LOOK]


def test_who_may_not_read_whose_session_it_is_looks_and_asks_seldom(judge, table, clock):
    table.error = driver.DatabaseError("permission denied for table streams_instance")
    for number in range(2, 100):
        assert judge.judge([(7, f"caches north {number}")], table.cursor) == [LOOK]
        clock.now += 0.1
    assert table.asked == 1


def test_a_lost_control_connection_is_the_writers_matter(table):
    table.error = driver.OperationalError("terminating connection")
    with pytest.raises(driver.OperationalError):
        NotificationFilter(own=(5, "own")).judge([(7, "caches north 2")], table.cursor)


def test_without_a_connection_to_ask_the_table_is_looked_at_and_soon_senders_are_known_again(judge, table, clock):
    table.error = driver.OperationalError("too many clients")
    for _ in range(10):
        assert judge.judge([(7, "caches north 2")], table.cursor) == [LOOK]
        clock.now += 0.05
    assert table.asked == 1
    table.error = None
    clock.now += 1.0
    assert judge.judge([(7, "caches north 3")], table.cursor) == [PositionNotification("caches", "north", 3)]


def test_what_could_not_be_looked_at_is_looked_at_again(judge, table, clock):
    assert judge.judge([(1, "caches x")], table.cursor) == [LOOK]
    judge.queue_again({"caches"})
    clock.now += trust.LOOK_GAP_SECONDS
    assert judge.judge([], table.cursor) == [LOOK]
