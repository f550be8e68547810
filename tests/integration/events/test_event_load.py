"""The load generator's rooms are real: the tables hold what the room function computes from the stored JSON."""

import pytest
from django.db.models import Model

from events.columns import EVENT_COLUMNS
from events.format.parsing import parse_event
from events.format.strict_json import decode_event
from events.models import (
    CurrentState,
    CurrentStateDelta,
    Event,
    EventAuth,
    EventEdge,
    EventJson,
    EventVisibility,
    ForwardExtremity,
    Room,
)
from state.store import full_state
from tests.support.room_results import room_history
from tests.unit.events.history.test_rows import expanded


def rows(model: type[Model], *columns: str, **where: object) -> list[tuple[object, ...]]:
    return sorted(model.objects.filter(**where).values_list(*columns), key=str)


@pytest.fixture
def loaded(run_manage):
    """Twelve events of two threads, in batches of 5."""
    answer = run_manage("append", "events", "--count", "24", "--batch", "5", "--threads", "2")
    assert answer.returncode == 0, answer.stderr
    return sorted(set(Event.objects.values_list("room_id", flat=True)))


def recomputed(room_id):
    """(events, result) from the stored JSON, in stream order."""
    ids = Event.objects.filter(room_id=room_id).order_by("stream_ordering").values_list("event_id", flat=True)
    texts = {row.event_id: bytes(row.json) for row in EventJson.objects.filter(event_id__in=ids)}
    events = [parse_event(texts[event_id], decode_event(texts[event_id]), "11", event_id) for event_id in ids]
    return events, room_history(events)


@pytest.mark.scenario
def test_exactly_the_asked_number_of_events_is_there_each_with_its_own_id(loaded):
    assert Event.objects.count() == 24
    assert len(loaded) == 2


def test_every_table_holds_what_the_room_function_computes(loaded):
    for room_id in loaded:
        events, result = recomputed(room_id)
        ids = [event.event_id for event in events]
        columns = [name for name in EVENT_COLUMNS if name != "state_group"]  # IDs against numbers
        assert sorted((row[:-1] for row in result.events), key=str) == rows(Event, *columns, room_id=room_id)
        assert sorted(result.edges) == rows(EventEdge, "event_id", "prev_event_id", event_id__in=ids)
        assert sorted(result.auth) == rows(EventAuth, "event_id", "auth_event_ids", event_id__in=ids)
        assert [(extremity,) for extremity in result.forward_extremities] == rows(
            ForwardExtremity, "event_id", room_id=room_id
        )
        current = rows(CurrentState, "type", "state_key", "event_id", "membership", room_id=room_id)
        assert sorted(result.current_state, key=str) == current
        assert rows(Room, "creator", "create_event_id", room_id=room_id) == [(result.creator, result.create_event_id)]


def test_state_groups_hold_the_same_states(loaded):
    for room_id in loaded:
        _, result = recomputed(room_id)
        states = expanded(result)
        stored = dict(Event.objects.values_list("event_id", "state_group"))
        for event_id, group in result.event_groups:
            assert full_state(stored[event_id]) == states[group]


def test_positions_of_state_facts_and_visibility_are_those_of_their_events(loaded):
    for room_id in loaded:
        events, result = recomputed(room_id)
        at = dict(Event.objects.filter(room_id=room_id).values_list("event_id", "stream_ordering"))
        position = [at[event.event_id] for event in events]
        deltas = sorted(((position[n], *rest) for n, *rest in result.state_deltas), key=str)
        columns = ("stream_ordering", "type", "state_key", "event_id", "prev_event_id")
        assert deltas == rows(CurrentStateDelta, *columns, room_id=room_id)
        ranges = sorted(((row.user_id, row.kind, position[row.first], row.last) for row in result.visibility), key=str)
        assert ranges == rows(EventVisibility, "user_id", "kind", "first", "last", room_id=room_id)
