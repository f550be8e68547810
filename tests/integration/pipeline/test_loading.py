"""Several loaders: all rooms are loaded once, while others are worked out and after, whatever fails."""

from __future__ import annotations

import threading
from itertools import chain

import pytest

from pipeline.importing import loaders as loading
from pipeline.importing.load_rooms import LoadedRoom
from pipeline.importing.loaders import LoaderThreads, ReadyRooms
from tests.support.waiting import wait_until

ROOMS = [LoadedRoom(number, f"!{number}", 1, 0) for number in range(20)]


@pytest.fixture
def promoted(monkeypatch):
    """Rooms that were given to ``load_batch``, which only notes them here; room 13 is lost to somebody else."""
    done = []

    def load_batch(job, rooms, using):
        done.append([room.room_no for room in rooms])
        return {room.room_id for room in rooms if room.room_no == 13}

    monkeypatch.setattr(loading, "load_batch", load_batch)
    return done


def load_all(rooms, loaders=2, events=1):
    ready = ReadyRooms(lambda: rooms, events)
    with LoaderThreads(1, ready, "default", loaders) as at_work:
        at_work.begin()
        ready.finish()
        yield from at_work.loaded()


def loaders_at_work():
    return [thread for thread in threading.enumerate() if thread.name.startswith("loader")]


@pytest.mark.parametrize("loaders", [1, 2, 3])
def test_every_room_is_loaded_once(promoted, loaders):
    found = list(load_all(ROOMS, loaders))
    assert sorted(chain(*promoted)) == list(range(20))
    assert sorted(room.room_no for loaded in found for room in loaded.rooms) == list(range(20))
    assert set().union(*(loaded.lost for loaded in found)) == {"!13"}


def test_rooms_that_are_ready_are_loaded_while_others_are_worked_out(promoted):
    there = ROOMS[:3]
    ready = ReadyRooms(lambda: there, events=3)
    with LoaderThreads(1, ready, "default", 1) as at_work:
        at_work.begin()
        wait_until(lambda: at_work.events == 3)
        there = ROOMS[:5]
        ready.finish()
        assert [len(loaded.rooms) for loaded in at_work.loaded()] == [3, 2]
    assert promoted == [[0, 1, 2], [3, 4]]


def test_a_batch_waits_to_be_whole_until_all_is_worked_out():
    ready = ReadyRooms(lambda: ROOMS[:2], events=3)
    assert ready.take() == []
    ready.finish()
    assert (ready.take(), ready.take()) == (ROOMS[:2], None)


def test_rooms_are_handed_out_in_their_order_whatever_order_they_become_ready_in():
    there = [ROOMS[4], ROOMS[1]]
    ready = ReadyRooms(lambda: there, events=2)
    assert ready.take() == [ROOMS[1], ROOMS[4]]
    there = [ROOMS[4], ROOMS[1], ROOMS[3], ROOMS[0]]  # not committed yet, but handed out
    ready.finish()
    assert (ready.take(), ready.take()) == ([ROOMS[0], ROOMS[3]], None)


def test_the_first_error_is_raised_and_no_loader_goes_on(monkeypatch):
    begun = []

    def load_batch(job, rooms, using):
        begun.append(rooms[0].room_no)
        raise RuntimeError("disk full")

    monkeypatch.setattr(loading, "load_batch", load_batch)
    with pytest.raises(RuntimeError, match="disk full"):
        list(load_all(ROOMS))
    assert len(begun) <= 2 and not loaders_at_work()


def test_whoever_ends_early_ends_the_loaders(promoted):
    with LoaderThreads(1, ReadyRooms(lambda: ROOMS[:1], events=3), "default", 2) as at_work:
        at_work.begin()
        assert len(loaders_at_work()) == 2
    assert not loaders_at_work() and not promoted


def test_there_are_as_many_loaders_as_cores_and_not_too_many():
    assert 1 <= loading.default_loaders() <= loading.MOST_LOADERS
