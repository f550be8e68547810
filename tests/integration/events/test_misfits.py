"""Events whose content does not fit their hash are redacted before they are stored, on every way in."""

import json
from datetime import timedelta

import pytest

from events.errors import Reason
from events.format.redaction import prune
from events.format.signatures import SigningKey
from events.integrity.repair import check_room, resync_room
from events.models import Event, EventJson
from events.operations.censor import censor
from events.persist.batch import Incoming, with_state
from events.persist.room_cache import clear_caches
from events.reading.event_json import load_events
from events.stored_states import parsed_events
from state.rules.room_versions import room_version
from streams.catalog.models import CacheInvalidation
from tests.integration.pipeline.test_archive import purge
from tests.integration.pipeline.test_restore import restore
from tests.support.made_rooms import ALICE, BOB, public_room
from tests.support.persisted_rooms import incoming, persist
from tests.support.signed_events import event_is_signed

pytestmark = pytest.mark.django_db(transaction=True)
LIE = "I owe you 1000000"
VERSIONS = ("1", "5", "10", "11", "12")


def tampered(event, **content):
    """The bytes of an event whose content somebody changed on the way; its ID, hash and signatures are the same."""
    whole = json.loads(event.json)
    return json.dumps(whole | {"content": whole["content"] | {"body": LIE} | content}).encode()


def lying(event, **about):
    """The same as it comes in."""
    return coming(event, tampered(event), **about)


def coming(event, text, **about):
    """Other bytes of an event as they come in."""
    return Incoming(text, event.room_version, event.event_id, **about)


def stored_text(event):
    return bytes(EventJson.objects.get(pk=event.event_id).json)


def is_redacted(event):
    """Nothing that is stored or given out of it tells the lie."""
    served = load_events([event.event_id])[event.event_id]
    version = room_version(event.room_version)
    right = prune(json.loads(event.json), version)
    assert json.loads(stored_text(event)) == right
    assert json.loads(served.federation_json()) == right
    client = served.client_event()
    assert client["content"] == right["content"] and "redacted_because" not in client["unsigned"]
    assert Event.objects.get(event_id=event.event_id).redacted_by is None
    return True


@pytest.mark.parametrize("version", VERSIONS)
def test_a_live_message_is_redacted(version):
    made = public_room(version)
    message = made.message()
    outcome = persist([*(incoming(event) for event in made.events[:-1]), lying(message)])
    assert outcome.refused == [] and outcome.bad_content_hashes == 1
    assert is_redacted(message)
    assert check_room(made.room_id).clean


def test_state_is_redacted_and_counts_as_what_is_left():
    made = public_room()
    topic = made.topic("dinner at seven")
    levels = made.state("m.room.power_levels", "", {"users": {ALICE: 100}, "events": {"m.x": 30}})
    last = made.message()
    texts = [
        incoming(event) if event not in (topic, levels) else coming(event, tampered(event, topic=LIE))
        for event in made.events
    ]
    assert persist(texts).refused == []
    assert is_redacted(topic) and is_redacted(levels)
    assert json.loads(stored_text(levels))["content"] == {"users": {ALICE: 100}, "events": {"m.x": 30}}
    assert stored_text(last) == last.json and check_room(made.room_id).clean


def test_backfilled_events_outliers_and_told_states_are_redacted():
    made = public_room()
    topic = made.topic("a")
    old = made.message()
    last = made.message()
    state = [event for event in made.events if event.is_state and event is not topic]
    batch = with_state(incoming(last), [*(event.json for event in state), tampered(topic, topic=LIE)])
    assert persist(batch).refused == []
    assert Event.objects.get(event_id=topic.event_id).outlier and is_redacted(topic)
    assert persist([lying(old, backfilled=True)]).refused == []
    assert is_redacted(old)


def test_what_a_relation_or_a_redaction_points_to_counts_only_where_it_survives():
    made = public_room()
    target = made.message()
    redaction = made.redaction(target)
    reply = made.message()
    relation = {"m.relates_to": {"event_id": target.event_id, "rel_type": "m.annotation"}}
    texts = [incoming(event) for event in made.events if event not in (redaction, reply)]
    whole = json.loads(redaction.json) | {"content": {"reason": LIE}}
    texts += [coming(redaction, json.dumps(whole).encode()), coming(reply, tampered(reply, **relation))]
    assert persist(texts).refused == []
    row = Event.objects.get(event_id=redaction.event_id)
    assert row.redacts is None and Event.objects.get(event_id=target.event_id).redacted_by is None
    assert Event.objects.get(event_id=reply.event_id).relates_to is None
    assert check_room(made.room_id).clean


# --- several copies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lie_first", [True, False])
@pytest.mark.parametrize("version", VERSIONS)
def test_of_two_copies_in_a_batch_the_whole_one_counts(version, lie_first):
    made = public_room(version)
    message = made.message()
    copies = [lying(message), incoming(message)]
    outcome = persist([*(incoming(e) for e in made.events[:-1]), *(copies if lie_first else copies[::-1])])
    assert outcome.duplicates == [message.event_id] and stored_text(message) == message.json


@pytest.mark.parametrize("lie_first", [True, False])
def test_the_content_of_an_outlier_that_fits_goes_with_the_place_of_a_copy_that_does_not(lie_first):
    made = public_room()
    message = made.message()
    copies = [lying(message), incoming(message, outlier=True)]
    persist([*(incoming(e) for e in made.events[:-1]), *(copies if lie_first else copies[::-1])])
    assert stored_text(message) == message.json and not Event.objects.get(event_id=message.event_id).outlier


def test_a_stored_event_is_not_replaced_by_any_copy():
    made = public_room()
    message, lied = made.message(), made.message()
    persist([*(incoming(event) for event in made.events[:-1]), lying(lied)])
    outcome = persist([lying(message), incoming(lied)])
    assert sorted(outcome.duplicates) == sorted([message.event_id, lied.event_id]) and not outcome.stored
    assert stored_text(message) == message.json and is_redacted(lied)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_outlier_that_was_redacted_is_whole_when_it_comes_with_its_place(version):
    made = public_room(version)
    message = made.message()
    persist([*(incoming(event) for event in made.events[:-1]), lying(message, outlier=True)])
    assert is_redacted(message)
    assert persist([incoming(message)]).stored[0].event_id == message.event_id
    assert stored_text(message) == message.json
    assert CacheInvalidation.objects.latest("stream_id").keys == [message.event_id]
    assert check_room(made.room_id).clean


@pytest.mark.parametrize("version", VERSIONS)
def test_an_outlier_that_is_whole_stays_so_when_a_lie_brings_its_place(version):
    made = public_room(version)
    topic = made.topic("dinner")
    persist([*(incoming(event) for event in made.events[:-1]), incoming(topic, outlier=True)])
    assert persist([coming(topic, tampered(topic, topic=LIE))]).stored[0].event_id == topic.event_id
    assert stored_text(topic) == topic.json
    assert check_room(made.room_id).clean


def test_another_event_of_an_outliers_chosen_id_is_refused():
    made = public_room("1")
    message = made.message()
    stolen = json.dumps(json.loads(message.json) | {"depth": 99}).encode()
    persist([*(incoming(event) for event in made.events[:-1]), incoming(message, outlier=True)])
    outcome = persist([Incoming(stolen)])
    assert [refused.error.reason for refused in outcome.refused] == [Reason.WRONG_EVENT_ID] and not outcome.stored
    assert persist([incoming(message)]).stored and check_room(made.room_id).clean


# --- what tells a room's version ------------------------------------------------------------------------------------------


def other_version(create, name):
    whole = json.loads(create.json)
    return json.dumps(whole | {"content": whole["content"] | {"room_version": name}}).encode()


def test_a_create_event_that_lies_tells_no_room_version():
    made = public_room("10")
    rest = [Incoming(event.json) for event in made.events[1:]]
    outcome = persist([Incoming(other_version(made.create, "9")), *rest])
    assert not outcome.stored and outcome.refused[0].error.reason is Reason.UNKNOWN_ROOM_VERSION
    assert {refused.error.reason for refused in outcome.refused[1:]} == {Reason.UNKNOWN_ROOM}
    told = persist([Incoming(other_version(made.create, "9"), "10"), *rest])
    assert told.refused == [] and len(told.stored) == len(made.events)


def test_from_version_11_on_the_id_covers_what_a_create_event_tells():
    made = public_room("11")
    whole = json.loads(made.create.json) | {"more": LIE}
    outcome = persist([Incoming(json.dumps(whole).encode()), *(Incoming(event.json) for event in made.events[1:])])
    assert outcome.refused == [] and is_redacted(made.create)


# --- signatures and censoring ---------------------------------------------------------------------------------------------


def test_signatures_of_what_is_kept_verify():
    key = SigningKey.from_seed("a.test", "ed25519:1", "A" * 43)
    made = public_room()
    message = made.message()
    signed = key.sign_event(json.loads(message.json), room_version("10"))
    text = json.dumps(signed | {"content": {"body": LIE}}).encode()
    persist([*(incoming(event) for event in made.events[:-1]), Incoming(text)])
    kept = json.loads(stored_text(message))
    assert kept["content"] == {} and event_is_signed(kept, room_version("10"), "a.test", {key.key_id: key.public})


def test_a_redacted_one_can_be_redacted_and_censored_again():
    made = public_room()
    message = made.message()
    redaction = made.redaction(message)
    persist([*(incoming(event) for event in made.events[:-2]), lying(message), incoming(redaction)])
    before = stored_text(message)
    assert Event.objects.get(event_id=message.event_id).redacted_by == redaction.event_id
    assert [done.failed for done in censor(timedelta(0), "default")][-1] == ()
    assert stored_text(message) == before and check_room(made.room_id).clean


# --- what an earlier version stored ---------------------------------------------------------------------------------------


def stored_in_full(made, *events):
    """As it was done once: in full, with what the content says in the columns."""
    persist([incoming(event) for event in made.events])
    for event in events:
        EventJson.objects.filter(pk=event.event_id).update(json=tampered(event, **{"m.relates_to": {"event_id": "$t"}}))
        Event.objects.writable().filter(event_id=event.event_id).update(relates_to="$t")
    clear_caches()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_check_finds_what_was_stored_in_full_and_a_resync_redacts_it(version):
    made = public_room(version)
    bob = made.member(BOB, "join")
    message = made.message()
    stored_in_full(made, bob, message)
    assert check_room(made.room_id).of("state") == 4
    facts = CacheInvalidation.objects.count()
    assert resync_room(made.room_id, "rooms").after.clean
    assert is_redacted(bob) and is_redacted(message)
    assert CacheInvalidation.objects.count() > facts


def test_an_archive_of_it_goes_back_redacted(tmp_path):
    made = public_room()
    message = made.message()
    for _ in range(3):
        made.message()
    stored_in_full(made, message)
    kept = tmp_path / "archives"
    outcome = purge("room", made.room_id, "--archive", str(kept))
    assert not EventJson.objects.filter(pk=message.event_id).exists()
    restore(outcome["archive"]["folder"])
    assert is_redacted(message) and Event.objects.get(event_id=message.event_id).relates_to is None
    assert check_room(made.room_id).clean


@pytest.mark.parametrize("how", ["another event", "twice"])
def test_text_of_another_event_does_not_come_back_from_an_archive(how, tmp_path):
    made = public_room()
    message = made.message()
    for _ in range(3):
        made.message()
    persist([incoming(event) for event in made.events])
    text = json.dumps(json.loads(message.json) | {"content": {"body": LIE}} | ({"depth": 77} if how != "twice" else {}))
    text = text[:-1] + ', "content": {"body": "x"}}' if how == "twice" else text
    EventJson.objects.filter(pk=message.event_id).update(json=text.encode())
    outcome = purge("room", made.room_id, "--archive", str(tmp_path / "archives"))
    restore(outcome["archive"]["folder"])
    assert Event.objects.filter(event_id=message.event_id).exists() and load_events([message.event_id]) == {}
    assert not EventJson.objects.filter(pk=message.event_id).exists()


# --- what is stored is read as it is ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [2**53, 2**64, 2**70, -(2**70), 1e22, 1.0, -0.0])
@pytest.mark.parametrize("version", ["1", "3", "5"])
def test_numbers_of_any_size_are_read_again_as_they_came(version, number):
    """Before version 6 integers have no bounds; one that is rounded fits neither the hash nor the ID."""
    made = public_room(version)
    least = -abs(number) if isinstance(number, int) else 0
    content = {"users": {ALICE: 100, BOB: least}, "invite": 50, "more": number}
    levels = made.state("m.room.power_levels", "", content)
    persist([incoming(event) for event in made.events])
    for event in (made.topic("new"), made.redaction(made.message())):
        clear_caches()
        outcome = persist([incoming(event) for event in made.events])
        assert outcome.refused == [] and outcome.bad_content_hashes == 0
        assert Event.objects.get(event_id=event.event_id).rejected_reason is None
    (read,) = parsed_events([levels.event_id]).values()
    assert read.content_hash_matches and read.json == stored_text(levels) == levels.json
    assert read.content == content and str(read.content["more"]) == str(number)
    assert check_room(made.room_id).clean
