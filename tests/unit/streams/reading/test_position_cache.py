"""Positions as notifications tell them: taken over when they say all, looked up when they do not."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from streams.reading.position_cache import PositionCache
from streams.reading.position_notifications import PositionNotification
from streams.reading.rows import StoredPosition

THEN = datetime(2026, 1, 1, tzinfo=UTC)


def row(writer: str, position: int, state: str = "active", stream: str = "caches") -> StoredPosition:
    return StoredPosition(stream, writer, position, state, THEN, THEN, 0, None, None)


@pytest.fixture
def heard() -> PositionCache:
    known = PositionCache()
    known.looked(
        {"caches": {"north": row("north", 5), "south": row("south", 7), "gone": row("gone", 3, "retired")}}, None
    )
    return known


def positions(heard: PositionCache, stream: str = "caches") -> dict[str, int]:
    return {writer: stored.position for writer, stored in heard.of([stream])[stream].items()}


def test_a_known_writers_position_is_taken_from_the_poke(heard):
    assert heard.hear([PositionNotification("caches", "north", 6), PositionNotification("caches", "north", 9)]) == set()
    assert positions(heard) == {"north": 9, "south": 7, "gone": 3}


def test_a_poke_that_tells_nothing_new_is_no_reason_to_look(heard):
    assert heard.hear([PositionNotification("caches", "south", 7)]) == set()
    assert positions(heard)["south"] == 7


@pytest.mark.parametrize(
    "notification",
    [
        PositionNotification("caches", "north", None),
        PositionNotification("caches", "newcomer", 9),
        PositionNotification("caches", "gone", 9),
        PositionNotification("caches", "south", 1),
        PositionNotification("events", "north", 9),
    ],
    ids=["the set of writers changed", "unknown", "comes back", "began anew", "stream not seen yet"],
)
def test_what_a_poke_does_not_tell_is_looked_up(heard, notification):
    before = positions(heard)
    assert heard.hear([notification, PositionNotification("caches", "north", 5)]) == {notification.stream}
    assert positions(heard) == before


def test_a_look_at_some_streams_leaves_the_others(heard):
    heard.looked({"events": {"north": row("north", 2, stream="events")}}, {"events", "empty"})
    assert positions(heard, "events") == {"north": 2}
    assert positions(heard, "empty") == {}
    assert positions(heard)["north"] == 5


def test_a_look_at_all_forgets_what_is_gone(heard):
    heard.looked({"caches": {"south": row("south", 8)}}, None)
    assert positions(heard) == {"south": 8}


def test_what_was_handed_out_does_not_change_later(heard):
    handed = dict(heard.of(["caches"])["caches"])
    heard.hear([PositionNotification("caches", "north", 50)])
    assert handed["north"].position == 5
