"""A fork of the state costs as much in a room of 1,000 members as in one of 20: nothing goes through the entries of the state."""

from __future__ import annotations

import pytest
from django.db import connection

from events.integrity.repair import check_room
from events.models import Event
from events.persist import room_cache
from events.reading.timeline import state_at
from events.room import state_assignment
from state.groups import deltas
from state.groups.deltas import HOPS_LIMIT
from state.models import StateGroup, StateGroupDelta
from state.store import changes_from, full_state
from tests.support.made_rooms import ALICE, BOB, MadeRoom, public_room
from tests.support.persisted_rooms import current_state, persist_all, replayed_state
from tests.support.queries import is_asked

pytestmark = pytest.mark.django_db(transaction=True)


def filled(members: int) -> MadeRoom:
    made = public_room("11", f"!with-{members}:a.test")
    made.member(BOB, "join")
    for number in range(members):
        made.member(f"@user-{number}:a.test", "join")
    persist_all(made.events, 500)
    return made


def fork(made: MadeRoom) -> list:
    """Two branches: an invited member joins, and the topic is set twice; their merge."""
    base = made.events[-1]
    invite = made.member("@late:a.test", "invite", prev=[base], sender=ALICE)
    one = made.member("@late:a.test", "join", prev=[invite])
    other = made.topic("b", prev=[made.topic("a", prev=[base])])
    return [*made.events[made.events.index(base) + 1 :], made.message(prev=[one, other])]


def costs(made: MadeRoom, monkeypatch, cold: bool) -> dict[str, int]:
    found = {"events": 0, "queries": 0, "copies": 0, "full": 0, "states": 0}

    def counting(name, real, weigh=lambda *_: 1):
        def counted(*arguments, **named):
            found[name] += weigh(*arguments)
            return real(*arguments, **named)

        return counted

    events = fork(made)
    with monkeypatch.context() as patch:
        patch.setattr(
            room_cache, "parsed_events", counting("events", room_cache.parsed_events, lambda ids, *_: len(ids))
        )
        patch.setattr(deltas, "whole", counting("copies", deltas.whole))
        patch.setattr(state_assignment, "resolve", counting("full", state_assignment.resolve))
        patch.setattr(room_cache, "full_state", counting("states", room_cache.full_state))
        if cold:
            room_cache.clear_caches()
        with connection.execute_wrapper(lambda execute, *rest: counting("queries", execute, is_asked)(*rest)):
            persist_all(events)
    assert current_state(made.room_id) == replayed_state(made.room_id)
    assert state_at(events[-1].event_id).after == current_state(made.room_id)
    return found


@pytest.mark.parametrize(("cold", "most_read_whole"), [(False, 0), (True, 0), (True, 10_000)])
def test_a_fork_and_its_merge_cost_the_same_in_a_large_room(monkeypatch, cold, most_read_whole):
    monkeypatch.setattr(room_cache, "_MOST_READ_WHOLE", most_read_whole)
    costs(filled(10), monkeypatch, cold)  # what a process does once
    small = costs(filled(20), monkeypatch, cold)
    large = costs(filled(1_000), monkeypatch, cold)
    assert large == small
    assert large["copies"] == large["full"] == 0
    assert large["states"] == (1 if most_read_whole else 0)
    assert large["events"] < 20


def test_storing_in_a_large_room_reads_no_state_whole(monkeypatch):
    monkeypatch.setattr(room_cache, "_MOST_READ_WHOLE", 100)
    made = filled(300)
    base = made.events[-1]
    made.state("m.room.history_visibility", "", {"history_visibility": "invited"})
    made.member("@new:a.test", "invite", sender=ALICE)
    made.member("@new:a.test", "join")
    made.member("@user-7:a.test", "leave")
    made.message(sender="@user-8:a.test")
    banned = made.member("@user-8:a.test", "ban", prev=[base], sender=ALICE)
    levels = {"users": {ALICE: 100, BOB: 50}}
    raised = made.state("m.room.power_levels", "", levels, prev=[base])
    made.message(prev=[made.events[-3], banned, raised])
    read = []
    monkeypatch.setattr(room_cache, "full_state", read.append)
    for event in made.events[made.events.index(base) + 1 :]:
        room_cache.clear_caches()
        persist_all([event])
    assert read == []
    monkeypatch.undo()
    assert current_state(made.room_id) == replayed_state(made.room_id)
    assert check_room(made.room_id).clean


def test_events_that_name_others_are_found_by_the_index():
    made = filled(300)
    sought = [made.events[1].event_id, made.events[-1].event_id]

    def scans():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_force_next_flush()")
            cursor.execute("SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'events_eventauth'")
            (by_table,) = cursor.fetchone()
            cursor.execute("SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'events_eventauth_named'")
            return by_table, cursor.fetchone()[0]

    with connection.cursor() as cursor:
        cursor.execute("ANALYZE events_eventauth")
        by_table, by_index = scans()
        cursor.execute(room_cache._NAMING, [sought])
        named = [row[0] for row in cursor.fetchall()]
    assert named.count(sought[0]) > 1 and named.count(sought[1]) == 0
    assert scans() == (by_table, by_index + 2)


def test_states_are_read_as_differences_to_one_that_is_known():
    made = filled(20)
    persist_all(fork(made))
    made.topic("later")
    persist_all([made.events[-1]])
    groups = sorted(set(Event.objects.exclude(state_group=None).values_list("state_group", flat=True)))
    for known in groups[::5]:
        state = full_state(known)
        found = changes_from(known, [group for group in groups if group != known])
        assert found.keys() == set(groups) - {known}
        for group, changes in found.items():
            derived = {key: event_id for key, event_id in {**state, **changes}.items() if event_id is not None}
            assert derived == full_state(group)
    assert changes_from(groups[-1] + 1_000, groups[:2]) == {}


def test_branches_of_branches_store_what_differs(monkeypatch):
    """A group may be read by twenty chains at most. Whoever sends branches of branches has no state stored in full."""
    made = filled(300)
    for number in range(2 * HOPS_LIMIT + 5):
        base = made.events[-1]
        made.state("m.room.test", f"{number}", {}, prev=[base])
        made.state("m.room.test", f"{number} b", {}, prev=[base])
    before = StateGroupDelta.objects.count()
    for event in made.events[-2 * (2 * HOPS_LIMIT + 5) :]:
        room_cache.clear_caches()
        persist_all([event])
    assert current_state(made.room_id) == replayed_state(made.room_id)
    groups = StateGroup.objects.filter(room_id=made.room_id)
    assert max(groups.values_list("hops", flat=True)) == HOPS_LIMIT
    assert groups.filter(prev_group=None).count() == 1
    assert StateGroupDelta.objects.count() - before < 300
    assert check_room(made.room_id).clean


@pytest.mark.parametrize("most_read_whole", [0, 1_000])
def test_many_forks_are_resolved_and_share_their_states(monkeypatch, most_read_whole):
    made = filled(300)
    base, count = made.events[-1], 60
    forks = [made.state("m.room.test", str(number), {}, prev=[base]) for number in range(count)]
    persist_all(forks[:-1])
    room_cache.clear_caches()
    read, real = [], room_cache.full_state
    monkeypatch.setattr(room_cache, "full_state", lambda *group: read.append(group) or real(*group))
    monkeypatch.setattr(room_cache, "_MOST_READ_WHOLE", most_read_whole)
    persist_all(forks[-1:])
    assert len(read) == (1 if most_read_whole else 0)
    assert current_state(made.room_id) == replayed_state(made.room_id)
    assert len([key for key in current_state(made.room_id) if key[0] == "m.room.test"]) == count
    assert check_room(made.room_id).clean
