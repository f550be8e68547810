"""Sync tokens that are handed out: what they carry, what is refused."""

from __future__ import annotations

import pytest
from django.db import connection

from events.sending.send import create_room
from events.sync.rooms import initial_sync, rooms_since
from events.tokens.positions import current_token, events_token, read_events_token, read_token, room_text, token_text
from events.tokens.sync_token import SyncToken
from streams import registry
from streams.core.tokens import VectorToken
from streams.db.sequences import move_forward
from streams.epochs import begin_epoch, current_epoch
from streams.errors import EpochChanged, TokenError
from streams.models import StreamPosition
from tests.support.writing import session

pytestmark = pytest.mark.django_db(transaction=True)

ANN = "@ann:site"


@pytest.fixture
def epoch():
    with connection.cursor() as cursor:
        return current_epoch(cursor)


@pytest.fixture
def ahead(positions_by_hand):
    """Two writers, one ahead of the other."""
    make, events = StreamPosition.objects.create, registry.get("events")
    with session() as cursor:
        move_forward(cursor, events.declaration.sequence, max(9, events.sequence_value(cursor)))
    slow = make(stream="events", instance_name="slow", position=5)
    fast = make(stream="events", instance_name="fast", position=9)
    return slow, fast


def test_what_is_handed_out_is_read_again():
    create_room(ANN)
    token = current_token(["events", "receipts"])
    assert read_token(token_text(token)) == token
    assert token.of("events") == events_token()


def test_a_writer_that_is_ahead_is_written_by_its_number(ahead, epoch):
    token = current_token()
    assert token.of("events") == VectorToken(5, {"fast": 9})
    assert token_text(token) == f"events-m5~{ahead[1].pk}.9@{epoch}"
    assert read_token(token_text(token)) == token
    assert room_text(token.of("events")) == f"m5~{ahead[1].pk}.9"


def test_a_writer_without_a_number_is_left_out(ahead):
    assert token_text(SyncToken({"events": VectorToken(5, {"nobody": 9})}, "abc")) == "events-5@abc"
    assert room_text(VectorToken(5, {"nobody": 9})) == "s5"


@pytest.mark.parametrize("text", ["events-5", "events-m5~77777.9@abc", "", "events", None, 7])
def test_what_was_not_handed_out_here_is_refused(text):
    with pytest.raises(TokenError):
        read_token(text)


def test_a_token_of_before_a_restore_is_refused_everywhere():
    for _ in range(2):
        create_room(ANN)
    page = initial_sync(ANN, rooms=1)
    text = token_text(page.token)
    with connection.cursor() as cursor:
        begin_epoch(cursor, "a test put a backup back")
    with pytest.raises(EpochChanged, match="a test put a backup back"):
        read_token(text)
    with pytest.raises(EpochChanged):
        rooms_since(ANN, text)
    with pytest.raises(EpochChanged):
        initial_sync(ANN, rooms=1, after=page.next_page)
    assert rooms_since(ANN, token_text(current_token())).joined == ()


def test_a_part_of_a_stream_that_is_not_known_is_carried(epoch):
    assert read_token(f"events-5,later-m1~2.3@{epoch}").carried == {"later": "m1~2.3"}


def test_the_position_of_events_is_taken_from_whatever_there_is(epoch):
    assert read_events_token(VectorToken(5)) == VectorToken(5)
    assert read_events_token(SyncToken({"events": VectorToken(5)})) == VectorToken(5)
    assert read_events_token(f"events-5@{epoch}") == VectorToken(5)
    with pytest.raises(TokenError, match="initial sync"):
        read_events_token(SyncToken({"receipts": VectorToken(5)}))


def test_an_answer_up_to_now_needs_no_position():
    room = create_room(ANN)
    token = initial_sync(ANN).token
    said = room.send(ANN, "m.room.message", {"body": "new"})
    (answer,) = rooms_since(ANN, token).joined
    assert [event.event_id for event in answer.timeline] == [said.event_id]
    assert not rooms_since(ANN, current_token())


def test_what_is_committed_after_the_position_was_taken_is_not_in_the_answer():
    room = create_room(ANN)
    token = initial_sync(ANN).token
    now = events_token()
    room.send(ANN, "m.room.message", {"body": "later"})
    assert not rooms_since(ANN, token, now)
    assert rooms_since(ANN, token)
