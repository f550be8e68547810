"""The walk through all events of a room, oldest first."""

import pytest

from events.errors import BadToken, InvalidQuery, UnknownRoom
from events.reading import timeline
from events.reading.timeline import topological_walk
from tests.support.made_rooms import MadeRoom
from tests.support.stored_rooms import store_room

pytestmark = pytest.mark.django_db


def ids(events):
    return [event.event_id for event in events]


@pytest.fixture
def fork():
    """A room with a fork of two messages, merged."""
    made = MadeRoom()
    low = made.message()
    left, right = made.message(prev=[low]), made.message(prev=[low])
    made.message(prev=[left, right])
    store_room(made.events)
    return made


def test_walk_gives_every_event_in_topological_order(fork):
    soft = MadeRoom(room_id="!soft:a.test")
    soft.message(soft_failed=True)
    soft.message(rejected_reason="no")
    soft.message(outlier=True)
    store_room(soft.events, first_position=100)
    assert ids(topological_walk(fork.room_id)) == ids(fork.events)
    assert ids(topological_walk(soft.room_id)) == ids(soft.events[:3])


def test_walk_goes_on_where_it_was_left(fork, monkeypatch):
    monkeypatch.setattr(timeline, "_WALKED_AT_ONCE", 2)
    whole = list(topological_walk(fork.room_id))
    assert ids(whole) == ids(fork.events)
    assert ids(topological_walk(fork.room_id, after=whole[2].token)) == ids(fork.events[3:])


@pytest.mark.parametrize("room_id", ["!gone:a", "", "!a\0b", "\ud800"])
def test_unknown_rooms_are_named(room_id):
    with pytest.raises(UnknownRoom):
        topological_walk(room_id)


def test_unusable_questions_are_refused(fork):
    with pytest.raises(InvalidQuery):
        topological_walk(5)
    with pytest.raises(BadToken):
        topological_walk(fork.room_id, after="x")
