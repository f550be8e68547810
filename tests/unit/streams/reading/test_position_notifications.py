"""What a notification may do: a read of the table, for known streams, and not more often than positions are stored."""

from __future__ import annotations

import pytest

from streams.core import lookup
from streams.reading import position_notifications
from streams.reading.hints import answer_to
from streams.reading.position_notifications import BEHIND_READ_SECONDS, READ_GAP_SECONDS, PositionListener


class Clock:
    """Time as the test makes it."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


class Listener(PositionListener):
    """A listener without a connection."""

    is_behind = False


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(position_notifications, "time", made)
    return made


@pytest.fixture
def listener(clock) -> Listener:
    return Listener(lambda streams: None, "default")


def test_the_name_of_a_stream_is_a_reason_to_read_at_once(listener):
    assert listener.parse([(7, "caches")]) == ["caches"]
    assert listener.due_seconds() is None


@pytest.mark.parametrize(
    "payload", ["", "?a1", answer_to("a1"), "caches north 5", "caches ", "no such stream", "x" * 7_999]
)
def test_everything_else_is_passed_over(listener, payload):
    assert listener.parse([(7, payload)]) == []
    assert listener.due_seconds() is None


def test_a_flood_of_names_causes_one_read_in_each_gap(listener, clock):
    assert listener.parse([(7, "caches")] * 1_000) == ["caches"]
    assert [listener.parse([(7, "caches"), (7, "events")]) for _ in range(1_000)] == [[]] * 1_000
    assert listener.due_seconds() == pytest.approx(READ_GAP_SECONDS)
    clock.now += READ_GAP_SECONDS
    assert listener.due_seconds() == 0.0
    assert listener.parse([]) == ["caches", "events"]
    assert listener.parse([]) == []


def test_while_the_queue_is_long_all_streams_are_read_again_and_again(listener, clock):
    listener.is_behind = True
    assert listener.parse([(7, "x" * 7_999)]) == sorted(lookup.names())
    clock.now += READ_GAP_SECONDS
    assert listener.parse([(7, "x" * 7_999)]) == []
    clock.now += BEHIND_READ_SECONDS
    assert listener.parse([(7, "x" * 7_999)]) == sorted(lookup.names())


def test_what_waited_is_forgotten_when_all_positions_are_about_to_be_read(listener):
    listener.parse([(7, "caches")])
    listener.parse([(7, "events")])
    listener.connected()
    assert listener.due_seconds() is None
