"""Rooms that come in shuffled, with gaps, told states and backfill: live, imported, made anew and checked they are the same.

Everything is held against definitions that are worked out from all events: leaves, current state, and who sees what.
"""

from __future__ import annotations

import pytest
from django.db import transaction
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from events.integrity.repair import check_room
from events.models import Event, Room
from events.persist.rebuild_visibility import rebuild_visibility, recomputed_ranges
from events.persist.room_cache import clear_caches
from events.room.state_assignment import RoomStates
from state.rules.room_versions import room_version
from tests.integration.events.test_extremities import iter_growing, with_its_state
from tests.integration.events.test_live_ranges import as_they_came, overlaps
from tests.integration.events.test_next_and_all_rows import rows_of_history, rows_of_tables
from tests.integration.events.test_visible_sql import STRANGER, compare
from tests.properties.test_room_graph import slow_extremities
from tests.support.effort import examples
from tests.support.generated_rooms import USERS, forked_rooms
from tests.support.persisted_rooms import current_state, extremities, incoming, persist, replayed_state
from tests.support.ranges import stored_ranges

pytestmark = pytest.mark.django_db(transaction=True)

QUICK = settings(
    deadline=None,
    max_examples=examples(15),  # each looks at a whole room after each of its events
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking would take an hour, and the rooms are small
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


class Arriving:
    """A made room on its way in: what is here, and the state before each event as another server would tell it."""

    def __init__(self, made):
        self.made = made
        self.has_told = False
        self.states = RoomStates(room_version(made.version), made.events)
        self.states.assign(made.events)

    def with_auth(self, event, **about):
        """The batch of an event and of what its auth chain lacks here: a server asks for that, else resolutions change later."""
        by_id = {made.event_id: made for made in self.made.events}
        chain = dict.fromkeys(event.auth_event_ids)
        for event_id in iter_growing(chain):
            chain.update(dict.fromkeys(by_id[event_id].auth_event_ids))
        here = Event.objects.filter(event_id__in=chain).values_list("event_id", flat=True)
        lacking = chain.keys() - set(here)
        return [*(incoming(by_id[one], outlier=True) for one in chain if one in lacking), incoming(event, **about)]

    def old(self, events):
        """The batch of backfilled events."""
        return [one for event in events for one in self.with_auth(event, backfilled=True)]

    def live(self, event):
        """The batch of a live event: with its state where that is needed."""
        known = Event.objects.filter(event_id__in=event.prev_event_ids, outlier=False, state_unresolved=False)
        if known.count() == len(event.prev_event_ids):
            return self.with_auth(event)
        self.has_told = True
        before = self.states.builder.expand(self.states.before[event.event_id])
        return with_its_state(self.made, event, before)


def assert_extremities(made):
    events = [event for event in as_they_came(made) if event.event_id not in outliers(made)]
    assert set(extremities(made.room_id)) == slow_extremities(events)


def assert_no_extremity_is_lost(made):
    """While events are missing: one whose state was given takes no leaf away through events that lead to another state."""
    events = [event for event in as_they_came(made) if event.event_id not in outliers(made)]
    assert set(extremities(made.room_id)) >= slow_extremities(events)


def outliers(made):
    return set(Event.objects.filter(room_id=made.room_id, outlier=True).values_list("event_id", flat=True))


def assert_all_ways_tell_the_same(made):
    stored, anew = stored_ranges(made.room_id), recomputed_ranges(made.room_id)
    assert list(overlaps(stored)) == []
    assert stored == anew  # with very many leaves they may be laid out otherwise, and tell the same
    report = check_room(made.room_id)
    assert report.clean, report.differences


def assert_the_rule(made):
    for user_id in (*USERS, STRANGER):
        compare(user_id, made.room_id)


def assert_an_import_is_the_same(made, *but):
    """When nothing is missing: the same events in the order of their positions, with the verdicts that they have.

    ``but``: tables that depend on the way in. Gaps of the timeline stay, because clients have synced across them.
    """
    stored, whole = rows_of_tables(made.room_id), rows_of_history(list(as_they_came(made)))
    for table in stored.keys() - {"gaps", *but}:
        assert stored[table] == whole[table], table


@QUICK
@given(data=st.data(), made=forked_rooms(most_events=15, verdicts=False, backfill=False))
def test_rooms_with_gaps_told_states_and_backfill(data, made):
    with transaction.atomic():
        room = Arriving(made)
        events = made.events
        start = min(data.draw(st.integers(6, 10)), len(events))
        assert persist([incoming(event) for event in events[:start]]).refused == []
        left = events[start:]
        missing = []
        while left or missing:
            move = data.draw(st.sampled_from(["live", "live", "leave out", "backfill", "live", "late"]))
            if move == "leave out" and left:
                missing.append(left.pop(0))
                continue
            if missing and (move == "backfill" or not left):
                order = data.draw(st.permutations(missing))
                count = data.draw(st.integers(1, 3))
                batch, missing = order[:count], [event for event in missing if event in order[count:]]
                assert persist(room.old(batch)).refused == []
            elif missing and move == "late":
                assert persist(room.live(missing.pop(0))).refused == []
            elif left:
                event = left.pop(0)
                assert persist(room.live(event)).refused == []
            else:
                continue
            assert_no_extremity_is_lost(made)
            assert current_state(made.room_id) == replayed_state(made.room_id)
            assert_all_ways_tell_the_same(made)
        assert_extremities(made)
        assert_the_rule(made)
        assert not outliers(made) and not Event.objects.filter(room_id=made.room_id, state_unresolved=True).exists()
        # An import knows no given states, so it may see the current state change earlier.
        assert_an_import_is_the_same(made, *(("deltas", "ranges") if room.has_told else ()))
        assert rebuild_visibility(made.room_id)
        assert_the_rule(made)
        transaction.set_rollback(True)
    clear_caches()


@QUICK
@given(data=st.data(), made=forked_rooms(most_events=14, verdicts=False, backfill=False))
def test_rooms_of_old_events_that_live_ones_go_on_with(data, made):
    """Old events come in any order, live ones on top: with the first of those the old leaves are leaves no more."""
    with transaction.atomic():
        room = Arriving(made)
        events = made.events
        old = data.draw(st.integers(5, len(events)))
        order = [events[0], *data.draw(st.permutations(events[1:old]))]
        persist([incoming(events[0], outlier=True)])
        while order:
            count = data.draw(st.integers(1, 4))
            batch, order = order[:count], order[count:]
            assert persist([incoming(event, backfilled=True) for event in batch]).refused == []
            assert_extremities(made)
        for event in events[old:]:
            assert persist(room.live(event)).refused == []
            assert_extremities(made)
            if not Room.objects.get(room_id=made.room_id).visibility_unresolved:
                assert_all_ways_tell_the_same(made)
        assert_the_rule(made)
        if not outliers(made):  # the current state of old events alone was recorded, which an import does not do
            assert_an_import_is_the_same(made, "deltas", *(("ranges",) if room.has_told else ()))
        transaction.set_rollback(True)
    clear_caches()
