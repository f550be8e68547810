"""Events of other servers are stored when the servers that have to have signed them; the caller says who looks."""

import json
from dataclasses import replace

import pytest
from django.db import connection

from events.errors import Reason, SignaturesUnchecked
from events.format.parsing import parse_event
from events.format.signatures import SigningKey
from events.integrity.repair import check_room
from events.models import Event, EventJson, Room
from events.persist.batch import Incoming, persist, with_state
from events.room.verification import KeyRing, PublicKey
from events.sending.finish import finish_event
from events.sending.send import create_room
from state.rules.room_versions import room_version
from tests.support.made_rooms import ALICE, BOB, MadeRoom, public_room
from tests.support.room_data import ROOMS, event_lines

pytestmark = pytest.mark.django_db
KEYS = {f"{name}.test": SigningKey.from_seed(f"{name}.test", "ed25519:1", name.upper() * 43) for name in "abe"}
RING = KeyRing({server: {key.key_id: PublicKey(key.public)} for server, key in KEYS.items()})


def signed(event, key=None):
    """The event as its sender's server sends it, or with another one's signature only."""
    whole = json.loads(event.json)
    key = key or KEYS[whole["sender"].partition(":")[2]]
    return json.dumps(key.sign_event(whole, room_version(event.room_version))).encode()


def sent(event, key=None, **about):
    """The same as it comes in."""
    known = {"outlier": event.outlier, "backfilled": event.backfilled}
    return Incoming(signed(event, key), event.room_version, event.event_id, **{**known, **about})


def reasons(outcome):
    return {refused.place: refused.error.reason for refused in outcome.refused}


@pytest.mark.parametrize("said", [{}, {"verifier": RING, "verified": True}, {"verified": False}, {"verifier": None}])
def test_nobody_who_looks_is_an_error_that_tells_the_way_out(said):
    made = public_room()
    persist([sent(event) for event in made.events], verified=True)
    message = sent(made.message())
    with pytest.raises(SignaturesUnchecked, match=r"verifier=KEYS.*verified=True"):
        persist([message], **said)
    assert Event.objects.count() == len(made.events) - 1


@pytest.mark.parametrize("version", ["1", "2", "5", "10", "12"])
def test_signed_events_are_stored_and_others_refused_alone(version):
    made = public_room(version)
    bob = made.member(BOB, "join")
    base = made.message()
    bad = made.message(prev=[base], sender=BOB)
    above = made.message(prev=[bad])
    beside = made.message(prev=[base], sender=BOB)
    keys = {bad.event_id: KEYS["a.test"]}
    if version in ("1", "2"):  # IDs of the room are those of a.test
        for event in (bob, beside):
            keys[event.event_id] = None
    batch = [sent(event, keys.get(event.event_id)) for event in made.events]
    if version in ("1", "2"):
        for place, event in enumerate(made.events):
            if event in (bob, beside):
                both = KEYS["a.test"].sign_event(json.loads(batch[place].json), room_version(version))
                batch[place] = replace(batch[place], json=json.dumps(both).encode())
    outcome = persist(batch, verifier=RING)
    assert reasons(outcome) == {
        made.events.index(bad): Reason.BAD_SIGNATURE,
        made.events.index(above): Reason.MISSING_PREV_EVENTS,
    }
    assert {stored.event_id for stored in outcome.stored} == {e.event_id for e in made.events} - {
        bad.event_id,
        above.event_id,
    }
    assert check_room(made.room_id).clean
    assert not persist([batch[made.events.index(bad)], batch[made.events.index(above)]], verified=True).refused


def test_a_real_room_is_stored_with_the_keys_of_its_servers():
    ring = KeyRing.from_json((ROOMS / "server_keys.json").read_bytes())
    lines = [json.loads(line) for line in event_lines("v9_restricted")]
    batch = [Incoming(json.dumps(line["json"]).encode(), "9", line["event_id"]) for line in lines]
    outcome = persist(batch, verifier=ring)
    assert reasons(outcome) == {} and len(outcome.stored) == len(lines)
    assert set(reasons(persist(batch, verifier=KeyRing({}))).values()) == {Reason.BAD_SIGNATURE}


def test_told_state_is_looked_at_like_all_else():
    made = public_room()
    topic = made.topic("a lie")
    last = made.message()
    state = [signed(event, KEYS["b.test"] if event is topic else None) for event in made.events if event.is_state]
    outcome = persist(with_state(sent(last), state), verifier=RING)
    assert reasons(outcome) == {len(state) - 1: Reason.BAD_SIGNATURE, len(state): Reason.BAD_STATE}
    assert not Event.objects.filter(event_id__in=[topic.event_id, last.event_id]).exists()


def test_a_backfilled_event_that_nobody_signed_leaves_its_gap():
    made = public_room()
    below = made.message()
    old = made.message()
    batch = [sent(event) for event in made.events[:-2]]
    assert not persist(batch, verifier=RING).refused
    outcome = persist([sent(below, KEYS["b.test"], backfilled=True), sent(old, backfilled=True)], verifier=RING)
    assert reasons(outcome) == {0: Reason.BAD_SIGNATURE}
    assert Event.objects.get(event_id=old.event_id).state_unresolved
    assert not persist([sent(below, backfilled=True)], verifier=RING).refused
    assert not Event.objects.get(event_id=old.event_id).state_unresolved


@pytest.mark.parametrize("bad_first", [True, False])
def test_a_copy_without_signature_does_not_keep_a_signed_one_out(bad_first):
    made = public_room()
    message = made.message()
    copies = [sent(message, KEYS["b.test"]), sent(message)]
    batch = [*(sent(event) for event in made.events[:-1]), *(copies if bad_first else copies[::-1])]
    outcome = persist(batch, verifier=RING)
    assert list(reasons(outcome).values()) == [Reason.BAD_SIGNATURE] and outcome.duplicates == []
    assert bytes(EventJson.objects.get(pk=message.event_id).json) == signed(message)


def test_a_stored_event_that_comes_again_unsigned_is_refused_and_stays():
    made = public_room()
    persist([sent(event) for event in made.events], verifier=RING)
    again = persist([sent(made.events[-1], KEYS["b.test"])], verifier=RING)
    assert list(reasons(again).values()) == [Reason.BAD_SIGNATURE]
    assert bytes(EventJson.objects.get(pk=made.events[-1].event_id).json) == signed(made.events[-1])


def test_keys_are_asked_for_before_anything_is_locked(transactional_db):
    made = public_room()
    asked = []

    def keys_of(server, wanted):
        asked.append(server)
        assert not connection.in_atomic_block
        return RING(server, wanted)

    made.member(BOB, "join")
    assert not persist([sent(event) for event in made.events], verifier=keys_of).refused
    assert asked == ["a.test", "b.test"]


def test_what_the_callable_raises_passes_and_nothing_is_stored():
    made = public_room()

    def keys_of(server, wanted):
        raise ConnectionError(server)

    with pytest.raises(ConnectionError, match=r"a\.test"):
        persist([sent(event) for event in made.events], verifier=keys_of)
    assert not Event.objects.exists()


def test_what_is_made_here_needs_none():
    room = create_room("@alice:a.test")
    assert room.send("@alice:a.test", "m.room.message", {"body": "x"}).rejected_reason is None


def test_a_misfit_is_judged_by_what_is_kept_of_it():
    made = MadeRoom("10", ruled=True)
    message = made.message()
    lie = json.loads(signed(message)) | {"content": {"body": "I owe you 1000000"}}
    batch = [*(sent(event) for event in made.events[:-1]), Incoming(json.dumps(lie).encode())]
    outcome = persist(batch, verifier=RING)
    assert outcome.refused == [] and outcome.bad_content_hashes == 1
    kept = bytes(EventJson.objects.get(pk=message.event_id).json)
    assert parse_event(kept, json.loads(kept), "10").event_id == message.event_id and b"1000000" not in kept


@pytest.mark.parametrize("auth", ["none", "unknown", "all"])
@pytest.mark.parametrize("version", ["1", "10", "11", "12"])
def test_an_outlier_that_nobody_signed_is_rejected_unless_its_auth_events_tell(version, auth):
    """An invite by a third party needs no signature of its sender's server: then the rules have to be asked."""
    made = public_room(version)
    content = {"membership": "invite", "third_party_invite": {"signed": {"mxid": BOB, "token": "t", "signatures": {}}}}
    parts = {"type": "m.room.member", "state_key": BOB, "content": content}
    if auth != "all":
        named = [] if auth == "none" else ["$unknown:a.test"]
        parts["auth_events"] = [[event_id, {}] for event_id in named] if version == "1" else named
    if version == "1":
        parts["event_id"] = "$forged:e.test"
    forged = made.send(parts)
    outcome = persist(
        [*(sent(event) for event in made.events[:-1]), sent(forged, KEYS["e.test"], outlier=True)], verifier=RING
    )
    assert outcome.refused == []
    assert Event.objects.get(event_id=forged.event_id).rejected_reason is not None


@pytest.mark.parametrize("forger", [None, "e.test"])
@pytest.mark.parametrize("first", [True, False])
def test_a_forged_create_event_does_not_tell_the_rooms_version(forger, first):
    """With a fitting hash, and unsigned, or signed by the server of a sender whose room it is not."""
    made = public_room("10")
    sender = "@alice:a.test" if forger is None else "@eve:e.test"
    parts = json.loads(made.create.json) | {"sender": sender, "content": {"room_version": "9", "creator": sender}}
    forged = finish_event(parts, "9", None if forger is None else KEYS[forger])
    batch = [Incoming(signed(event)) for event in made.events]
    outcome = persist([Incoming(forged.json), *batch] if first else [*batch, Incoming(forged.json)], verifier=RING)
    assert len(outcome.stored) + len(outcome.refused) == len(batch) + 1
    assert Room.objects.get(room_id=made.room_id).room_version == "10"
    if forger is None:  # an event that is signed may come first, and is rejected by the rules
        assert {stored.event_id for stored in outcome.stored} == {event.event_id for event in made.events}


# --- who begins a room ----------------------------------------------------------------------------------------------------


def squatting(made, sender="@eve:e.test", **content):
    """A create event of another server for the same room, signed by that."""
    squatter = MadeRoom(made.version, made.room_id)
    parts = {"type": "m.room.create", "state_key": "", "sender": sender}
    if made.version == "1":
        parts["event_id"] = "$squat:e.test"
    return squatter.send({**parts, "content": {"room_version": made.version, "creator": sender, **content}}, prev=[])


@pytest.mark.parametrize("version", ["1", "10", "11"])
@pytest.mark.parametrize("how", ["first", "last", "batch before", "outlier", "outlier before", "given"])
def test_a_create_event_of_another_server_does_not_take_the_room(version, how):
    made = public_room(version)
    squat = squatting(made)
    real = [sent(event) for event in made.events]
    if how.endswith("before") or how == "given":
        batch = [sent(squat, outlier=how.startswith("outlier"))]
        if how == "given":
            alone = made.message(prev=["$gone:a.test"])
            batch = with_state(sent(alone), [signed(squat), *(signed(event) for event in made.events[1:-1])])
        persist(batch, verifier=RING)
        assert not Room.objects.exclude(create_event_id=None).exists()
        outcome = persist(real, verifier=RING)
    else:
        other = sent(squat, outlier=how == "outlier")
        outcome = persist([*real, other] if how == "last" else [other, *real], verifier=RING)
    assert [one.error for one in outcome.refused if one.error.reason is not Reason.UNKNOWN_ROOM] == []
    assert Room.objects.get().create_event_id == made.create.event_id
    accepted = set(Event.objects.filter(rejected_reason=None).values_list("event_id", flat=True))
    assert {event.event_id for event in made.events[:4]} <= accepted and squat.event_id not in accepted
    assert check_room(made.room_id).clean


@pytest.mark.parametrize("named", [[], {}, {"a": []}, 5, True, None, "99", ""])
@pytest.mark.parametrize("said", [{"verifier": RING}, {"verified": True}])
def test_a_create_event_that_names_no_version_is_refused_alone(named, said):
    made, other = public_room(), MadeRoom("10", "!other:a.test")
    whole = json.loads(other.create.json)
    text = json.dumps(whole | {"content": {"creator": ALICE, "room_version": named}}).encode()
    outcome = persist([Incoming(text), *(sent(event) for event in made.events)], **said)
    assert list(reasons(outcome)) == [0] and len(outcome.stored) == len(made.events)


@pytest.mark.parametrize("told", ["9", "11"])
@pytest.mark.parametrize("how", ["invite", "create event", "both"])
@pytest.mark.parametrize("joining", [True, False])
def test_a_version_that_another_server_told_gives_way_to_the_rooms_own(told, how, joining):
    """Servers that invite tell the room's version with it; nobody has signed that."""
    made = public_room("10")
    squatter = MadeRoom(told, made.room_id)
    invite = squatter.member("@alice:a.test", "invite", sender="@eve:e.test", prev=["$x"])
    squat = squatting(MadeRoom(told, made.room_id))
    first = [invite] if how == "invite" else [squat] if how == "create event" else [squat, invite]
    outcome = persist([sent(event, outlier=True) for event in first], verifier=RING)
    if how == "create event":
        assert [refused.error.reason for refused in outcome.refused] == [
            Reason.UNKNOWN_ROOM
        ] and not Room.objects.exists()
    else:
        assert outcome.refused == [] and Room.objects.get().room_version == told
    last = made.message()
    batch = [sent(event) for event in made.events]
    if joining:
        batch = with_state(sent(last), [signed(event) for event in made.events if event.is_state])
    assert persist(batch, verifier=RING).refused == []
    room = Room.objects.get()
    assert (room.room_version, room.create_event_id) == ("10", made.create.event_id)
    assert check_room(made.room_id).clean
    late = persist([sent(squat), sent(squat, outlier=True)], verifier=RING)
    assert {refused.error.reason for refused in late.refused} <= {Reason.WRONG_ROOM_VERSION}
    assert Room.objects.get().room_version == "10"


def test_the_version_of_a_room_with_events_stays():
    made, other = public_room("10"), MadeRoom("9")
    persist([sent(event) for event in made.events], verifier=RING)
    outcome = persist([sent(other.create)], verifier=RING)
    assert reasons(outcome) == {0: Reason.WRONG_ROOM_VERSION} and Room.objects.get().room_version == "10"


@pytest.mark.parametrize("lie", [None, 0, 1])
def test_an_outlier_that_was_read_by_another_version_is_read_anew(lie):
    made = public_room("11")
    message = made.message()
    text = signed(message)
    copies = [text, text]
    if lie is not None:
        copies[lie] = json.dumps(json.loads(text) | {"content": {"body": "I owe you 1000000"}}).encode()
    assert persist([Incoming(copies[0], "10", outlier=True)], verifier=RING).refused == []
    outcome = persist([*(sent(event) for event in made.events[:-1]), Incoming(copies[1], "11")], verifier=RING)
    assert outcome.refused == [] and check_room(made.room_id).clean
    kept = EventJson.objects.get(pk=message.event_id)
    assert (bytes(kept.json), kept.room_version) == (text, "11")
