"""Frames of the shipped rooms: their places are those of the source, and they are the same however the rooms are packed."""

from __future__ import annotations

import pytest

from pipeline import ROOM_FRAMES, SET_ASIDE, read_events, work_out_rooms
from pipeline.frames import work_out_rooms as module
from tests.pipeline.frames import rows_of
from tests.pipeline.imports import ALL_ROOMS, SMALL_ROOMS

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture(scope="module")
def whole(spark):
    """The frames of all shipped rooms. That an import stores the same rows: ``test_load``."""
    worked_out = work_out_rooms(read_events(spark, ALL_ROOMS).events).persist()
    yield worked_out
    worked_out.unpersist()


def test_positions_and_places_are_those_of_the_source(whole, spark):
    source = read_events(spark, ALL_ROOMS).events
    columns = ("room_id", "event_id", "source", "line", "stream_ordering")
    assert rows_of(whole.events, *columns) == rows_of(source, *columns)
    at = dict(rows_of(source, "event_id", "stream_ordering"))
    numbers = {
        (room, number): event_id for room, number, event_id in rows_of(whole.events, "room_id", "number", "event_id")
    }
    for room, number, given in rows_of(whole.current_state_deltas, "room_id", "number", "stream_ordering"):
        assert given == at[numbers[room, number]]
    for room, *ends in rows_of(whole.visibility, "room_id", "first_number", "last_number", "first", "last"):
        assert [at[numbers[room, n]] if n is not None else None for n in ends[:2]] == ends[2:]


def test_nothing_is_set_aside_of_rooms_that_are_whole(whole):
    for name, schema in ROOM_FRAMES.items():
        assert getattr(whole, name).schema == schema.spark()
    assert whole.set_aside.count() == 0 and whole.set_aside.schema == SET_ASIDE.spark()


def test_large_rooms_are_packs_of_their_own_the_largest_first(spark, monkeypatch):
    """That their rows are those of other packs: ``test_load``, which has packs of another size than an import."""
    monkeypatch.setattr(module, "EVENTS_PER_PACK", 250)
    packed = work_out_rooms(read_events(spark, SMALL_ROOMS).events).persist()
    sizes = sorted((-events, room) for room, events in rows_of(packed.events.groupBy("room_id").count()))
    large = [room for events, room in sizes if -events > 250]
    assert len(large) >= 2
    found = packed.bundles.rdd.mapPartitionsWithIndex(
        lambda at, rows: [(at, sorted({row.pack for row in rows}))]
    ).collect()
    assert [packs for _, packs in found] == [[at] if at < len(large) else packs for at, packs in found]
    assert all(packs in ([], [at]) for at, packs in found) and len(found) > len(large)
    packed.unpersist()
