"""Cached values that depend on a room's current state are dropped by every change of it, in every process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db.models import Max

from events.format.parsing import ParsedEvent
from events.integrity.repair import resync_room
from events.models import Event, EventJson, Room
from events.persist.batch import Persisted, with_state
from streams import registry
from streams.catalog.models import CacheInvalidation
from tests.integration.events.cached_topics import membership_of, reason_of, topic_of
from tests.integration.events.test_given_states import told
from tests.integration.events.test_misfits import tampered
from tests.integration.events.test_purging import purge
from tests.support.asked_process import AskedProcess, asked_process
from tests.support.made_rooms import ALICE, BOB, MadeRoom, public_room
from tests.support.persisted_rooms import incoming, persist, persist_all
from tests.support.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.django_db(transaction=True)


def put(event: ParsedEvent, **about: object) -> Persisted:
    """Persists the event. Returns once its position shows, before which what it makes old is dropped."""
    outcome = persist([incoming(event, **about)])
    assert not outcome.refused
    shows()
    return outcome.stored[0]


def shows() -> None:
    """Waits for the positions of what was appended so far."""
    last = CacheInvalidation.objects.aggregate(last=Max("stream_id"))["last"]
    if last is not None:
        registry.get("caches").wait_for(last, DEADLINE_SECONDS)


@pytest.fixture
def made() -> MadeRoom:
    room = public_room()
    room.topic("first")
    persist_all(room.events, 10)
    shows()
    return room


def rows_of_caches(after: int = 0) -> list[list[str]]:
    found = CacheInvalidation.objects.filter(cache_name="cs_cache_fake", stream_id__gt=after).order_by("stream_id")
    return list(found.values_list("keys", flat=True))


# --- one process --------------------------------------------------------------------------------------------------


def test_own_topic_and_join_drop_them(made):
    assert (topic_of(made.room_id), membership_of(made.room_id, BOB)) == ("first", None)
    put(made.topic("second"))
    assert topic_of(made.room_id) == "second"
    put(made.member(BOB, "join"))
    assert membership_of(made.room_id, BOB) == "join"
    put(made.member(BOB, "leave"))
    assert membership_of(made.room_id, BOB) == "leave"


def test_another_room_keeps_its_values(made):
    other = public_room(room_id="!other:a.test")
    other.topic("kept")
    persist_all(other.events, 10)
    shows()
    assert (topic_of(made.room_id), topic_of(other.room_id)) == ("first", "kept")
    hits = topic_of.hits
    put(made.topic("second"))
    assert (topic_of(made.room_id), topic_of(other.room_id)) == ("second", "kept")
    assert topic_of.hits == hits + 1


def test_redaction_of_an_entry_drops_it(made):
    assert topic_of(made.room_id) == "first"
    put(made.redaction(made.events[-1]))
    assert topic_of(made.room_id) is None


def test_redaction_of_a_membership_drops_what_depends_on_the_user(made):
    content = {"membership": "join", "reason": "x"}
    joined = made.send({"type": "m.room.member", "state_key": BOB, "sender": BOB, "content": content})
    put(joined)
    assert reason_of(made.room_id, BOB) == "x"
    put(made.redaction(joined))
    assert reason_of(made.room_id, BOB) is None


def test_redaction_of_a_message_drops_nothing(made):
    message = made.message()
    put(message)
    assert topic_of(made.room_id) == "first"
    hits, told = topic_of.hits, len(rows_of_caches())
    put(made.redaction(message))
    assert topic_of(made.room_id) == "first"
    assert topic_of.hits == hits + 1 and len(rows_of_caches()) == told


def test_backfilled_redaction_of_an_entry_drops_it(made):
    """The redaction is below a gap: it comes on ``backfill``, and its target is current."""
    topic = made.events[-1]
    redaction = made.redaction(topic)
    above = made.message()
    persist(told(made, above))
    shows()
    assert topic_of(made.room_id) == "first"
    put(redaction, backfilled=True)
    assert Event.objects.get(event_id=topic.event_id).redacted_by == redaction.event_id
    assert topic_of(made.room_id) is None


def test_an_entry_that_comes_whole_drops_what_was_left_of_it():
    """In a told state it came with content that does not fit its hash, and it comes again with its place."""
    room = public_room()
    topic = room.topic("real")
    above = room.message(prev=[room.message()])
    texts = [tampered(event) if event is topic else event.json for event in room.events if event.is_state]
    persist(with_state(incoming(above), texts))
    shows()
    assert topic_of(room.room_id) is None
    put(topic, backfilled=True)
    assert topic_of(room.room_id) == "real"


@pytest.mark.parametrize("wrong", ["text", "redaction"])
def test_repair_of_what_an_entry_says_drops_it(made, wrong):
    topic = made.events[-1]
    content = {"membership": "join", "reason": "x"}
    joined = made.send({"type": "m.room.member", "state_key": BOB, "sender": BOB, "content": content})
    put(joined)
    if wrong == "redaction":
        for event in (topic, joined):
            put(made.redaction(event))
        Event.objects.writable().filter(event_id__in=[topic.event_id, joined.event_id]).update(redacted_by=None)
    else:
        for event in (topic, joined):
            EventJson.objects.filter(pk=event.event_id).update(json=tampered(event))
    drop_all()
    assert (topic_of(made.room_id), reason_of(made.room_id, BOB)) == ("first", "x")
    assert resync_room(made.room_id, "rooms").after.clean
    shows()
    assert (topic_of(made.room_id), reason_of(made.room_id, BOB)) == (None, None)


def drop_all() -> None:
    for function in (topic_of, reason_of):
        function.values.clear()


def test_state_that_becomes_known_drops_that_it_was_unknown():
    """A room of old events; the change of state has a position of its own, without an event."""
    room = public_room()
    room.topic("old")
    persist([incoming(room.create, outlier=True)])
    persist([incoming(event, backfilled=True) for event in room.events[3:]])
    assert Room.objects.get().current_state_unresolved
    shows()
    assert (topic_of(room.room_id), membership_of(room.room_id, ALICE)) == (None, None)
    persist([incoming(event, backfilled=True) for event in room.events[:3]])
    assert not Room.objects.get().current_state_unresolved
    shows()
    assert (topic_of(room.room_id), membership_of(room.room_id, ALICE)) == ("old", "join")
    assert rows_of_caches()[-1] == [room.room_id, ALICE]


def test_purge_of_a_leaf_drops_what_it_changed():
    room = public_room()
    base = room.events[-1]
    bob = room.member(BOB, "join", prev=[base])
    line = [room.message(prev=[base])]
    line += [room.message(prev=[line[-1]])]
    line += [room.message(prev=[line[-1]])]
    persist_all([*room.events[:-4], *line, bob])
    shows()
    assert membership_of(room.room_id, BOB) == "join"
    assert purge(room.room_id, line[-1].depth)["leaves_removed"] == 1
    shows()
    assert membership_of(room.room_id, BOB) is None


# --- several processes --------------------------------------------------------------------------------------------


@pytest.fixture
def other(database_url: str) -> Iterator[AskedProcess]:
    """Another process that has the same cached functions."""
    with asked_process("tests.integration.events.cached_topics", database_url, "other") as process:
        yield process


def test_other_process_drops_before_the_position_shows(made, other):
    """The other process only reads. Once it has seen the position of a change it never serves what was before."""
    room, memberships = made.room_id, ["join", "leave"]
    assert other.ask("topic", room) == "first"
    for number in range(12):
        position = put(made.topic(f"topic-{number}")).stream_ordering
        other.ask("wait", "events", position)
        assert other.ask("topic", room) == f"topic-{number}"
        position = put(made.member(BOB, memberships[number % 2])).stream_ordering
        other.ask("wait", "events", position)
        assert other.ask("membership", room, BOB) == memberships[number % 2]
    assert other.ask("topic", room) == "topic-11"
    hits = int(other.ask("hits"))
    assert other.ask("topic", room) == "topic-11"
    assert int(other.ask("hits")) == hits + 1


def test_other_process_drops_for_a_redaction_before_the_position_shows(made, other):
    topic = made.events[-1]
    assert other.ask("topic", made.room_id) == "first"
    position = put(made.redaction(topic)).stream_ordering
    other.ask("wait", "events", position)
    assert other.ask("topic", made.room_id) == "None"


# --- workers of 1.43 ----------------------------------------------------------------------------------------------


def test_every_change_has_its_row_of_caches():
    """As the recorded main process does: a row with the room, and with the user where a membership changed."""
    room = public_room()
    persist_all(room.events)
    assert rows_of_caches() == [[room.room_id], [room.room_id, ALICE], [room.room_id], [room.room_id]]
    last = CacheInvalidation.objects.latest("stream_id").stream_id
    put(room.message())
    assert rows_of_caches(last) == []
    put(room.member(BOB, "join"))
    put(room.topic("x"))
    assert rows_of_caches(last) == [[room.room_id, BOB], [room.room_id]]


def test_batch_has_one_row_for_each_room():
    room = public_room()
    room.member(BOB, "join")
    persist([incoming(event) for event in room.events])
    assert rows_of_caches() == [[room.room_id, ALICE, BOB]]
