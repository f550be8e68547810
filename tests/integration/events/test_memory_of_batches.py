"""What a batch needs is freed with its last reference: the garbage collector has nothing to do."""

from __future__ import annotations

import gc
from contextlib import contextmanager

import pytest

from events.history.rows import RoomHistory
from events.integrity.repair import check_room
from events.persist.rebuild_visibility import recomputed_ranges
from events.persist.room_cache import StoredRoom
from events.room.state_assignment import RoomStates
from tests.support.made_rooms import ALICE, BOB, public_room
from tests.support.persisted_rooms import incoming, persist, persist_all

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def without_collector():
    gc.collect()
    gc.disable()
    try:
        yield
        left = [
            type(found).__name__
            for found in gc.get_objects()
            if isinstance(found, (StoredRoom, RoomHistory, RoomStates))
        ]
    finally:
        gc.enable()
    assert left == []


@pytest.fixture
def made():
    made = public_room("11", "!freed:a.test")
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    persist_all(made.events)
    return made


def store(*events, **about):
    with without_collector():
        assert persist([incoming(event, **about) for event in events]).refused == []


def test_batches_of_live_events(made):
    store(made.message())
    store(made.member(BOB, "join"), made.message(sender=BOB))
    store(made.redaction(made.events[-1]))


def test_forks_and_their_merge(made):
    base = made.events[-1]
    store(made.member(BOB, "join", prev=[base]), made.topic("a", prev=[base]))
    store(made.message(prev=made.events[-2:]))


def test_a_filled_gap(made):
    base = made.events[-1]
    missing = made.member(BOB, "join")
    above = made.message(sender=BOB)
    store(above, backfilled=True)
    store(missing, backfilled=True)
    store(made.message(prev=[base], sender=ALICE))


def test_a_whole_room(made):
    made.member(BOB, "join")
    store(made.events[-1])
    with without_collector():
        assert recomputed_ranges(made.room_id)
        assert check_room(made.room_id).clean
