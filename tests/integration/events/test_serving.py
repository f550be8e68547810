"""Loading events to be given out."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from msgspec.structs import replace

from events.models import ErasedUser, EventJson
from events.reading.event_json import load_events
from tests.support.made_rooms import ALICE, BOB, MadeRoom
from tests.support.stored_rooms import store_room

pytestmark = pytest.mark.django_db


def test_a_page_of_redacted_events_is_one_query():
    made = MadeRoom()
    messages = [made.message() for _ in range(20)]
    redactions = [made.redaction(message) for message in messages]
    store_room(made.events)
    with CaptureQueriesContext(
        connection,
    ) as queries:
        found = load_events([message.event_id for message in messages])
    assert len(queries) == 1
    for message, redaction in zip(messages, redactions, strict=True):
        event = found[message.event_id].client_event()
        assert event["content"] == {} and event["unsigned"]["redacted_because"]["event_id"] == redaction.event_id


def test_event_comes_with_both_orderings_and_its_writer():
    made = MadeRoom()
    message = made.message()
    store_room(made.events, first_position=40)
    event = load_events([message.event_id])[message.event_id]
    assert (event.stream_ordering, event.topological_ordering, event.writer) == (42, 3, "test")
    assert event.token == "t3-42"


def test_redaction_applied_on_read_leaves_what_is_stored():
    made = MadeRoom()
    message = made.message()
    made.redaction(message)
    store_room(made.events)
    event = load_events([message.event_id])[message.event_id]
    assert event.json == message.json and b'"content":{}' in event.federation_json()


def test_redacted_event_stays_pruned_when_the_redaction_itself_is_gone():
    made = MadeRoom()
    message = made.message()
    redaction = made.redaction(message)
    store_room(made.events)
    EventJson.objects.filter(event_id=redaction.event_id).delete()
    event = load_events([message.event_id])[message.event_id]
    assert event.client_event()["content"] == {}
    assert event.client_event()["unsigned"] == {"redacted_by": redaction.event_id}


def test_erased_senders_are_given_out_pruned():
    made = MadeRoom()
    member = made.send(
        {
            "type": "m.room.member",
            "state_key": BOB,
            "sender": BOB,
            "content": {"membership": "join", "displayname": "B"},
        }
    )
    store_room(made.events)
    event = replace(load_events([member.event_id])[member.event_id], pruned=True)
    assert event.client_event()["content"] == {"membership": "join"} and b"displayname" not in event.federation_json()


def because(event):
    return load_events([event.event_id])[event.event_id].client_event()["unsigned"]["redacted_because"]


def test_redaction_of_an_erased_sender_comes_along_pruned():
    made = MadeRoom()
    message = made.message()
    redaction = made.send(
        {"type": "m.room.redaction", "sender": ALICE, "redacts": message.event_id, "content": {"reason": "of mine"}}
    )
    store_room(made.events)
    assert because(message)["content"]["reason"] == "of mine"
    ErasedUser.objects.create(user_id=ALICE)
    assert because(message)["event_id"] == redaction.event_id and "reason" not in because(message)["content"]


def test_what_is_not_here_is_left_out_however_strange_the_question():
    asked = ["$gone", "", "$" + "x" * 300, "$é\u2028", "$gone"] + [f"${n}" for n in range(10_000)]
    assert load_events(asked) == {}
    assert load_events([]) == {}


@pytest.mark.parametrize(
    "text",
    [
        '{"a":"\\u0000\\ud83d\\ude00"}',
        '{ "b" :\n\t[1, 2.50,1e2] }\r\n',
        '{"c":"\U0010ffff\uffff\u2028é\x7f"}',
        '{"d":"%s %% \\\\ \'"}',
    ],
)
def test_bytes_come_back_as_they_are_stored(text):
    made = MadeRoom()
    store_room(made.events)
    EventJson.objects.filter(event_id=made.alice.event_id).update(json=text.encode())
    event = load_events([made.alice.event_id])[made.alice.event_id]
    assert event.json == event.federation_json() == text.encode()
