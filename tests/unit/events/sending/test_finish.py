"""Finished events stand up to the checks of any other event."""

import json

import pytest

from events.errors import EventRefused, NotCanonical
from events.format.parsing import parse_line
from events.sending.finish import finish_event
from state.rules.room_versions import ROOM_VERSIONS
from tests.support.made_rooms import MadeRoom

HASHED = [name for name, version in ROOM_VERSIONS.items() if version.ids_are_hashes]


@pytest.mark.parametrize("version", HASHED)
def test_finished_event_parses_back_with_the_same_id_and_a_good_content_hash(version):
    event = MadeRoom(version).message()
    again = parse_line(json.dumps({"json": json.loads(event.json), "room_version": version}).encode())
    assert again.event_id == event.event_id
    assert event.content_hash_matches and again.content_hash_matches


@pytest.mark.parametrize("missing", ["type", "sender", "depth", "content", "prev_events"])
def test_missing_part_is_refused(missing):
    parts = json.loads(MadeRoom().message().json)
    del parts[missing]
    with pytest.raises(EventRefused, match=missing):
        finish_event(parts, "10")


def test_content_without_canonical_form_is_refused():
    with pytest.raises(NotCanonical):
        finish_event({**json.loads(MadeRoom().message().json), "content": {"n": 0.5}}, "10")
