"""New events for a user, in stream order, page by page; memberships in any room among them."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from events.models import Event, IgnoredUser
from events.persist.batch import Incoming
from events.sending.send import RoomSetup, create_room
from events.sync.events_since import events_since
from events.sync.windows import examined_events
from events.tokens.sync_token import SyncToken
from streams.core.tokens import VectorToken
from streams.errors import TokenError
from tests.support.made_rooms import ALICE, MadeRoom
from tests.support.persisted_rooms import persist
from tests.support.syncing import here, ids, talk

pytestmark = pytest.mark.django_db

ANN, BOB, EVE = "@ann:site", "@bob:site", "@eve:else"
TEXT = "m.room.message"


def new(user, token, **arguments):
    """Event IDs since a position up to here."""
    return ids(events_since(user, token, now=here(), **arguments).events)


@pytest.fixture
def room():
    made = create_room(ANN)
    made.join(BOB)
    return made


def test_events_of_all_rooms_come_in_stream_order(room):
    other = create_room(BOB)
    token = here()
    said = [*talk(room, 1), *talk(other, 1, BOB), *talk(room, 2)]
    assert new(BOB, token) == said


def test_each_event_tells_both_of_its_places(room):
    token = here()
    talk(room, 1)
    (event,) = events_since(BOB, token, now=here()).events
    stored = Event.objects.get(event_id=event.event_id)
    assert (event.stream_ordering, event.writer) == (stored.stream_ordering, stored.instance_name)
    assert event.topological_ordering == stored.topological_ordering


def test_pages_hold_every_event_once(room):
    other = create_room(BOB)
    token, now = here(), None
    said = [event for _ in range(3) for event in (*talk(room, 2), *talk(other, 2, BOB))]
    now = here()
    found, more = [], True
    while more:
        page = events_since(BOB, token, limit=5, now=now)
        assert len(page.events) <= 5
        found += ids(page.events)
        token, more = page.token, page.more
    assert found == said
    assert token == now


def test_a_page_of_hidden_events_is_not_the_end(room):
    token = here()
    talk(room, examined_events(1) + 5)
    IgnoredUser.objects.create(user_id=BOB, ignored_user_id=ANN)
    said = talk(room, 1, BOB)
    first = events_since(BOB, token, limit=1, now=here())
    assert (first.events, first.more) == ((), True)
    assert new(BOB, first.token, limit=1) == said


def test_nothing_new_gives_the_newest_token(room):
    create_room(EVE)
    answer = events_since(BOB, here(), now=here())
    assert (answer.events, answer.token, answer.more) == ((), here(), False)


def test_rooms_of_others_are_not_told(room):
    token = here()
    talk(create_room(EVE), 2, EVE)
    assert new(BOB, token) == []


def test_what_the_user_may_not_see_is_left_out():
    room = create_room(ANN, setup=RoomSetup(history_visibility="joined"))
    token = here()
    talk(room, 2)
    joined = room.join(BOB)
    said = talk(room, 1)
    assert new(BOB, token) == [joined.event_id, *said]


@pytest.mark.parametrize("visibility", ["joined", "shared", "world_readable"])
def test_an_invite_is_told_whatever_the_room_shows(visibility):
    room = create_room(ANN, setup=RoomSetup(join_rule="invite", history_visibility=visibility))
    token = here()
    talk(room, 1)
    invite = room.invite(ANN, BOB)
    talk(room, 1)
    assert new(BOB, token) == [invite.event_id]


@pytest.mark.parametrize("how", ["kick", "ban"])
def test_a_room_is_told_up_to_the_end_of_the_membership(room, how):
    token = here()
    said = talk(room, 1)
    out = getattr(room, how)(ANN, BOB)
    talk(room, 2)
    assert new(BOB, token) == [*said, out.event_id]


def test_nothing_is_told_after_a_leave(room):
    room.leave(BOB)
    token = here()
    talk(room, 2)
    assert new(BOB, token) == []


def test_an_invite_from_another_server_is_known_by_its_event_alone():
    token = here()
    made = MadeRoom(room_id="!elsewhere:b.test", ruled=True)
    invite = made.member(BOB, "invite", sender=ALICE)
    persist([Incoming(invite.json, room_version=made.version, event_id=invite.event_id, outlier=True)])
    assert new(BOB, token) == [invite.event_id]
    assert new(EVE, token) == []


def test_a_token_of_all_streams_will_do(room):
    token = SyncToken({"events": here(), "receipts": VectorToken(5)})
    said = talk(room, 1)
    assert new(BOB, token) == said


def test_a_token_ahead_of_us_is_taken_back(room):
    answer = events_since(BOB, VectorToken(10**15), now=here())
    assert (answer.events, answer.token) == ((), here())


@pytest.mark.parametrize("bad", ["", "5", "events-5", "events-x@abc", SyncToken({"receipts": VectorToken(5)})])
def test_what_is_no_token_is_refused(bad):
    with pytest.raises(TokenError):
        events_since(BOB, bad, now=VectorToken(5))


def test_one_new_event_in_one_of_many_rooms_takes_few_queries(room):
    for _ in range(5):
        create_room(BOB)
    token = here()
    talk(room, 1)
    now = here()
    events_since(BOB, token, now=now)
    with CaptureQueriesContext(connection) as found:
        assert len(events_since(BOB, token, now=now).events) == 1
    assert len(found) <= 5
