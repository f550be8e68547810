"""``manage.py resolve_rooms``: what is left above a filled gap gets its state; what a gap still hides is told."""

import io
import json

import pytest
from django.core.management import CommandError, call_command

from events.errors import UnknownRoom
from events.models import Event
from events.persist.gap_filling import resolve_room
from events.reading.timeline import state_at
from tests.integration.events.test_gap_filling import backfill, closed_room, unresolved
from tests.integration.events.test_given_states import told
from tests.support.persisted_rooms import persist, persist_all

pytestmark = pytest.mark.django_db


@pytest.fixture
def half_filled(monkeypatch):
    """A room whose gap was filled while at most two events are resolved at once: five are left."""
    monkeypatch.setattr("events.persist.next_rows.MOST_FILLED", 2)
    made = closed_room()
    persist_all(made.events, 100)
    gap = [made.message() for _ in range(8)]
    persist(told(made, made.message()))
    backfill(*gap[1:])
    backfill(gap[0])
    assert len(unresolved(made)) == 5
    return made


def run(*rooms):
    out = io.StringIO()
    call_command("resolve_rooms", *rooms, json=True, stdout=out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_all_rooms_that_need_it(half_filled):
    assert run() == [{"room_id": half_filled.room_id, "resolved": 5, "left": 0}]
    assert unresolved(half_filled) == set() and run() == []
    for event in half_filled.events:
        assert state_at(event.event_id).after == half_filled.state_after(event.event_id)


def test_named_rooms_are_resolved_once(half_filled):
    assert run(half_filled.room_id) == [{"room_id": half_filled.room_id, "resolved": 5, "left": 0}]
    assert run(half_filled.room_id) == [{"room_id": half_filled.room_id, "resolved": 0, "left": 0}]


def test_what_a_gap_still_hides_is_told_and_the_status_is_one():
    made = closed_room()
    persist_all(made.events, 100)
    made.message()
    above = made.message()
    backfill(above)
    with pytest.raises(CommandError, match="1 events still lie above gaps") as error:
        run()
    assert error.value.returncode == 1


@pytest.mark.parametrize("room_id", ["!nowhere:a", "a\0b"])
def test_rooms_that_are_not_here(room_id):
    with pytest.raises(CommandError) as error:
        run(room_id)
    assert error.value.returncode == 2


def test_unknown_room_is_refused_and_nothing_stored():
    with pytest.raises(UnknownRoom):
        resolve_room("!nowhere:a")
    assert not Event.objects.exists()
