"""Several loaders: all batches are in once, whatever fails."""

from __future__ import annotations

import threading

import pytest

from pipeline import loading
from pipeline.promotion import LoadedRoom

BATCHES = [[LoadedRoom(number, f"!{number}", 1, 0)] for number in range(20)]


@pytest.fixture
def promoted(monkeypatch):
    """Batches that were given to ``promote``, which only notes them here; room 13 is lost to somebody else."""
    done = []

    def promote(job, rooms, using):
        done.append((threading.current_thread().name, [room.room_no for room in rooms]))
        return {room.room_id for room in rooms if room.room_no == 13}

    monkeypatch.setattr(loading, "promote", promote)
    return done


@pytest.mark.parametrize("loaders", [1, 2, 3])
def test_every_batch_is_loaded_once(promoted, loaders):
    found = list(loading.load_batches(1, BATCHES, "default", loaders))
    assert sorted(number for _, numbers in promoted for number in numbers) == list(range(20))
    assert sorted(room.room_no for loaded in found for room in loaded.rooms) == list(range(20))
    assert set().union(*(loaded.lost for loaded in found)) == {"!13"}


def test_one_batch_takes_no_thread(promoted):
    list(loading.load_batches(1, BATCHES[:1], "default", 4))
    assert promoted == [(threading.main_thread().name, [0])]


def test_the_first_error_is_raised_and_no_loader_goes_on(monkeypatch):
    begun = []

    def promote(job, rooms, using):
        begun.append(rooms[0].room_no)
        raise RuntimeError("disk full")

    monkeypatch.setattr(loading, "promote", promote)
    with pytest.raises(RuntimeError, match="disk full"):
        list(loading.load_batches(1, BATCHES, "default", 2))
    assert len(begun) <= 2
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("loader")]


def test_whoever_stops_asking_stops_the_loaders(promoted):
    for _ in loading.load_batches(1, BATCHES, "default", 2):
        break
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("loader")]


def test_there_are_as_many_loaders_as_cores_and_not_too_many():
    assert 1 <= loading.usual_loaders() <= loading.MOST_LOADERS
