"""Hashes and event IDs, against the vectors and a real server's rooms."""

import pytest

from events.format.hashes import content_hash, content_hash_matches, event_id, reference_hash
from state.rules.room_versions import room_version
from tests.support.room_data import ROOM_NAMES, stored_events, vectors

CASES = vectors("events/hash_and_redaction")


def cases_of(version):
    return [case for case in CASES if case["room_version"] == version]


@pytest.mark.parametrize("version", sorted({case["room_version"] for case in CASES}))
def test_vectors(version):
    functions = {"event_id": event_id, "reference_hash": reference_hash, "content_hash": content_hash}
    for case in cases_of(version):
        for name, function in functions.items():
            assert function(case["event"], room_version(version)) == case["expected"][name], (case["name"], name)


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_ids_of_a_real_room_come_out_again(room):
    for stored in stored_events(room):
        assert event_id(stored["json"], room_version(stored["room_version"])) == stored["event_id"]


@pytest.mark.parametrize(
    "room, failing", [("large_v10", 1), ("v10_rejected", 1), ("v11_fork_walk", 1), ("v11_redactions", 0)]
)
def test_only_changed_events_fail_their_content_hash(room, failing):
    fails = [
        stored["event_id"]
        for stored in stored_events(room)
        if not content_hash_matches(stored["json"], room_version(stored["room_version"]))
    ]
    assert len(fails) == failing


@pytest.mark.parametrize("hashes", [None, [], {}, {"sha256": 1}, "x"])
def test_unusable_hashes_do_not_match(hashes):
    assert not content_hash_matches({"type": "m.x", "hashes": hashes}, room_version("10"))


def test_signatures_do_not_change_the_id():
    event = dict(stored_events("v10_rejected")[0]["json"])
    version = room_version("10")
    assert event_id(event | {"signatures": {}, "unsigned": {"x": 1}}, version) == event_id(event, version)


def test_a_smuggled_event_id_does_not_change_a_computed_one():
    stored = stored_events("v10_rejected")[0]
    assert event_id(stored["json"] | {"event_id": "$other"}, room_version("10")) == stored["event_id"]
