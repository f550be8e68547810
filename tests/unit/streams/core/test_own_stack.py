"""Nested events are read and written alike from anywhere within a program."""

import json

import pytest

from events.format import hashes
from events.format.canonical_json import encode
from events.format.client_format import StoredForm, client_json, pruned_json
from events.format.parsing import parse_event
from events.format.strict_json import decode_event, decode_stored
from events.sending.finish import finish_event
from state.rules.room_versions import room_version

NESTED = json.loads("[" * 890 + "]" * 890)


def nested_event(**parts):
    known = {"type": "m.room.message", "room_id": "!r:a.test", "sender": "@u:a.test", "depth": 1, "origin_server_ts": 1}
    whole = {**known, "prev_events": ["$p"], "auth_events": [], "content": {"nested": NESTED}, **parts}
    return finish_event(whole, "11")


def within(calls, function):
    return function() if calls == 0 else within(calls - 1, function)


@pytest.mark.parametrize("calls", [0, 300, 600])
def test_a_nested_event_is_the_same_from_anywhere(calls):
    event = nested_event()
    redaction = nested_event(type="m.room.redaction", content={"redacts": event.event_id, "nested": NESTED})
    form = StoredForm(event.event_id, event.room_id, "11", event.json)
    because = StoredForm(redaction.event_id, event.room_id, "11", redaction.json, redacts=event.event_id)
    redacted = StoredForm(event.event_id, event.room_id, "11", event.json, None, True, redaction.event_id, because)
    create = nested_event(type="m.room.create", state_key="", content={"room_version": "11", "nested": NESTED})
    asked = [
        lambda: parse_event(event.json, decode_event(event.json), "11"),
        lambda: decode_stored(event.json)["hashes"],
        lambda: encode({"nested": NESTED}),
        lambda: hashes.content_hash(decode_event(event.json), room_version("11")),
        lambda: client_json(form),
        lambda: client_json(redacted),
        lambda: pruned_json(create.json, "11"),
    ]
    for one in asked:
        assert within(calls, one) == one()
