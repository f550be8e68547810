"""Storing events as they come: order, repetition, outliers, backfill, bad input, several writers."""

import json
import random
import threading

import pytest
from django.db import connection, connections, transaction

from events.errors import Reason
from events.models import Event, EventJson, EventVisibility, Room
from events.persist import batch as storing
from events.persist.batch import Incoming
from events.reading.timeline import state_at
from streams.errors import InTransaction
from tests.support.made_rooms import ALICE, BOB, EVE, public_room
from tests.support.persisted_rooms import (
    current_state,
    extremities,
    gaps,
    incoming,
    persist,
    persist_all,
    ranges,
    replayed_state,
)
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import in_thread, server_process, waiting_sessions

pytestmark = pytest.mark.django_db(transaction=True)


def tables(room_id):
    """What the tables say of a room, without positions."""
    facts = Event.objects.filter(room_id=room_id).values_list("event_id", "rejected_reason", "soft_failed", "outlier")
    return sorted(facts, key=str), extremities(room_id), gaps(room_id), current_state(room_id), ranges(room_id)


@pytest.mark.parametrize("version", ["1", "3", "10", "11", "12"])
def test_a_conversation(version):
    made = public_room(version)
    made.member(BOB, "join")
    message = made.message(sender=BOB)
    outcome = persist([incoming(event) for event in made.events])
    assert [stored.event_id for stored in outcome.stored] == [event.event_id for event in made.events]
    assert (outcome.refused, outcome.duplicates, outcome.bad_content_hashes) == ([], [], 0)
    assert extremities(made.room_id) == [message.event_id]
    assert current_state(made.room_id) == replayed_state(made.room_id) == state_at(message.event_id).after
    room = Room.objects.get()
    assert (room.room_id, room.creator, room.create_event_id) == (made.room_id, ALICE, made.create.event_id)
    assert bytes(EventJson.objects.get(pk=message.event_id).json) == message.json


def test_any_order_within_a_batch_stores_the_same():
    made = public_room()
    bob = made.member(BOB, "join")
    one, other = made.message(prev=[bob]), made.topic("x", prev=[bob])
    made.message(prev=[one, other])
    persist([incoming(event) for event in made.events])
    expected = tables(made.room_id)
    order = list(Event.objects.order_by("stream_ordering").values_list("event_id", flat=True))
    assert order == [event.event_id for event in made.events]
    again = public_room(room_id="!again:a.test")
    bob = again.member(BOB, "join")
    one, other = again.message(prev=[bob]), again.topic("x", prev=[bob])
    again.message(prev=[one, other])
    shuffled = random.Random(7).sample(again.events, len(again.events))
    persist([incoming(event) for event in shuffled])
    found = tables(again.room_id)
    assert [len(part) for part in found] == [len(part) for part in expected]
    assert [(kind, first == last) for _, kind, first, last in found[4]] == [
        (kind, first == last) for _, kind, first, last in expected[4]
    ]


def test_a_batch_that_is_repeated_changes_nothing():
    made = public_room()
    made.message()
    batch = [incoming(event) for event in made.events]
    persist(batch)
    expected = tables(made.room_id)
    outcome = persist([*batch, batch[0]])
    assert outcome.stored == [] and len(outcome.duplicates) == len(batch) + 1
    assert tables(made.room_id) == expected


def test_event_twice_in_a_batch_is_stored_once():
    made = public_room()
    outcome = persist([incoming(event) for event in made.events * 2])
    assert len(outcome.stored) == len(outcome.duplicates) == len(made.events)


def test_several_rooms_in_one_batch():
    rooms = [public_room(room_id=f"!{name}:a.test") for name in "cab"]
    outcome = persist(
        [incoming(event) for group in zip(*(room.events for room in rooms), strict=True) for event in group]
    )
    assert len(outcome.stored) == 12
    for room in rooms:
        assert extremities(room.room_id) == [room.events[-1].event_id]
        assert current_state(room.room_id) == state_at(room.events[-1].event_id).after


def test_rejected_and_soft_failed_events_are_stored_and_change_nothing():
    made = public_room()
    bob = made.member(BOB, "join")
    ban = made.member(BOB, "ban", sender=ALICE)
    persist_all(made.events)
    before = current_state(made.room_id)
    late, stranger = made.message(prev=[bob], sender=BOB), made.topic("no", prev=[ban])
    stranger = made.send({"type": "m.room.topic", "state_key": "", "sender": EVE}, prev=[ban])
    outcome = persist([incoming(late), incoming(stranger)])
    verdicts = {stored.event_id: (stored.rejected_reason, stored.soft_failed) for stored in outcome.stored}
    assert verdicts[late.event_id] == (None, True)
    assert verdicts[stranger.event_id] == (f"auth events: {EVE} is not joined", False)
    assert (extremities(made.room_id), current_state(made.room_id)) == ([ban.event_id], before)
    above = made.message(prev=[stranger, late, ban])
    persist([incoming(above)])
    assert extremities(made.room_id) == [above.event_id]


def test_event_without_auth_events_is_rejected_when_it_comes_from_outside():
    made = public_room()
    bare = made.send({"type": "m.room.message", "auth_events": []})
    outcome = persist([incoming(event) for event in made.events])
    assert outcome.stored[-1].event_id == bare.event_id
    assert "create event" in outcome.stored[-1].rejected_reason


def test_outlier_gets_its_place_when_it_comes_again():
    made = public_room()
    topic = made.topic("x")
    above = made.message()
    persist_all(made.events[:4])
    persist([incoming(topic, outlier=True)])
    assert state_at(topic.event_id).after is None and extremities(made.room_id) == [made.events[3].event_id]
    first = Event.objects.get(event_id=topic.event_id).stream_ordering
    assert persist([incoming(topic, outlier=True)]).duplicates == [topic.event_id]
    persist([incoming(topic), incoming(above)])
    stored = Event.objects.get(event_id=topic.event_id)
    assert not stored.outlier and stored.stream_ordering > first
    assert extremities(made.room_id) == [above.event_id]
    assert current_state(made.room_id)["m.room.topic", ""] == topic.event_id


def test_outlier_of_a_room_that_is_not_here_is_kept_for_later():
    made = public_room()
    invite = made.member(BOB, "invite", sender=ALICE)
    persist([incoming(invite, outlier=True, room_version="10")])
    assert Room.objects.get().create_event_id is None
    persist([incoming(event) for event in made.events])
    assert Room.objects.get().create_event_id == made.create.event_id
    assert extremities(made.room_id) == [invite.event_id]


def test_backfilled_events_get_negative_positions_and_fill_gaps():
    made = public_room()
    bob = made.member(BOB, "join")
    one, two, three = (made.message(prev=[bob]), made.message(), made.message())
    persist([incoming(event) for event in made.events[:5]])
    before = (extremities(made.room_id), current_state(made.room_id))
    outcome = persist([incoming(three, backfilled=True), incoming(two, backfilled=True)])
    assert all(stored.stream_ordering < 0 for stored in outcome.stored)
    assert gaps(made.room_id) == [one.event_id]
    assert Event.objects.get(event_id=two.event_id).state_unresolved
    assert (extremities(made.room_id), current_state(made.room_id)) == before


def test_backfilled_events_on_known_ground_have_states_and_ranges():
    made = public_room()
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    bob = made.member(BOB, "join")
    persist([incoming(event) for event in made.events])
    one, two = made.message(prev=[bob]), made.message()
    outcome = persist([incoming(two, backfilled=True), incoming(one, backfilled=True)])
    places = {stored.event_id: stored.stream_ordering for stored in outcome.stored}
    assert places[one.event_id] < places[two.event_id] < 0
    assert gaps(made.room_id) == [] and extremities(made.room_id) == [bob.event_id]
    covered = EventVisibility.objects.filter(user_id=BOB, first=places[one.event_id], last=places[two.event_id])
    assert [row.kind for row in covered] == ["joined"]


# --- bad input ----------------------------------------------------------------------------------------------------


def refused(outcome):
    """(place, reason) of what was refused."""
    return [(entry.place, entry.error.reason) for entry in outcome.refused]


def changed(event, **parts):
    value = {**json.loads(event.json), **parts}
    return Incoming(json.dumps(value).encode(), event.room_version)


def test_room_version_must_be_that_of_the_room():
    made = public_room("10")
    persist([incoming(event) for event in made.events])
    outcome = persist([incoming(made.message(), room_version="9")])
    assert refused(outcome) == [(0, Reason.WRONG_ROOM_VERSION)]


def test_room_version_is_known_from_the_room_or_the_batch():
    made = public_room("11")
    outcome = persist([Incoming(event.json) for event in made.events])
    assert len(outcome.stored) == 4
    assert len(persist([Incoming(made.message().json)]).stored) == 1


def test_tampered_content_is_counted_and_stored():
    made = public_room()
    message = made.message()
    tampered = changed(message, content={"body": "other"})
    outcome = persist([*(incoming(event) for event in made.events[:-1]), tampered])
    assert outcome.bad_content_hashes == 1 and len(outcome.stored) == 5


def test_thousand_prev_events():
    """A server may have taken such an event once, so those that come with its history are stored."""
    made = public_room()
    base = made.events[-1]
    heads = [made.message(prev=[base]) for _ in range(1_000)]
    merge = made.message(prev=heads)
    storing.persist([incoming(event) for event in made.events], verified=True, history_of="a.test")
    assert extremities(made.room_id) == [merge.event_id]


# --- several writers ----------------------------------------------------------------------------------------------


def test_nothing_is_stored_when_the_transaction_fails(monkeypatch):
    made = public_room()
    monkeypatch.setattr("events.persist.write_rows._RoomWriter.finish", lambda self, using: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        persist([incoming(event) for event in made.events])
    monkeypatch.undo()
    assert not Event.objects.exists() and not Room.objects.exists()
    assert len(persist([incoming(event) for event in made.events]).stored) == 4


def test_threads_that_write_the_same_rooms_do_not_hinder_each_other():
    rooms = [public_room(room_id=f"!{name}:a.test") for name in "abc"]
    persist([incoming(event) for room in rooms for event in room.events])
    bases = [room.events[-1] for room in rooms]
    works = []
    for _ in range(4):
        events = [room.message(prev=[base]) for room, base in zip(rooms, bases, strict=True) for _ in range(5)]
        works.append(random.Random(len(works)).sample(events, len(events)))
    errors = []

    def work(events):
        try:
            persist_all(events, 4)
        except Exception as error:  # noqa: BLE001 - told to the main thread
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work, args=[events]) for events in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * DEADLINE_SECONDS)
    assert errors == []
    for room in rooms:
        assert len(extremities(room.room_id)) == 20
        assert set(extremities(room.room_id)) == {event.event_id for event in room.events[4:]}
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*), count(DISTINCT stream_ordering) FROM events_event")
        assert cursor.fetchone() == (72, 72)


def test_backfilled_outlier_is_below_all_live_events():
    made = public_room()
    persist_all(made.events, 100)
    old = made.message()
    (stored,) = persist([incoming(old, outlier=True, backfilled=True)]).stored
    assert stored.stream_ordering < 0
    assert Event.objects.get(pk=stored.stream_ordering).outlier


# --- isolation --------------------------------------------------------------------------------------------------------


def redaction_and_target():
    """Of a stored room: a redaction, and its target, which is not stored and is on another branch."""
    made = public_room()
    first = made.message()
    made.message(prev=[first])
    persist_all(made.events)
    target = made.message(prev=[first])
    return made.redaction(target, prev=[made.events[-2]]), target


def test_a_batch_sees_what_it_waited_for_whatever_isolation_is_the_default():
    """A redaction was stored while its target waited for the room. At REPEATABLE READ the target was stored without it."""
    redaction, target = redaction_and_target()
    waiting = []

    def store_target() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET default_transaction_isolation = 'repeatable read'")
        waiting.append(server_process())
        persist([incoming(target)])

    with transaction.atomic():
        persist([incoming(redaction)])
        thread = in_thread(store_target)
        wait_until(lambda: waiting and waiting[0] in waiting_sessions())
    thread.join()
    assert Event.objects.get(event_id=target.event_id).redacted_by == redaction.event_id


def test_a_transaction_that_cannot_see_what_others_store_is_refused():
    made = public_room()
    with pytest.raises(InTransaction, match="at READ COMMITTED"), transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        persist([incoming(event) for event in made.events])
    assert not Event.objects.exists()
