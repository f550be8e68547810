"""Sync and pages of a room together: where one ends the other goes on. On committed events, as both end where the stream is."""

from __future__ import annotations

import pytest

from events.reading.pages import timeline
from events.sending.send import create_room
from events.sync.rooms import initial_sync, rooms_since
from events.tokens.positions import events_token
from tests.support.syncing import ids, only, talk

pytestmark = pytest.mark.django_db(transaction=True)

ANN, BOB = "@ann:site", "@bob:site"


@pytest.fixture
def room():
    made = create_room(ANN)
    made.join(BOB)
    return made


def all_of(user, room, before):
    """Every page down from a token, newest first."""
    found = []
    while before is not None:
        page = timeline(room.room_id, user, limit=7, before=before)
        found += ids(page.events)
        before = page.end
    return found


def test_pages_go_on_where_a_first_answer_begins(room):
    talk(room, 20)
    answer = only(initial_sync(BOB, events=5).rooms)
    whole = [*all_of(BOB, room, answer.prev_batch)[::-1], *ids(answer.timeline)]
    assert whole == ids(only(initial_sync(BOB, events=100).rooms).timeline)


def test_pages_go_on_where_a_limited_answer_begins(room):
    old = ids(only(initial_sync(BOB, events=100).rooms).timeline)
    token = events_token()
    said = talk(room, 20)
    answer = only(rooms_since(BOB, token, limit=5).joined)
    assert [*all_of(BOB, room, answer.prev_batch)[::-1], *ids(answer.timeline)] == [*old, *said]


def test_pages_go_on_where_an_answer_that_is_not_limited_begins(room):
    old = ids(only(initial_sync(BOB, events=100).rooms).timeline)
    token = events_token()
    talk(room, 2)
    answer = only(rooms_since(BOB, token).joined)
    assert all_of(BOB, room, answer.prev_batch)[::-1] == old
