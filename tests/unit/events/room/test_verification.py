"""Which servers have to have signed an event, and with what keys."""

import base64
import json
import pickle
import sys

import pytest
from msgspec.structs import replace

from events.errors import Reason, UnusableKeys
from events.format.canonical_json import encode
from events.format.parsing import parse_event, parse_line
from events.format.signatures import SigningKey
from events.format.strict_json import decode_event
from events.room.verification import KeyRing, PublicKey, check_signatures, signing_servers
from events.sending.finish import finish_event
from state.rules.room_versions import ROOM_VERSIONS, room_version
from tests.support.room_data import ROOM_NAMES, ROOMS, event_lines

REAL = KeyRing.from_json((ROOMS / "server_keys.json").read_bytes())
A, B, C = (SigningKey.from_seed(f"{name}.test", "ed25519:1", name.upper() * 43) for name in "abc")
RING = KeyRing({key.server: {key.key_id: PublicKey(key.public)} for key in (A, B, C)})
TS = 1_700_000_000_000


def made(version="10", keys=(A,), **parts):
    """A message of A's, or what the parts say, signed by these."""
    whole = {
        "type": "m.room.message",
        "room_id": "!r:a.test",
        "sender": "@alice:a.test",
        "depth": 5,
        "origin_server_ts": TS,
        "prev_events": [],
        "auth_events": [],
        "content": {"body": "hello"},
        **({"event_id": "$chosen:a.test"} if version in ("1", "2") else {}),
        **parts,
    }
    event = json.loads(finish_event(whole, version).json)
    for key in keys:
        event = key.sign_event(event, room_version(version))
    return changed(event, version)


def changed(event, version="10", **parts):
    """The parsed event after a change that is not signed anew."""
    text = json.dumps(event | parts).encode()
    return parse_event(text, decode_event(text), version)


def reason(event, ring=RING):
    (found,) = check_signatures([event], ring)
    assert found is None or found.reason is Reason.BAD_SIGNATURE
    return found and found.detail


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_every_event_of_the_real_rooms_is_signed(room):
    events = [parse_line(line) for line in event_lines(room)[:400]]
    assert check_signatures(events, REAL) == [None] * len(events)
    tampered = [changed(json.loads(event.json), event.room_version, depth=event.depth + 1) for event in events[:50]]
    assert all("another one's" in found.detail for found in check_signatures(tampered, REAL))


@pytest.mark.parametrize("version", ROOM_VERSIONS)
def test_what_is_signed_is_the_redacted_form(version):
    event = made(version)
    assert reason(event) is None
    assert reason(changed(json.loads(event.json), version, content={"body": "I owe you"}, unsigned={"x": 1})) is None
    assert "another one's" in reason(changed(json.loads(event.json), version, origin_server_ts=TS + 1))
    assert "no signature" in reason(made(version, keys=()))
    assert "no signature" in reason(made(version, keys=(B,)))


@pytest.mark.parametrize("version", ROOM_VERSIONS)
def test_before_version_3_the_server_of_the_event_id_signs_too(version):
    parts = {"event_id": "$chosen:b.test"} if version in ("1", "2") else {}
    event = made(version, **parts)
    assert signing_servers(event) == (("a.test", "b.test") if parts else ("a.test",))
    assert (reason(event) is None) is (not parts)
    assert reason(made(version, keys=(A, B), **parts)) is None


def joining(version, keys, user="@bob:b.test", membership="join"):
    content = {"membership": membership, "join_authorised_via_users_server": user}
    return made(version, keys, type="m.room.member", state_key="@alice:a.test", content=content)


@pytest.mark.parametrize("version", ROOM_VERSIONS)
def test_who_lets_a_user_join_signs_too(version):
    asked = room_version(version).restricted_joins
    assert (reason(joining(version, (A,))) is None) is (not asked)
    assert reason(joining(version, (A, B))) is None
    assert reason(joining(version, (A,), membership="leave")) is None
    assert (reason(joining(version, (A, B), "@carol:c.test")) is None) is (not asked)


@pytest.mark.parametrize("user", [3, None, [], "bob", "@bob:", ""])
def test_a_user_of_no_server_lets_nobody_in(user):
    assert reason(joining("10", (A, B), user))


def test_an_invite_by_a_third_party_may_be_another_servers():
    content = {"membership": "invite", "third_party_invite": {"signed": {"token": "t"}}}
    parts = {"type": "m.room.member", "state_key": "@bob:b.test", "content": content}
    assert signing_servers(made("10", (), **parts)) == ()
    assert reason(made("10", (), **parts)) is None
    for other in ({"membership": "join"}, {"membership": "leave"}):
        assert reason(made("10", (), **parts | {"content": content | other}))
    assert reason(made("10", (), **parts | {"type": "m.room.topic"}))
    assert reason(made("1", (), **parts)) and reason(made("1", (A,), **parts)) is None


def test_what_nobody_hashed_excuses_no_signature():
    plain = made("10", (), type="m.room.member", state_key="@bob:b.test", content={"membership": "invite"})
    forged = changed(json.loads(plain.json), content={"membership": "invite", "third_party_invite": {"signed": {}}})
    assert signing_servers(forged) == ("a.test",) and reason(forged)


@pytest.mark.parametrize("sender", ["@alice", "@alice:", "@:b.test"])
def test_a_sender_of_no_server_or_of_another_signs_nothing(sender):
    assert reason(made(sender=sender))


@pytest.mark.parametrize(
    "server",
    ["a.test/x", "a.test/../b.test", "a.test\n", " a.test", "a.test?", "a@b.test", "[::1", "a.test:x", "ä.test"],
)
def test_nobody_is_asked_for_the_keys_of_what_is_no_server(server):
    asked = []
    event = made(sender=f"@alice:{server}", signatures={server: {"ed25519:1": "A" * 86}})
    (found,) = check_signatures([event], lambda name, _: asked.append(name) or {})
    assert found.reason is Reason.BAD_SIGNATURE and asked == []


@pytest.mark.parametrize("server", ["a.test", "A.test:8448", "localhost:80", "10.0.0.1", "[::1]:8448", "[2001:db8::1]"])
def test_servers_are_asked_for_as_they_are_written(server):
    asked = []
    event = made(sender=f"@alice:{server}", keys=(), signatures={server: {"ed25519:1": "A" * 86}})
    check_signatures([event], lambda name, _: asked.append(name) or {})
    assert asked == [server]


# --- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ROOM_VERSIONS)
@pytest.mark.parametrize("until, holds", [(TS - 1, False), (TS, True), (TS + 1, True), (None, True)])
def test_from_version_5_on_a_key_has_to_hold_when_the_event_was_made(version, until, holds):
    ring = KeyRing({"a.test": {A.key_id: PublicKey(A.public, until)}})
    found = reason(made(version), ring)
    assert (found is None) is (holds or int(version) < 5)
    assert found is None or "did not hold" in found


def test_a_key_of_another_server_or_name_does_not_count():
    event = made()
    assert "not known" in reason(event, KeyRing({"b.test": {A.key_id: PublicKey(A.public)}}))
    assert "not known" in reason(event, KeyRing({"a.test": {"ed25519:2": PublicKey(A.public)}}))
    assert "another one's" in reason(event, KeyRing({"a.test": {A.key_id: PublicKey(B.public)}}))


def test_one_good_signature_beside_others_will_do():
    event = json.loads(made().json)
    good = event["signatures"]["a.test"]
    for others in ({"ed25519:0": "AAAA", "rsa:1": "x", "ed25519:9": 5}, {"ed25519:old": good[A.key_id][::-1]}):
        assert reason(changed(event, signatures={"x": [], "a.test": others | good})) is None


def test_what_a_server_signs_with_a_hundred_names_is_looked_at_a_few_times():
    event = json.loads(made().json)
    asked = []

    def keys_of(server, wanted):
        asked.append((server, wanted))
        return {}

    many = {f"ed25519:{number}": "AAAA" for number in range(500)}
    assert reason(changed(event, signatures={"a.test": many} | {f"s{n}": many for n in range(2)}), keys_of)
    assert [(server, len(wanted)) for server, wanted in asked] == [("a.test", 16)]


def test_a_server_is_asked_once_for_a_batch_with_the_latest_time_of_each_key():
    asked = []

    def keys_of(server, wanted):
        asked.append((server, dict(wanted)))
        return {A.key_id: A.public} if server == "a.test" else {}

    events = [made(depth=1), made(origin_server_ts=TS + 7), made(sender="@bob:b.test", keys=(B,)), made(keys=())]
    found = check_signatures(events, keys_of)
    assert asked == [("a.test", {A.key_id: TS + 7}), ("b.test", {B.key_id: TS})]
    assert [one is None for one in found] == [True, True, False, False]


@pytest.mark.parametrize(
    "signatures", [None, [], {}, {"a.test": None}, {"a.test": []}, {"a.test": {"ed25519:1": None}}]
)
def test_unreadable_signatures_are_none(signatures):
    assert "no signature" in reason(changed(json.loads(made().json), signatures=signatures))


ORDER = 2**252 + 27742317777372353535851937790883648493


def test_a_signature_has_one_form_only():
    """Half of it is a number below the order of the group: the same number and the order is refused, as everywhere."""
    event = json.loads(made().json)
    raw = base64.b64decode(event["signatures"]["a.test"][A.key_id] + "==")
    other = raw[:32] + (int.from_bytes(raw[32:], "little") + ORDER).to_bytes(32, "little")
    text = base64.b64encode(other).decode().rstrip("=")
    assert "another one's" in reason(changed(event, signatures={"a.test": {A.key_id: text}}))


def test_numbers_of_old_versions_are_signed_as_they_are():
    levels = {"users": {"@alice:a.test": 100.5}, "users_default": 2**60}
    event = made("5", type="m.room.power_levels", state_key="", content=levels)
    assert reason(event) is None and reason(replace(event, json=encode(json.loads(event.json), strict=False))) is None


# --- keys from a file -------------------------------------------------------------------------------------------------


def calls(work):
    """How many functions the work calls, in Python and in C: what it costs, whatever else the machine does."""
    count = 0

    def count_call(_, event, __):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(count_call)
    try:
        found = work()
    finally:
        sys.setprofile(None)
    return count, found


@pytest.mark.parametrize(("until", "most"), [(None, 24), (5, 32)])
def test_a_file_of_many_keys_is_read_and_given_to_tasks_with_few_calls_a_key(until, most):
    """It took 31 to 35 calls a key, so that a file of 90 MB was not read within two minutes on a busy machine."""

    def text(number):
        key = A.public if until is None else {"key": A.public, "valid_until_ts": until}
        return json.dumps({f"{n}.test": {"ed25519:1": key} for n in range(number)}).encode()

    few, many = text(500), text(2_500)
    (of_few, _), (of_many, ring) = calls(lambda: KeyRing.from_json(few)), calls(lambda: KeyRing.from_json(many))
    assert (of_many - of_few) / 2_000 < most
    packed = pickle.dumps(ring)
    took, again = calls(lambda: pickle.loads(packed))
    assert took / 2_500 < 4
    assert again == ring
    assert again("7.test", {}) == {"ed25519:1": PublicKey(A.public, until)}


def test_keys_are_read_with_and_without_their_end():
    ring = KeyRing.from_json(
        json.dumps({"a.test": {"ed25519:1": A.public, "ed25519:2": {"key": B.public, "valid_until_ts": 5}}})
    )
    assert ring("a.test", {}) == {"ed25519:1": PublicKey(A.public), "ed25519:2": PublicKey(B.public, 5)}
    assert ring("b.test", {}) == {}


def test_a_byte_order_mark_before_the_keys_is_ignored():
    text = json.dumps({"a.test": {"ed25519:1": A.public}})
    for marked in ("\ufeff" + text, b"\xef\xbb\xbf" + text.encode()):
        assert KeyRing.from_json(marked)("a.test", {}) == {"ed25519:1": PublicKey(A.public)}


@pytest.mark.parametrize("key", [f"{A.public}=", A.public.replace("/", "_").replace("+", "-")])
def test_keys_are_padded_or_url_safe(key):
    assert KeyRing.from_json(json.dumps({"a.test": {"ed25519:1": key}}))("a.test", {}) == {"ed25519:1": PublicKey(key)}


@pytest.mark.parametrize(
    "text",
    ["", "x", "[]", '"x"', "{" * 5000, '{"a": []}', '{"a": {"ed25519:1": 5}}', '{"a": {"ed25519:1": "short"}}',
     '{"a": {"rsa:1": "KEY"}}',
     '{"a": {"ed25519:1": {}}}', '{"a": {"ed25519:1": {"key": "KEY", "valid_until_ts": "5"}}}',
     '{"a": {"ed25519:1": {"key": "KEY", "valid_until_ts": true}}}', '{"a": {"ed25519:1": {"key": "KEY", "valid_until": 5}}}',
     '{"a": {"ed25519:1": "KEYé"}}', '{"a": {"ed25519:1": "!!!!KEY"}}', '{"a": {"ed25519:1": " KEY"}}',
     '{"a": {"ed25519:1": "KEY=more"}}', '{"a": {"ed25519:1": "KEY\\n"}}', b"\xff",
     '{"a": {"ed25519:1": {"key": "KEY", "valid_until_ts": NaN}}}',
     '{"\ud800": {"ed25519:1": "KEY"}}', '{"\\ud800": {"ed25519:1": "KEY"}}', '{"a": {"ed25519:1": "KEY"}, "a": {}}',
     '{"a": {"ed25519:1": "KEY", "ed25519:1": "KEY"}}',
     '{"a": {"ed25519:1": {"key": "KEY", "valid_until_ts": 1, "valid_until_ts": 9}}}']
)  # fmt: skip
def test_keys_that_cannot_be_read_are_refused(text):
    with pytest.raises(UnusableKeys):
        KeyRing.from_json(text.replace("KEY", A.public) if isinstance(text, str) else text)
