"""Talking in rooms: what is filled in, for every room version; what is not allowed; many senders and many leaves."""

import base64
import json
import threading

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.db import connections, transaction

from events.errors import EventNotAllowed, EventRefused, Reason, StateUnresolved, UnknownEvent, UnknownRoom
from events.format.canonical_json import LARGEST_INTEGER, encode
from events.format.hashes import reference_hash
from events.format.parsing import SIZE_LIMIT_BYTES, parse_event
from events.format.signatures import SigningKey
from events.format.strict_json import decode_event
from events.models import Event, EventEdge, EventJson, EventVisibility, Room
from events.reading.timeline import state_at
from events.room.verification import signing_servers
from events.sending.send import DUMMY_EVENT, LocalRoom, NewEvent, RoomSetup, create_room
from state.rules.room_versions import ROOM_VERSIONS, room_version
from tests.support.made_rooms import MadeRoom
from tests.support.persisted_rooms import current_state, extremities, incoming, persist, ranges, replayed_state
from tests.support.signed_events import event_is_signed
from tests.support.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.django_db


ANN, BOB, EVE = "@ann:site", "@bob:site", "@eve:else"
TEXT = "m.room.message"
VERSIONS = list(ROOM_VERSIONS)


def json_of(event_id):
    return json.loads(bytes(EventJson.objects.get(pk=event_id).json))


def prevs(event):
    """The prev events of an event as the graph knows them."""
    return set(EventEdge.objects.filter(event_id=event.event_id).values_list("prev_event_id", flat=True))


def auth_types(event, version):
    """Types and state keys of the auth events that the event lists."""
    ids = json_of(event.event_id)["auth_events"]
    ids = [entry[0] for entry in ids] if version in ("1", "2") else ids
    return sorted(Event.objects.filter(event_id__in=ids).values_list("type", "state_key"))


@pytest.fixture
def shared_room():
    return create_room(ANN)


# --- every room version -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_three_lines_of_talk(version):
    room = create_room(ANN, version)
    room.join(BOB)
    said = room.send(BOB, TEXT, {"body": "hello"})
    stored = Event.objects.filter(room_id=room.room_id).order_by("stream_ordering")
    assert [event.type.removeprefix("m.room.") for event in stored] == [
        "create", "member", "power_levels", "join_rules", "history_visibility", "member", "message"
    ]  # fmt: skip
    assert [event.topological_ordering for event in stored] == [1, 2, 3, 4, 5, 6, 7]
    assert not any(event.rejected_reason or event.soft_failed or event.state_unresolved for event in stored)
    assert extremities(room.room_id) == [said.event_id]
    assert current_state(room.room_id) == replayed_state(room.room_id) == state_at(said.event_id).after


@pytest.mark.parametrize("version", VERSIONS)
def test_stored_bytes_are_an_event_of_that_version(version):
    room = create_room(ANN, version)
    event = json_of(room.send(ANN, TEXT, {"body": "é\0"}).event_id)
    parsed = parse_event(encode(event), event, version)
    assert parsed.content_hash_matches and parsed.room_id == room.room_id
    create = json_of(Room.objects.get().create_event_id)
    assert ("room_id" in create) is (version != "12")
    assert ("creator" in create["content"]) is (int(version) < 11)
    assert room.room_id.startswith("!") and (":" in room.room_id) is (version != "12")


@pytest.mark.parametrize("version", VERSIONS)
def test_auth_events_are_those_of_the_rule(version):
    room = create_room(ANN, version)
    create = [] if version == "12" else [("m.room.create", "")]
    levels, rules = ("m.room.power_levels", ""), ("m.room.join_rules", "")
    joined = room.join(BOB)
    assert auth_types(joined, version) == sorted([*create, levels, rules])
    assert auth_types(room.send(BOB, TEXT, {}), version) == sorted([*create, levels, ("m.room.member", BOB)])
    ban = room.ban(ANN, BOB)
    assert auth_types(ban, version) == sorted([*create, levels, ("m.room.member", ANN), ("m.room.member", BOB)])


@pytest.mark.parametrize("version", ["1", "2"])
def test_references_of_old_versions_carry_hashes(version):
    room = create_room(ANN, version)
    one, other = room.add([NewEvent(ANN, TEXT, {}), NewEvent(ANN, TEXT, {})])
    again = room.send(ANN, TEXT, {})
    for event, below in ((other, one), (again, other)):
        hashed = reference_hash(json_of(below.event_id), room_version(version))
        assert json_of(event.event_id)["prev_events"] == [[below.event_id, {"sha256": hashed}]]


@pytest.mark.parametrize("version", VERSIONS)
def test_redactions_name_their_target_where_the_version_has_it(version):
    room = create_room(ANN, version)
    said = room.send(ANN, TEXT, {"body": "x"})
    redaction = room.redact(ANN, said, "typo")
    assert Event.objects.get(event_id=said.event_id).redacted_by == redaction.event_id
    event = json_of(redaction.event_id)
    assert (event["content"] if int(version) >= 11 else event)["redacts"] == said.event_id
    assert event["content"]["reason"] == "typo"


# --- what a room begins with --------------------------------------------------------------------------------------


def test_room_as_it_is_asked_for():
    setup = RoomSetup(
        join_rule="invite",
        history_visibility="joined",
        content={"m.federate": False},
        power_levels={"users": {ANN: 7}, "state_default": 5, "invite": 5},
        state=[NewEvent(ANN, "m.room.topic", {"topic": "tea"}, "")],
    )
    room = create_room(ANN, "10", setup)
    state = {kind: json_of(event_id)["content"] for (kind, _), event_id in current_state(room.room_id).items()}
    assert state["m.room.topic"] == {"topic": "tea"}
    assert state["m.room.join_rules"] == {"join_rule": "invite"}
    assert state["m.room.power_levels"]["users"] == {ANN: 7}
    with pytest.raises(EventNotAllowed, match="not invited"):
        room.join(BOB)
    room.invite(ANN, BOB)
    room.join(BOB)
    with pytest.raises(EventNotAllowed, match="not federated"):
        room.invite(ANN, EVE)
    assert {(user, kind) for user, kind, *_ in ranges(room.room_id)} >= {(ANN, "joined"), (BOB, "joined")}


def test_rooms_of_one_moment_differ(monkeypatch):
    """The ID of a room of version 12 follows from its create event alone."""
    monkeypatch.setattr("events.sending.send._now_ms", lambda: 1_700_000_000_000)
    assert len({create_room(ANN, "12").room_id for _ in range(3)}) == 3


def test_nothing_of_a_room_that_cannot_be_is_left():
    with pytest.raises(EventNotAllowed):
        create_room(ANN, "11", RoomSetup(state=[NewEvent(BOB, "m.room.topic", {}, "")]))
    with pytest.raises(EventNotAllowed, match="additional_creators"):
        create_room(ANN, "12", RoomSetup(content={"additional_creators": ["bob"]}))
    with pytest.raises(EventRefused) as refused:
        create_room(ANN, "13")
    assert refused.value.reason == Reason.UNKNOWN_ROOM_VERSION
    assert not Room.objects.exists() and not Event.objects.exists()


def test_each_membership_call_changes_the_membership():
    room = create_room(ANN, "11", RoomSetup(join_rule="knock"))
    room.knock(BOB)
    room.invite(ANN, BOB, reason="come in")
    room.join(BOB)
    room.kick(ANN, BOB)
    room.ban(ANN, BOB)
    with pytest.raises(EventNotAllowed, match="membership is ban"):
        room.knock(BOB)
    room.kick(ANN, BOB)
    room.invite(ANN, BOB)
    room.leave(BOB)
    memberships = Event.objects.filter(state_key=BOB).order_by("stream_ordering").values_list("membership", flat=True)
    assert list(memberships) == ["knock", "invite", "join", "leave", "ban", "leave", "invite", "leave"]


# --- what is not made ---------------------------------------------------------------------------------------------


def test_event_that_the_rules_refuse_is_not_stored():
    room = create_room(ANN)
    before = Event.objects.count()
    with pytest.raises(EventNotAllowed, match=f"{BOB} may not send {TEXT} in .*: {BOB} is not joined"):
        room.send(BOB, TEXT, {})
    room.join(BOB)
    with pytest.raises(EventNotAllowed, match="takes 50"):
        room.set_state(BOB, "m.room.topic", {"topic": "x"})
    with pytest.raises(EventNotAllowed):
        room.add([NewEvent(BOB, TEXT, {}), NewEvent(BOB, "m.room.topic", {}, "")])
    assert Event.objects.count() == before + 1


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (NewEvent(ANN, TEXT, {"n": 0.5}), Reason.BAD_NUMBER),
        (NewEvent(ANN, TEXT, {"n": 2**53}), Reason.BAD_NUMBER),
        (NewEvent(ANN, TEXT, {"n": float("nan")}), Reason.BAD_NUMBER),
        (NewEvent(ANN, TEXT, {"body": "\ud800"}), Reason.BAD_UNICODE),
        (NewEvent(ANN, TEXT, {"body": "x" * SIZE_LIMIT_BYTES}), Reason.TOO_LARGE),
        (NewEvent(ANN, TEXT, []), Reason.WRONG_TYPE),
        (NewEvent(ANN, TEXT, {1: 2}), Reason.WRONG_TYPE),
        (NewEvent(ANN, "x" * 256, {}), Reason.IDENTIFIER_TOO_LONG),
        (NewEvent(ANN, TEXT, {}, "é" * 128), Reason.IDENTIFIER_TOO_LONG),
        (NewEvent(ANN, TEXT, {}, "a\0b"), Reason.NUL_CHARACTER),
        (NewEvent("ann:site", TEXT, {}), Reason.BAD_IDENTIFIER),
        (NewEvent("@ann", TEXT, {}), Reason.BAD_IDENTIFIER),
        (NewEvent("@" + "a" * 1_000 + ":site", TEXT, {}), Reason.IDENTIFIER_TOO_LONG),
    ],
)
def test_what_is_no_event_is_refused_by_name(shared_room, new, reason):
    with pytest.raises(EventRefused) as refused:
        shared_room.add([new])
    assert refused.value.reason == reason


def test_event_as_large_as_may_be_is_stored():
    room = create_room(ANN)
    empty = len(encode(json_of(room.send(ANN, TEXT, {"body": ""}).event_id)))
    said = room.send(ANN, TEXT, {"body": "x" * (SIZE_LIMIT_BYTES - empty)})
    assert len(bytes(EventJson.objects.get(pk=said.event_id).json)) == SIZE_LIMIT_BYTES
    with pytest.raises(EventRefused, match="65537 bytes"):
        room.send(ANN, TEXT, {"body": "x" * (SIZE_LIMIT_BYTES - empty + 1)})


def test_rooms_and_events_that_are_not_here():
    for room_id in ("!no:where", "!\0:where", "!\ud800:where"):
        with pytest.raises(UnknownRoom):
            LocalRoom(room_id).send(ANN, TEXT, {})
        with pytest.raises(UnknownRoom):
            LocalRoom(room_id).redact(ANN, "$x")
    room, other = create_room(ANN), create_room(ANN)
    said = other.send(ANN, TEXT, {})
    for strange in ("$nowhere", "$\0", "$\ud800", said):
        with pytest.raises(UnknownEvent):
            room.on(strange).send(ANN, TEXT, {})


def test_room_of_which_only_an_invite_is_here():
    made = MadeRoom("10", ruled=True)
    persist([incoming(made.member(BOB, "invite", sender="@alice:a.test"), outlier=True)])
    with pytest.raises(StateUnresolved, match="only single events"):
        LocalRoom(made.room_id).join(BOB)


# --- forks and leaves ---------------------------------------------------------------------------------------------


def test_fork_is_joined_by_the_next_event():
    room = create_room(ANN)
    room.join(BOB)
    base = room.send(ANN, TEXT, {})
    one, other = room.on(base).send(ANN, TEXT, {"n": 1}), room.on(base).send(BOB, TEXT, {"n": 2})
    assert extremities(room.room_id) == sorted([one.event_id, other.event_id])
    both = room.send(ANN, TEXT, {})
    assert prevs(both) == {one.event_id, other.event_id} and extremities(room.room_id) == [both.event_id]


def test_late_event_of_a_fork_soft_fails():
    room = create_room(ANN)
    joined = room.join(BOB)
    room.ban(ANN, BOB)
    late = room.on(joined).send(BOB, TEXT, {})
    assert late.soft_failed and late.event_id not in extremities(room.room_id)


def test_same_words_at_the_same_place_in_the_same_moment_are_one_event():
    room = create_room(ANN)
    base = room.send(ANN, TEXT, {})
    words = NewEvent(ANN, TEXT, {"body": "x"}, origin_server_ts=1_700_000_000_000)
    assert room.on(base).add([words]) == room.on(base).add([words])


def many_extremities(room, count):
    base = room.send(ANN, TEXT, {})
    return [
        event
        for number in range(count)
        for event in room.on(base).add([NewEvent(ANN, TEXT, {"n": number})] * (1 + number // 4))[-1:]
    ]


def test_event_joins_the_ten_deepest_leaves():
    room = create_room(ANN)
    heads = many_extremities(room, 14)  # of rising depth, four alike
    said = room.send(ANN, TEXT, {})
    assert prevs(said) == {event.event_id for event in heads[4:]}
    assert extremities(room.room_id) == sorted([said.event_id, *(event.event_id for event in heads[:4])])
    assert json_of(said.event_id)["depth"] == 1 + max(json_of(event.event_id)["depth"] for event in heads)


def test_what_the_state_of_the_other_leaves_forbids_is_not_sent():
    room = create_room(ANN)
    base = room.join(BOB)
    room.on(base).ban(ANN, BOB)
    for number in range(10):  # deeper leaves, of which none knows of the ban
        room.on(base).add([NewEvent(ANN, TEXT, {"n": number})] * 3)
    with pytest.raises(EventNotAllowed, match="current state"):
        room.send(BOB, TEXT, {})


def test_dummy_events_merge_many_leaves():
    room = create_room(ANN)
    room.join(EVE)
    many_extremities(room, 30)
    assert room.merge_extremities(more_than=30) == []
    assert room.merge_extremities(server="nobody.test") == []
    made = room.merge_extremities(server="site")
    assert len(made) == 4 and extremities(room.room_id) == [made[-1].event_id]
    assert {event.type for event in Event.objects.filter(event_id__in=[e.event_id for e in made])} == {DUMMY_EVENT}
    assert room.merge_extremities(server="site") == []


def test_dummy_events_need_somebody_who_may_send_them():
    levels = {"users": {ANN: 100}, "events": {DUMMY_EVENT: 50}}
    room = create_room(ANN, "11", RoomSetup(power_levels=levels))
    room.join(EVE)
    many_extremities(room, 12)
    assert room.merge_extremities(server="else") == []
    assert len(room.merge_extremities(server="site")) == 2


def test_depth_has_an_end():
    made = MadeRoom("10", ruled=True)
    made.send({"type": TEXT, "depth": LARGEST_INTEGER})
    persist([incoming(event) for event in made.events])
    said = LocalRoom(made.room_id).send("@alice:a.test", TEXT, {})
    assert json_of(said.event_id)["depth"] == LARGEST_INTEGER


# --- signatures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_events_bear_the_signature_of_their_server(version):
    seed = base64.b64encode(bytes(range(32))).decode()
    key = SigningKey.from_seed("site", "ed25519:1", seed)
    assert key.public == public_key(bytes(range(32)))
    room = create_room(ANN, version, key=key)
    room.send(ANN, TEXT, {"body": "x"})
    for row in EventJson.objects.all():
        event = json.loads(bytes(row.json))
        assert event_is_signed(event, room_version(version), "site", {"ed25519:1": key.public})
        assert list(event["signatures"]) == ["site"]
    with pytest.raises(EventRefused, match="cannot sign"):
        room.join(EVE)


def public_key(seed):
    private = Ed25519PrivateKey.from_private_bytes(seed)
    return base64.b64encode(private.public_key().public_bytes_raw()).decode().rstrip("=")


# --- vouchers -----------------------------------------------------------------------------------------------------

VOUCHER = "join_authorised_via_users_server"
RESTRICTED = [version for version, rules in ROOM_VERSIONS.items() if rules.restricted_joins]


def restricted_room(version, rule="restricted"):
    """A room of this site that Eve, of another one, is joined to, and this site's key."""
    key = SigningKey.from_seed("site", "ed25519:1", base64.b64encode(bytes(range(32))).decode())
    room = create_room(ANN, version, key=key)
    room.set_state(ANN, "m.room.join_rules", {"join_rule": rule, "allow": []})
    room.invite(ANN, EVE)
    LocalRoom(room.room_id).join(EVE)
    return room


def servers(stored, version):
    """The servers whose signatures other servers demand."""
    json = bytes(EventJson.objects.get(pk=stored.event_id).json)
    return signing_servers(parse_event(json, decode_event(json), version))


@pytest.mark.parametrize("version", RESTRICTED)
def test_a_copied_membership_names_nobody_who_did_not_sign(version):
    room = restricted_room(version)
    joined = LocalRoom(room.room_id).join(BOB, **{VOUCHER: EVE})
    assert servers(joined, version) == ("site", "else")
    for voucher in (EVE, 5, None, "nobody"):
        renamed = room.join(BOB, displayname="Bob", **{VOUCHER: voucher})
        assert servers(renamed, version) == ("site",)
        assert json_of(renamed.event_id)["content"] == {"membership": "join", "displayname": "Bob"}
    room.set_state(ANN, "m.room.join_rules", {"join_rule": "public"})
    room.leave(BOB)
    assert servers(room.join(BOB, **{VOUCHER: EVE}), version) == ("site",)


@pytest.mark.parametrize("version", RESTRICTED)
def test_no_membership_but_a_join_names_who_vouched(version):
    """By the rules, the voucher's server has to sign whatever the membership is. A client copied all of it into a leave."""
    room = restricted_room(version)
    LocalRoom(room.room_id).join(BOB, **{VOUCHER: EVE})
    copied = {VOUCHER: EVE, "displayname": "Bob"}
    kicked = room.kick(ANN, BOB, **copied)
    invited = room.invite(ANN, BOB, **copied)
    for changed in (kicked, invited, room.leave(BOB, **copied), room.ban(ANN, BOB, **copied)):
        assert VOUCHER not in json_of(changed.event_id)["content"]
        assert json_of(changed.event_id)["content"]["displayname"] == "Bob"


def test_a_voucher_that_another_server_has_to_sign_is_refused():
    room = restricted_room("10", "knock_restricted")
    with pytest.raises(EventRefused, match=r"'else' has to sign it.*make_join") as raised:
        room.join(BOB, **{VOUCHER: EVE})
    assert raised.value.reason == Reason.BAD_SIGNATURE
    joined = room.join(BOB, **{VOUCHER: ANN})
    assert json_of(joined.event_id)["content"][VOUCHER] == ANN and servers(joined, "10") == ("site",)


def test_before_restricted_joins_the_key_is_content_like_any_other():
    room = create_room(ANN, "7")
    joined = room.join(BOB, **{VOUCHER: EVE})
    assert json_of(joined.event_id)["content"][VOUCHER] == EVE and servers(joined, "7") == ("site",)


# --- several senders ----------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_senders_at_once_build_on_each_other():
    room = create_room(ANN)
    room.add([NewEvent(f"@u{n}:site", "m.room.member", {"membership": "join"}, f"@u{n}:site") for n in range(4)])
    errors = []

    def talk(user):
        try:
            for number in range(5):
                room.send(user, TEXT, {"n": number})
        except Exception as error:  # noqa: BLE001 - told to the main thread
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=talk, args=[f"@u{n}:site"]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * DEADLINE_SECONDS)
    assert errors == []
    events = Event.objects.filter(room_id=room.room_id).order_by("stream_ordering")
    assert [event.topological_ordering for event in events] == list(range(1, 30))
    assert len(extremities(room.room_id)) == 1


def test_transaction_of_the_caller_decides():
    room = create_room(ANN)
    before = extremities(room.room_id)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        room.send(ANN, TEXT, {})
        room.send(ANN, TEXT, {})
        raise ZeroDivisionError
    assert extremities(room.room_id) == before
    assert room.send(ANN, TEXT, {}).event_id in extremities(room.room_id)
    assert EventVisibility.objects.filter(last=None).count() == 2
