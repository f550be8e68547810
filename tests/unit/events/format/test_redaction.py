"""What survives a redaction, against the vectors and a real server's rooms."""

import pytest

from events.format.redaction import prune
from state.rules.room_versions import ROOM_VERSIONS, room_version
from tests.support.room_data import ROOM_NAMES, oracle, stored_events, vectors

CASES = vectors("events/hash_and_redaction")


def cases_of(version):
    return [case for case in CASES if case["room_version"] == version]


@pytest.mark.parametrize("version", sorted({case["room_version"] for case in CASES}))
def test_vectors(version):
    for case in cases_of(version):
        pruned = prune(case["event"], room_version(version))
        assert pruned.pop("unsigned", {}) == case["expected"]["redacted_unsigned"], case["name"]
        assert pruned == case["expected"]["redacted"], case["name"]


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_pruned_forms_equal_a_real_servers(room):
    stored = {event["event_id"]: event for event in stored_events(room)}
    for answer in oracle(room, "redactions"):
        if answer["kind"] == "event":
            event = stored[answer["event_id"]]
            pruned = prune(event["json"], room_version(event["room_version"]))
            pruned.pop("unsigned", None)
            assert pruned == answer["pruned"]


@pytest.mark.parametrize("version", ROOM_VERSIONS)
def test_pruning_twice_changes_nothing(version):
    for stored in stored_events("v11_redactions"):
        once = prune(stored["json"], room_version(version))
        assert prune(once, room_version(version)) == once


@pytest.mark.parametrize("content", [None, [], "text", 7])
def test_unusable_content_becomes_empty(content):
    assert prune({"type": "m.room.member", "content": content}, room_version("11"))["content"] == {}


@pytest.mark.parametrize(
    "invite, kept",
    [({"signed": {"token": "t"}, "x": 1}, {"signed": {"token": "t"}}), ({"x": 1}, {}), ("text", None), (None, None)],
)
def test_third_party_invite_keeps_its_signed_part(invite, kept):
    event = {"type": "m.room.member", "content": {"membership": "invite", "third_party_invite": invite}}
    assert prune(event, room_version("11"))["content"].get("third_party_invite") == kept


def test_the_event_itself_is_left_alone():
    event = {"type": "m.room.message", "content": {"body": "x"}, "unsigned": {"age_ts": 1, "prev_content": {}}}
    assert prune(event, room_version("11"))["unsigned"] == {"age_ts": 1}
    assert event["content"] == {"body": "x"}
