"""Rooms as ``persist`` and an import write them have no difference from what the rules make of their JSON."""

import random

import pytest
from django.db import connection

from events.integrity.compare import compare
from events.integrity.repair import resync_room
from events.integrity.stored_rows import read_room
from events.maintenance.group_gc import GroupPurge, plan_groups
from tests.integration.events.test_gap_filling import backfill, with_gap
from tests.integration.events.test_live_is_bulk import arrive_with_gaps, generated, states_of
from tests.oracle.answers import parsed
from tests.oracle.test_live_path import SMALL_ROOMS, arriving
from tests.support.effort import examples
from tests.support.made_rooms import public_room
from tests.support.persisted_rooms import incoming, persist, persist_all, purge_half
from tests.support.ranges import stored_ranges
from tests.support.stored_rooms import store_room

pytestmark = pytest.mark.django_db


def found(room_id):
    with connection.cursor() as cursor:
        report = compare(read_room(cursor, room_id))
    assert [one.as_json() for one in report.differences[:9]] == []
    return report.totals, report.differences[:5], report.doubts[:5]


@pytest.mark.parametrize("room", SMALL_ROOMS)
def test_shipped_room_in_one_piece_is_clean(room):
    events = parsed(room, told=False)
    store_room(events)
    assert found(events[0].room_id) == ({}, [], [])


@pytest.mark.parametrize("room", SMALL_ROOMS)
def test_shipped_room_live_is_clean(room):
    events = arriving(room)
    persist_all(events, 30)
    assert found(events[0].room_id) == ({}, [], [])


@pytest.mark.parametrize("seed", range(examples(14)))
def test_generated_room_is_clean(seed):
    made = generated(seed)
    persist_all(made.events, [1, 4, 15, 100][seed % 4])
    assert found(made.room_id) == ({}, [], [])


@pytest.mark.parametrize("seed", range(20, 20 + examples(8)))
def test_generated_room_with_gaps_is_clean_while_they_are_filled(seed):
    made, choose = generated(seed, 50, allowed_only=True), random.Random(seed)
    left_out = arrive_with_gaps(made, states_of(made), choose)
    assert found(made.room_id) == ({}, [], [])
    choose.shuffle(left_out)
    while left_out:
        batch, left_out = left_out[:4], left_out[4:]
        persist([incoming(event, backfilled=True) for event in batch])
        assert found(made.room_id) == ({}, [], [])


def test_room_with_a_gap_is_clean():
    made, gap, _ = with_gap()
    backfill(gap[3])
    assert found(made.room_id) == ({}, [], [])


@pytest.mark.parametrize("number", [1, 4])
def test_a_room_of_outliers_only_is_clean(number):
    """Any server can give events of a room that nobody here has joined, as a part of some state."""
    made = public_room()
    persist([incoming(event, outlier=True) for event in made.events[:number]])
    assert found(made.room_id) == ({}, [], [])


@pytest.mark.scenario
def test_large_room_is_clean():
    events = parsed("large_v10", told=False)
    store_room(events)
    assert found(events[0].room_id) == ({}, [], [])


@pytest.mark.parametrize("room", ["v10_visibility_walk", "v11_fork_walk", "v10_gap"])
def test_purged_room_is_clean(room):
    events = arriving(room)
    persist_all(events, 30)
    room_id = events[0].room_id
    purge_half(room_id)
    for _ in GroupPurge(room_id, "default", plan_groups(room_id, "default")).carry_out():
        pass
    before = stored_ranges(room_id)
    report = resync_room(room_id, "visibility").after
    assert (report.totals, report.differences) == ({}, []) and stored_ranges(room_id) == before
    assert set(report.doubts) <= {"who sees what differs, but it follows from events that were purged"}
