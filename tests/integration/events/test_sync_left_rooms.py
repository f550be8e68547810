"""Rooms that a user is out of, in answers to a sync: as a real server tells them."""

from __future__ import annotations

import pytest
from django.db import connection

from events.models import CurrentStateDelta
from events.reading.pages import OLDEST, timeline, timeline_of, visible_to
from events.sending.send import RoomSetup, create_room
from events.sync.rooms import initial_sync
from events.tokens.sync_token import SyncToken
from events.visibility.access import forget_room
from events.visibility.explain import explain_visibility
from streams.core.tokens import VectorToken
from streams.epochs import current_epoch
from tests.support.made_rooms import ALICE, MadeRoom
from tests.support.persisted_rooms import incoming, persist, persist_all
from tests.support.syncing import first, here, ids, only, since, talk

pytestmark = pytest.mark.django_db

ANN, BOB = "@ann:site", "@bob:site"
TOPIC = "m.room.topic"


def read_epoch():
    with connection.cursor() as cursor:
        return current_epoch(cursor)


def room_of(setting="shared", join_rule="public"):
    room = create_room(ANN, setup=RoomSetup(history_visibility=setting, join_rule=join_rule))
    room.join(BOB)
    return room


# --- the first answer -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["kick", "ban"])
def test_first_answer_has_the_rooms_that_the_user_was_put_out_of(how):
    room = room_of()
    seen = talk(room, 3)
    out = getattr(room, how)(ANN, BOB)
    talk(room, 2)
    answer = first(BOB, events=3)
    left = only(answer.left)
    assert answer.rooms == () and (left.room_id, left.membership) == (room.room_id, "ban" if how == "ban" else "leave")
    assert (ids(left.timeline), left.limited, left.whole) == ([*seen[1:], out.event_id], True, True)
    assert since(BOB, here()).left == ()


def test_first_answer_lacks_rooms_that_the_user_left_or_has_forgotten():
    room_of().leave(BOB)
    room = room_of()
    room.kick(ANN, BOB)
    forget_room(BOB, room.room_id)
    assert first(BOB).left == ()


def test_first_answer_of_a_room_put_out_of_ends_with_that_in_what_is_seen_and_in_its_state():
    room = room_of("joined")
    topic = room.set_state(ANN, TOPIC, {"topic": "for members"})
    talk(room, 3)
    room.leave(BOB)
    secret = room.set_state(ANN, TOPIC, {"topic": "secret"})
    talk(room, 2)
    ban = room.ban(ANN, BOB)
    left = only(first(BOB, events=3).left)
    assert ids(left.timeline)[-1] == ban.event_id
    told = {*ids(left.timeline), *ids(left.state)}
    assert secret.event_id not in told
    assert [event.event_id for event in left.state if event.type == TOPIC] == [topic.event_id]


def test_first_answer_tells_no_state_to_who_was_never_in():
    room = create_room(ANN, setup=RoomSetup(history_visibility="joined", join_rule="invite"))
    room.invite(ANN, BOB)
    secret = room.set_state(ANN, TOPIC, {"topic": "secret"})
    kick = room.kick(ANN, BOB)
    left = only(first(BOB).left)
    assert ids(left.timeline)[-1] == kick.event_id and left.state == ()
    assert secret.event_id not in ids(left.timeline)


def test_state_of_a_room_put_out_of_is_not_guessed_when_nothing_tells_how_it_grew():
    room = room_of("joined")
    room.leave(BOB)
    room.set_state(ANN, TOPIC, {"topic": "secret"})
    room.ban(ANN, BOB)
    CurrentStateDelta.objects.writable().delete()
    assert only(first(BOB).left).state == ()


def test_rooms_put_out_of_come_with_the_first_page_alone():
    rooms = [room_of() for _ in range(3)]
    rooms[0].kick(ANN, BOB)
    page = initial_sync(BOB, rooms=1, now=SyncToken({"events": here()}, read_epoch()))
    assert [room.room_id for room in page.left] == [rooms[0].room_id] and page.next_page is not None
    assert initial_sync(BOB, rooms=1, after=page.next_page).left == ()


def test_a_kick_from_a_room_elsewhere_is_in_the_first_answer():
    made = MadeRoom(room_id="!elsewhere:b.test", ruled=True)
    invite = made.member(BOB, "invite", sender=ALICE)
    kick = made.member(BOB, "leave", sender=ALICE)
    for event in (invite, kick):
        persist([incoming(event, outlier=True)])
    assert ids(only(first(BOB).left).timeline)[-1] == kick.event_id


# --- what is new ------------------------------------------------------------------------------------------------------


def test_what_is_seen_between_a_leave_and_the_end_of_a_ban_is_told():
    """As a real server: history shared, left, banned, the ban taken back; the last events up to that, limited."""
    room = room_of()
    room.leave(BOB)
    token = here()
    talk(room, 12)
    ban = room.ban(ANN, BOB)
    said = talk(room, 7)
    end = room.kick(ANN, BOB)
    talk(room, 2)
    left = only(since(BOB, token, limit=10).left)
    assert (left.limited, left.membership) == (True, "leave")
    assert ids(left.timeline)[1:] == [ban.event_id, *said, end.event_id] and len(left.timeline) == 10


def test_what_is_seen_up_to_a_ban_is_told():
    room = room_of()
    room.leave(BOB)
    token = here()
    said = talk(room, 3)
    ban = room.ban(ANN, BOB)
    talk(room, 1)
    left = only(since(BOB, token).left)
    assert (ids(left.timeline), left.limited, left.state) == ([*said, ban.event_id], False, ())


def test_what_only_members_see_between_a_leave_and_a_ban_is_not_told():
    room = room_of("joined")
    room.leave(BOB)
    token = here()
    room.set_state(ANN, TOPIC, {"topic": "secret"})
    talk(room, 3)
    ban = room.ban(ANN, BOB)
    left = only(since(BOB, token).left)
    assert (ids(left.timeline), left.state) == ([ban.event_id], ())


# --- pages ------------------------------------------------------------------------------------------------------------


def left_on_a_fork():
    """(room, what lies on the other side of the fork: it was here before the leave, and ends deeper; the leave)."""
    made = MadeRoom(ruled=True)
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    join = made.member(BOB, "join")
    deep = [made.message(prev=[join]), made.message(), made.message()]
    leave = made.member(BOB, "leave", prev=[join])
    persist_all(made.events, 1)
    return made, deep, leave


def test_pages_of_who_left_on_a_fork_begin_at_the_leave():
    made, deep, leave = left_on_a_fork()
    newest = [event.event_id for event in timeline_of(BOB, made.room_id)]
    assert newest[0] == leave.event_id
    assert [one for one in newest if one in {event.event_id for event in deep}] == [deep[0].event_id]
    place = timeline(made.room_id, limit=1).events[0].token
    assert [event.event_id for event in timeline_of(BOB, made.room_id, before=place)] == newest
    assert timeline(made.room_id, ALICE, limit=1).events[0].event_id == deep[-1].event_id


def test_what_pages_of_who_left_on_a_fork_pass_over_is_still_seen():
    """It came before the leave: the rule, single events, pages going on and a sync have it."""
    made, deep, leave = left_on_a_fork()
    asked = [*ids(deep), leave.event_id]
    assert [answer.seen for answer in explain_visibility(BOB, asked)] == [True] * len(asked)
    assert list(visible_to(BOB, asked)) == asked
    onwards = ids(timeline(made.room_id, BOB, after=OLDEST).events)
    assert set(asked) <= set(onwards)
    left = only(since(BOB, VectorToken(0), limit=100).left)
    assert set(asked) <= set(ids(left.timeline))
