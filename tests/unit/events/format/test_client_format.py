"""Events as clients get them: every room version, redactions applied, nothing of a stranger's let through."""

import json

import pytest

from events.format.client_format import StoredForm, client_json, covered_json, pruned_json
from events.format.hashes import NOT_COVERED, content_hash_matches, event_id
from state.rules.room_versions import ROOM_VERSIONS, room_version
from tests.support.made_rooms import ALICE, BOB, MadeRoom
from tests.support.room_data import vectors


def form(event, **about):
    return StoredForm(event.event_id, event.room_id, event.room_version, event.json, event.redacts, **about)


def client(event, **about):
    return json.loads(client_json(form(event, **about)))


@pytest.mark.parametrize("version", ROOM_VERSIONS)
def test_client_gets_its_fields_and_the_events_id(version):
    made = MadeRoom(version)
    message = made.message()
    assert client(message) == {
        "type": "m.room.message",
        "sender": ALICE,
        "room_id": made.room_id,
        "event_id": message.event_id,
        "content": {"body": "x"},
        "origin_server_ts": message.origin_server_ts,
        "unsigned": {},
    }


def test_create_event_of_version_12_gets_the_room_that_its_json_lacks():
    made = MadeRoom("12")
    assert "room_id" not in json.loads(made.create.json)
    assert client(made.create)["room_id"] == made.room_id


def test_state_key_is_kept_when_it_is_empty_and_absent_when_there_is_none():
    made = MadeRoom()
    assert client(made.topic("x"))["state_key"] == ""
    assert "state_key" not in client(made.message())


def test_numbers_of_old_rooms_are_copied_as_they_stand():
    text = b'{"type":"m.x","sender":"@a:a","content":{"big":123456789012345678901234567890,"half":1.50},"origin_server_ts":1}'
    found = client_json(StoredForm("$e:a", "!r:a", "1", text))
    assert b'{"big":123456789012345678901234567890,"half":1.50}' in found


def test_escaped_nul_and_every_kind_of_text_survive():
    made = MadeRoom()
    content = {"body": 'a\0b \u2028 \U0001f600 \\ " /', "n": None, "t": True, "l": [1, -2, {}]}
    event = made.send({"type": "m.room.message", "content": content})
    assert client(event)["content"] == content


@pytest.mark.parametrize(
    "unsigned", ["5", "null", "[]", '"x"', '{"replaces_state":"$a","age_ts":5,"redacted_because":{}}']
)
def test_of_unsigned_only_known_parts_go_out(unsigned):
    text = f'{{"type":"m.x","sender":"@a:a","content":{{}},"origin_server_ts":1,"unsigned":{unsigned}}}'
    found = json.loads(client_json(StoredForm("$e", "!r:a", "10", text.encode())))
    assert found["unsigned"] == ({"replaces_state": "$a"} if "replaces" in unsigned else {})


STATE = [{"type": "m.room.name", "state_key": "", "sender": ALICE, "content": {"name": "I owe you 1000000"}}]


@pytest.mark.parametrize("parts, told", [
    ({"type": "m.room.member", "state_key": BOB, "content": {"membership": "invite"}}, "invite_room_state"),
    ({"type": "m.room.member", "state_key": BOB, "content": {"membership": "knock"}}, "knock_room_state"),
    ({"type": "m.room.member", "state_key": BOB, "content": {"membership": "join"}}, None),
    ({"type": "m.room.member", "state_key": BOB, "content": {"membership": ["invite"]}}, None),
    ({"type": "m.room.message", "content": {"membership": "invite"}}, None),
    ({"type": "m.room.redaction", "redacts": "$target", "content": {}}, None),
])  # fmt: skip
def test_the_rooms_state_goes_out_with_an_invite_and_a_knock_only(parts, told):
    """Nobody signs it: with a message it would be words that no redaction takes away."""
    made = MadeRoom()
    unsigned = {"invite_room_state": STATE, "knock_room_state": STATE, "replaces_state": "$a"}
    event = made.send({**parts, "unsigned": unsigned})
    assert client(event)["unsigned"] == {"replaces_state": "$a", **({told: STATE} if told else {})}
    assert client(event, pruned=True, redacted_by="$r")["unsigned"] == {"replaces_state": "$a", "redacted_by": "$r"}


@pytest.mark.parametrize("pruned", [True, False])
@pytest.mark.parametrize("lie", [5, {"a": 1}, "no ID", "$" + 300 * "x", "$\0"])
def test_what_replaces_state_names_is_an_event(lie, pruned):
    made = MadeRoom()
    assert client(made.send({"type": "m.x", "unsigned": {"replaces_state": lie}}), pruned=pruned)["unsigned"] == {}


@pytest.mark.parametrize("version", ROOM_VERSIONS)
def test_redacted_event_tells_by_what(version):
    made = MadeRoom(version)
    message = made.message()
    redaction = made.redaction(message)
    found = client(message, pruned=True, redacted_by=redaction.event_id, because=form(redaction))
    assert found["content"] == {} and found["unsigned"]["redacted_by"] == redaction.event_id
    because = found["unsigned"]["redacted_because"]
    assert because["event_id"] == redaction.event_id and because["redacts"] == message.event_id


@pytest.mark.parametrize("version", ["10", "11"])
def test_redactions_name_their_target_where_old_and_new_clients_look(version):
    made = MadeRoom(version)
    message = made.message()
    found = client(made.redaction(message))
    assert found["redacts"] == found["content"]["redacts"] == message.event_id


@pytest.mark.parametrize("version, tells", [("10", False), ("11", True)])
def test_redacted_redaction_keeps_what_its_version_keeps(version, tells):
    made = MadeRoom(version)
    redaction = made.redaction(made.message())
    found = client(redaction, pruned=True, because=form(made.redaction(redaction)))
    assert ("redacts" in found) is tells and ("redacts" in found["content"]) is tells


def test_redaction_that_is_redacted_itself_comes_along_pruned():
    made = MadeRoom()
    message = made.message()
    first = made.send({"type": "m.room.redaction", "redacts": message.event_id, "content": {"reason": "rude words"}})
    found = client(message, pruned=True, because=form(first, pruned=True))
    assert b"rude words" not in json.dumps(found).encode()


def test_member_event_of_an_erased_sender_keeps_its_membership():
    made = MadeRoom()
    member = made.send(
        {"type": "m.room.member", "state_key": ALICE, "content": {"membership": "join", "displayname": "A"}}
    )
    assert client(member, pruned=True)["content"] == {"membership": "join"}


def test_pruned_form_is_that_of_the_vectors():
    """``unsigned`` is signed by nobody and left out."""
    compared = 0
    for case in vectors("events/hash_and_redaction"):
        wanted = {key: value for key, value in case["expected"]["redacted"].items() if key != "unsigned"}
        found = pruned_json(json.dumps(case["event"]).encode(), case["room_version"])
        assert json.loads(found) == wanted
        compared += 1
    assert compared > 100


# --- for servers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ROOM_VERSIONS)
def test_servers_get_nothing_that_no_hash_covers(version):
    message = MadeRoom(version).message()
    event, rules = json.loads(message.json), room_version(version)
    foreign = {
        "age_ts": 1,
        "outlier": True,
        "destinations": ["a"],
        "unsigned": {"age": 5, "redacted_because": {}, "x": 1},
    }
    assert foreign.keys() == set(NOT_COVERED)
    sent = json.loads(covered_json(json.dumps({**event, **foreign}, indent=1).encode()))
    assert sent == {**event, "unsigned": {"age": 5}}
    assert content_hash_matches(sent, rules) and event_id(sent, rules) == message.event_id


@pytest.mark.parametrize(
    "one", [{"age_ts": 1}, {"outlier": False}, {"destinations": None}, {"unsigned": []}, {"unsigned": {"x": 1}}]
)
def test_each_such_key_alone_is_left_out(one):
    event = json.loads(MadeRoom().message().json)
    sent = json.loads(covered_json(json.dumps({**event, **one}).encode()))
    assert sent == ({**event, "unsigned": {}} if one == {"unsigned": {"x": 1}} else event)


def test_what_servers_give_each_other_goes_byte_for_byte():
    event = json.loads(MadeRoom("5").message().json)
    unsigned = {"age": 1, "age_ts": 2, "replaces_state": "$x", "invite_room_state": [], "knock_room_state": []}
    text = json.dumps({**event, "unsigned": unsigned, "content": {"n": 1.50, "m": 10**400}}, indent=3).encode()
    assert covered_json(text) == text


def test_damaged_json_is_no_error():
    assert covered_json(b"once") == b"once" and pruned_json(b"once", "5") == b"{}"
    assert client_json(StoredForm("$e", "!r", "5", b"once")) is None
