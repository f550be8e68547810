"""Events as they are given out, of every stored room, against what the real server gives out."""

import json

import pytest
from msgspec.structs import replace

from events.reading.event_json import load_events
from tests.oracle.answers import parsed
from tests.support.room_data import ROOM_NAMES, oracle
from tests.support.stored_rooms import store_room

pytestmark = pytest.mark.django_db


def matches(event, row, redactions):
    """Of several redactions either may be named; an event whose content was tampered with came pruned, without one."""
    redacted = row["redacted_because"] is not None
    because = event.client_event()["unsigned"].get("redacted_because", {"event_id": None})
    return (
        json.loads(replace(event, pruned=True).federation_json()) == row["pruned"]
        and (event.redacted_by is not None) == redacted
        and because["event_id"] == event.redacted_by
        and (not redacted or redactions[event.redacted_by] == event.event_id)
    )


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_redacted_events_are_the_real_servers_and_all_others_exact(room):
    events = parsed(room)
    store_room(events)
    found = load_events([event.event_id for event in events])
    answers = oracle(room, "redactions")
    redactions = {row["event_id"]: row["redacts"] for row in answers if row["kind"] == "redaction"}
    compared = [matches(found[row["event_id"]], row, redactions) for row in answers if row["kind"] == "event"]
    assert all(compared) and len(compared) > 30
    for event in events:
        given = found[event.event_id]
        assert given.json == event.json
        assert given.redacted_by is not None or given.federation_json() == event.json
