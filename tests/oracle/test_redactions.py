"""Every recorded answer about redactions: which event redacts which, and what is left, by the live path and by import.

The same persisted rooms hold that what is stored is what came in, to the byte, and that every signature still verifies.
"""

import json

import pytest
from msgspec.structs import replace

from events.columns import EVENT_COLUMNS
from events.models import EventJson
from events.reading.event_json import load_events
from state.rules.room_versions import room_version
from tests.oracle.answers import history, parsed
from tests.oracle.test_live_path import arriving
from tests.support.persisted_rooms import persist_all
from tests.support.room_data import ROOM_NAMES, ROOMS, oracle
from tests.support.signed_events import event_is_signed
from tests.support.stored_rooms import store_room

KEYS = json.loads((ROOMS / "server_keys.json").read_bytes())


def answers(room):
    """The real server's answers by event."""
    return {row["event_id"]: row for row in oracle(room, "redactions") if row["kind"] == "event"}


def verified(texts):
    """Which signatures verify: (event, server) of a mapping from event ID to (JSON text, room version)."""
    found = set()
    for event_id, (text, version) in texts.items():
        event = json.loads(text)
        for server in event["signatures"]:
            if event_is_signed(event, room_version(version), server, KEYS.get(server, {})):
                found.add((event_id, server))
    return found


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_import_flags_what_the_real_server_serves_redacted(room):
    at = EVENT_COLUMNS.index("redacted_by")
    flagged = {row[0]: row[at] for row in history(room).events}
    theirs = {event_id: because(answer) for event_id, answer in answers(room).items()}
    assert {event_id: flagged[event_id] for event_id in theirs} == theirs


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("room", ROOM_NAMES)
def test_what_is_stored_verifies_and_is_served_as_the_real_server_serves_it(room):
    given = {event.event_id: event for event in parsed(room, told=True)}
    store(room, given)
    texts = {event_id: (event.json, event.room_version) for event_id, event in given.items()}
    stored = {row.event_id: (bytes(row.json), row.room_version) for row in EventJson.objects.all()}
    assert stored == texts
    assert verified(stored) == verified(texts) >= {(e, event.sender.partition(":")[2]) for e, event in given.items()}
    served = load_events(list(given))
    for event_id, answer in answers(room).items():
        assert_served(served[event_id], answer)


def store(room, given):
    """By the live path; the large room, which takes it a minute, as an import stores it."""
    if room == "large_v10":
        store_room(list(given.values()))
    else:
        persist_all([replace(event, json=given[event.event_id].json) for event in arriving(room)], 100)


def assert_served(event, answer):
    assert event.redacted_by == because(answer)
    if not answer["redacted"]:
        assert event.federation_json() == event.json
        return
    pruned = json.loads(event.federation_json())
    pruned.pop("unsigned", None)
    assert pruned == answer["pruned"]
    client = event.client_event()
    assert client["content"] == pruned["content"]
    redaction = client["unsigned"].get("redacted_because", {})
    assert redaction.get("event_id") == client["unsigned"].get("redacted_by") == because(answer)


def because(answer):
    """The redaction that the real server names; null also where the sender's own server pruned the event."""
    return FIRST_COUNTS.get(answer["event_id"], answer["redacted_because"])


FIRST_COUNTS = {
    "$1Icz-03m0d1cG7iOwU94ALNgYfEj0NKxG2mn2HY7I1Q": "$-RmhLu-dWj8OxICgd7JN28vrhovWPVHlELRC0OBljSE",
}
"""Where several redactions apply we name the first that came; the real server mostly does, and not here."""
