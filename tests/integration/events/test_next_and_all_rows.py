"""``next_rows`` and ``RoomHistory`` agree: what batches add up to, in every table, is what all events give at once.

Batches have any size, and their events come shuffled. Positions and state groups are compared by what they stand for.
"""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from django.db import transaction
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from events.columns import EVENT_COLUMNS
from events.integrity.repair import check_room
from events.maintenance.purge_batch import PurgeRequest
from events.models import (
    CurrentState,
    CurrentStateDelta,
    Event,
    EventAuth,
    EventEdge,
    Room,
    TimelineGap,
)
from events.operations.purge_history import purge_events
from events.persist.room_cache import clear_caches
from events.visibility.ranges import BEFORE_LIVE
from state.store import full_state
from tests.oracle.test_live_path import SMALL_ROOMS, arriving
from tests.support.effort import examples
from tests.support.generated_rooms import forked_rooms
from tests.support.persisted_rooms import current_state, extremities, gaps, incoming, persist, verdicts
from tests.support.ranges import stored_ranges
from tests.support.room_results import room_history

pytestmark = pytest.mark.django_db(transaction=True)

QUICK = settings(
    deadline=None,
    max_examples=examples(20),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking would take an hour, and the rooms are small
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
_GROUP = EVENT_COLUMNS.index("state_group")


@contextmanager
def rolled_back():
    with transaction.atomic():
        yield
        transaction.set_rollback(True)
    clear_caches()


def persist_in_batches(data, events, most):
    """Stores the events in batches of drawn sizes. The events of a batch come in any order."""
    left = list(events)
    while left:
        count = data.draw(st.integers(1, most), label="batch")
        batch, left = left[:count], left[count:]
        order = data.draw(st.randoms(use_true_random=False), label="order")
        order.shuffle(batch)
        assert persist([incoming(event) for event in batch]).refused == []


def rows_of_tables(room_id):
    """All rows of a stored room. Positions are event IDs, and state groups are states."""
    at = dict(Event.objects.filter(room_id=room_id).values_list("stream_ordering", "event_id"))
    events = Event.objects.filter(room_id=room_id)
    ids = list(events.values_list("event_id", flat=True))
    return {
        "room": Room.objects.values_list(
            "room_version", "creator", "create_event_id", "current_state_unresolved", "visibility_unresolved"
        ).get(pk=room_id),
        "events": {
            row[0]: (*row[:_GROUP], None if row[_GROUP] is None else dict(full_state(row[_GROUP])), *row[_GROUP + 1 :])
            for row in events.values_list(*EVENT_COLUMNS)
        },
        "edges": sorted(EventEdge.objects.filter(event_id__in=ids).values_list("event_id", "prev_event_id")),
        "auth": dict(EventAuth.objects.filter(event_id__in=ids).values_list("event_id", "auth_event_ids")),
        "forward": extremities(room_id),
        "backward": gaps(room_id),
        "gaps": sorted(
            at[place] for place in TimelineGap.objects.filter(room_id=room_id).values_list("stream_ordering", flat=True)
        ),
        "current": sorted(
            CurrentState.objects.filter(room_id=room_id).values_list("type", "state_key", "event_id", "membership")
        ),
        "deltas": sorted(
            (at.get(place, ""), *rest)  # a change without a live event has a position of its own
            for place, *rest in CurrentStateDelta.objects.filter(room_id=room_id).values_list(
                "stream_ordering", "type", "state_key", "event_id", "prev_event_id"
            )
        ),
        "ranges": sorted(
            (
                (row.user_id, row.kind, at[row.first] if row.first else "", None if row.last is None else at[row.last])
                for row in stored_ranges(room_id)
            ),
            key=str,
        ),
    }


def rows_of_history(events):
    """The same of the rows that a whole history gives, of events that come without verdicts."""
    result = room_history(events)
    ids = [event.event_id for event in events]
    states = {}
    for group, prev, *_ in result.groups:
        changes = {(kind, key): event for _, number, kind, key, event in result.group_deltas if number == group}
        whole = {**(states[prev] if prev is not None else {}), **changes}
        states[group] = {key: event_id for key, event_id in whole.items() if event_id is not None}
    return {
        "room": (
            result.room_version,
            result.creator,
            result.create_event_id,
            result.current_state_unresolved,
            result.visibility_unresolved,
        ),
        "events": {
            row[0]: (*row[:_GROUP], None if row[_GROUP] is None else states[row[_GROUP]], *row[_GROUP + 1 :])
            for row in result.events
        },
        "edges": sorted(result.edges),
        "auth": dict(result.auth),
        "forward": sorted(result.forward_extremities),
        "backward": sorted(result.backward_extremities),
        "gaps": sorted(ids[number] for number in result.timeline_gaps),
        "current": sorted(result.current_state),
        "deltas": sorted((ids[number], *rest) for number, *rest in result.state_deltas),
        "ranges": sorted(
            (
                (
                    row.user_id,
                    row.kind,
                    "" if row.first == BEFORE_LIVE else ids[row.first],
                    None if row.last is None else ids[row.last],
                )
                for row in result.visibility
            ),
            key=str,
        ),
    }


def assert_same_rows(events):
    """The events in the order of their positions, once more without what is known of them."""
    room_id, by_id = events[0].room_id, {event.event_id: event for event in events}
    order = Event.objects.filter(room_id=room_id).order_by("stream_ordering").values_list("event_id", flat=True)
    stored, whole = rows_of_tables(room_id), rows_of_history([by_id[event_id] for event_id in order])
    for table, rows in stored.items():
        assert rows == whole[table], table


@QUICK
@given(data=st.data(), made=forked_rooms(verdicts=False, backfill=False))
def test_generated_rooms(data, made):
    with rolled_back():
        persist_in_batches(data, made.events, 8)
        assert_same_rows(made.events)


@QUICK
@given(data=st.data(), room=st.sampled_from(SMALL_ROOMS))
def test_shipped_rooms(data, room):
    events = [replace(event, stream_ordering=None) for event in arriving(room)]
    with rolled_back():
        persist_in_batches(data, events, 60)
        assert_same_rows(events)


@QUICK
@given(data=st.data(), made=forked_rooms(verdicts=False, backfill=False))
def test_purged_parts_change_nothing_of_what_comes_next(data, made):
    """A room whose history below its latest events was purged goes on like one that has all of it."""
    latest = data.draw(st.integers(6, len(made.events)), label="events before the purge")
    batch = data.draw(st.integers(1, 6), label="batch")
    whole = rows_after_purge(made, latest, batch, purged=False)
    assert rows_after_purge(made, latest, batch, purged=True) == whole


def rows_after_purge(made, latest, batch, *, purged):
    """The rows of the events after the first ``latest`` ones, and of the room."""
    with rolled_back():
        before, after = made.events[:latest], made.events[latest:]
        persist([incoming(event) for event in before])
        if purged:
            # Later events build on one of the last four. A purged forward extremity would be one no more.
            kept = {event.event_id for event in before[-4:]} | set(extremities(made.room_id))
            cut = min(event.depth for event in before if event.event_id in kept)
            for _ in purge_events(PurgeRequest(made.room_id, cut, True, "default")):
                pass
        for first in range(0, len(after), batch):
            assert persist([incoming(event) for event in after[first : first + batch]]).refused == []
        report = check_room(made.room_id)
        assert report.clean, report.differences
        return rows_above(made.room_id, [event.event_id for event in after])


def rows_above(room_id, ids):
    number = {event_id: place for place, event_id in enumerate(ids)}
    places = dict(Event.objects.filter(event_id__in=ids).values_list("stream_ordering", "event_id"))
    least = min(places, default=0)

    def clipped(row):
        first = -1 if row.first < least else number[places[row.first]]
        return row.user_id, row.kind, first, None if row.last is None else number[places[row.last]]

    ranges = [row for row in stored_ranges(room_id) if places and (row.last is None or row.last >= least)]
    groups = dict(Event.objects.filter(event_id__in=ids).values_list("event_id", "state_group"))
    return {
        "verdicts": {event_id: found for event_id, found in verdicts(room_id).items() if event_id in number},
        "states": {event_id: None if group is None else dict(full_state(group)) for event_id, group in groups.items()},
        "forward": extremities(room_id),
        "current": current_state(room_id),
        "ranges": sorted(map(clipped, ranges), key=str),
    }
