"""The rooms of a sync, in small rooms: what is new, what is limited, who is invited, who has left."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from events.errors import InvalidQuery
from events.models import CurrentState, Event, IgnoredUser, TimelineGap
from events.persist.batch import Incoming
from events.reading.timeline import state_at
from events.sending.send import NewEvent, RoomSetup, create_room
from events.sync import rooms as sync_rooms
from events.sync.answers import RoomsSince
from events.sync.rooms import initial_sync
from events.sync.windows import examined_events
from events.tokens.sync_token import SyncToken
from events.visibility.access import forget_room
from streams.core.tokens import VectorToken
from streams.epochs import current_epoch
from streams.errors import TokenError
from tests.support.made_rooms import ALICE, MadeRoom
from tests.support.persisted_rooms import persist
from tests.support.syncing import first, here, ids, only, since, talk

pytestmark = pytest.mark.django_db

ANN, BOB, EVE = "@ann:site", "@bob:site", "@eve:else"
TEXT, TOPIC = "m.room.message", "m.room.topic"


@pytest.fixture
def room():
    made = create_room(ANN)
    made.join(BOB)
    return made


def state_keys(events):
    return {(event.type, event.state_key) for event in events}


# --- the first answer -------------------------------------------------------------------------------------------------


def test_first_answer_has_the_last_events_and_the_state_before_them(room):
    said = talk(room, 3)
    answer = only(first(ANN, events=3).rooms)
    assert (ids(answer.timeline), answer.limited) == (said, True)
    assert set(ids(answer.state)) == set(state_at(said[0]).before.values())


def test_first_answer_of_a_short_room_is_not_limited():
    room = create_room(ANN)
    answer = only(first(ANN).rooms)
    assert not answer.limited
    assert len(answer.timeline) == CurrentState.objects.filter(room_id=room.room_id).count()
    assert answer.state == ()


def test_state_at_a_key_that_the_timeline_changes_is_that_of_before(room):
    old = room.set_state(ANN, TOPIC, {"topic": "old"})
    talk(room, 2)
    new = room.set_state(ANN, TOPIC, {"topic": "new"})
    answer = only(first(ANN, events=2).rooms)
    assert new.event_id in ids(answer.timeline)
    assert old.event_id in ids(answer.state)
    assert new.event_id not in ids(answer.state)


def test_prev_batch_of_the_first_answer_names_its_first_event(room):
    talk(room, 5)
    answer = only(first(ANN, events=2).rooms)
    assert answer.prev_batch == answer.timeline[0].token


def test_first_answer_ends_at_its_token(room):
    said = talk(room, 2)
    now = here()
    talk(room, 2)
    room.set_state(ANN, TOPIC, {"topic": "later"})
    room.leave(BOB)
    answer = only(first(BOB, now).rooms)
    assert ids(answer.timeline)[-1] == said[-1]
    assert (TOPIC, "") not in state_keys(answer.state)


def test_first_answer_at_an_old_token_reads_below_all_that_came_since(room):
    said = talk(room, 3)
    now = here()
    talk(room, examined_events(3) + 5)
    answer = only(first(BOB, now, events=3).rooms)
    assert (ids(answer.timeline), answer.limited) == (said, True)


def test_only_joined_rooms_are_in_the_first_answer(room):
    room.leave(BOB)
    create_room(ANN)
    assert first(BOB).rooms == ()


def test_a_user_nobody_knows_gets_an_empty_answer(room):
    for user in ("@stranger:site", "", "@nul\0:site", "@" + "x" * 300):
        assert first(user).rooms == ()
        assert since(user, VectorToken(1)) == RoomsSince()


def test_what_the_user_does_not_see_is_not_in_the_first_answer():
    room = create_room(ANN, setup=RoomSetup(history_visibility="joined"))
    secret = talk(room, 2)
    joined = room.join(BOB)
    answer = only(first(BOB).rooms)
    assert not set(secret) & set(ids(answer.timeline))
    assert ids(answer.timeline)[-1] == joined.event_id


# --- paging rooms -----------------------------------------------------------------------------------------------------


def pages(user, size, between=lambda: None):
    """All pages; ``between`` happens between them."""
    with connection.cursor() as cursor:
        token = SyncToken({"events": here()}, current_epoch(cursor))
    page = initial_sync(user, size, now=token)
    found = [page]
    while page.next_page is not None:
        between()
        page = initial_sync(user, size, after=page.next_page)
        found.append(page)
    return found


def test_pages_go_by_last_activity():
    rooms = [create_room(ANN) for _ in range(5)]
    talk(rooms[1], 1)
    talk(rooms[3], 1)
    order = [room.room_id for page in pages(ANN, 2) for room in page.rooms]
    assert order == [rooms[n].room_id for n in (3, 1, 4, 2, 0)]


def test_no_room_is_repeated_or_lost_while_events_arrive():
    rooms = [create_room(ANN) for _ in range(5)]
    talk_next = iter([0, 4, 1, 2])

    def between():
        talk(rooms[next(talk_next)], 1)
        create_room(ANN)

    found = pages(ANN, 2, between)
    assert [room.room_id for page in found for room in page.rooms] == [room.room_id for room in reversed(rooms)]
    assert {page.token.of("events") for page in found} == {found[0].token.of("events")}


def test_rooms_of_many_events_come_on_more_pages(monkeypatch):
    for _ in range(3):
        create_room(ANN)
    monkeypatch.setattr(sync_rooms, "MOST_TOGETHER", 25)
    assert [len(page.rooms) for page in pages(ANN, 3)] == [1, 1, 1]


def test_many_rooms_with_news_tell_fewer_events_of_each(monkeypatch):
    rooms = [create_room(ANN) for _ in range(3)]
    token = here()
    for room in rooms:
        talk(room, 4)
    monkeypatch.setattr(sync_rooms, "MOST_TOGETHER", 6)
    assert [(len(room.timeline), room.limited) for room in since(ANN, token).joined] == [(2, True)] * 3


def test_a_room_left_between_pages_is_still_told_as_it_was():
    rooms = [create_room(ANN) for _ in range(3)]
    found = pages(ANN, 2, lambda: rooms[0].leave(ANN))
    assert [room.room_id for page in found for room in page.rooms] == [room.room_id for room in reversed(rooms)]


def test_incremental_answers_go_on_where_the_first_page_was(room):
    talk(room, 2)
    token = first(ANN).token.of("events")
    later = talk(room, 2)
    assert ids(only(since(ANN, token).joined).timeline) == later


@pytest.mark.parametrize("bad", ["", "5", "x:events-5@abc", "5:", "99999999999999999999:events-5@abc", 5, "5:events-5"])
def test_what_is_no_page_is_refused(bad):
    with pytest.raises((InvalidQuery, TokenError)):
        first(ANN, after=bad)


@pytest.mark.parametrize("bad", [0, -1, None, "5", 2.0])
def test_unusable_limits_are_refused(bad):
    with pytest.raises(InvalidQuery):
        first(ANN, rooms=bad)
    with pytest.raises(InvalidQuery):
        first(ANN, events=bad)
    with pytest.raises(InvalidQuery):
        since(ANN, VectorToken(1), limit=bad)


# --- what is new ------------------------------------------------------------------------------------------------------


def test_nothing_new_is_an_empty_answer(room):
    assert not since(ANN, here())
    assert since(ANN, here()) == RoomsSince()


def test_new_events_come_in_stream_order(room):
    token = here()
    said = talk(room, 3)
    answer = only(since(ANN, token).joined)
    assert (ids(answer.timeline), answer.limited, answer.state) == (said, False, ())
    assert answer.prev_batch == f"s{token.base}"


def test_more_events_than_wanted_are_limited_to_the_newest(room):
    token = here()
    said = talk(room, 5)
    answer = only(since(ANN, token, limit=2).joined)
    assert (ids(answer.timeline), answer.limited) == (said[-2:], True)
    assert answer.prev_batch == f"s{answer.timeline[0].stream_ordering - 1}"


def test_exactly_as_many_events_as_wanted_are_not_limited(room):
    token = here()
    talk(room, 2)
    assert not only(since(ANN, token, limit=2).joined).limited


def test_limited_answers_bring_the_state_that_changed_before_the_timeline(room):
    token = here()
    topic = room.set_state(ANN, TOPIC, {"topic": "t"})
    talk(room, 3)
    answer = only(since(ANN, token, limit=2).joined)
    assert ids(answer.state) == [topic.event_id]


def test_state_that_the_timeline_brings_is_not_told_twice(room):
    token = here()
    topic = room.set_state(ANN, TOPIC, {"topic": "t"})
    answer = only(since(ANN, token).joined)
    assert (ids(answer.timeline), answer.state) == ([topic.event_id], ())


def test_state_changed_before_and_in_the_timeline_is_that_of_before(room):
    token = here()
    old = room.set_state(ANN, TOPIC, {"topic": "old"})
    talk(room, 3)
    new = room.set_state(ANN, TOPIC, {"topic": "new"})
    answer = only(since(ANN, token, limit=2).joined)
    assert ids(answer.timeline)[-1] == new.event_id
    assert ids(answer.state) == [old.event_id]


def test_rooms_without_anything_new_are_left_out(room):
    other = create_room(ANN)
    token = here()
    talk(other, 1)
    assert only(since(ANN, token).joined).room_id == other.room_id


def test_an_answer_tells_where_the_next_one_begins(room):
    token = here()
    said = talk(room, 1)
    answer = since(ANN, token)
    assert (answer.upto, ids(only(answer.joined).timeline)) == (here(), said)
    assert not since(ANN, answer.upto)


def test_rooms_that_a_cache_rules_out_are_not_looked_at(room):
    other = create_room(ANN)
    token = here()
    talk(room, 1)
    talk(other, 1)
    answer = since(ANN, token, changed_rooms=frozenset([other.room_id]))
    assert only(answer.joined).room_id == other.room_id


def test_a_token_ahead_of_us_is_taken_back(room):
    assert since(ANN, VectorToken(10**15)) == RoomsSince()


def test_many_hidden_events_end_the_search_and_limit_the_answer(room):
    token = here()
    talk(room, 2, BOB)
    talk(room, examined_events(5))
    IgnoredUser.objects.create(user_id=BOB, ignored_user_id=ANN)
    answer = only(since(BOB, token, limit=5).joined)
    assert (answer.timeline, answer.limited, answer.prev_batch) == ((), True, f"s{here().base}")


def test_hidden_events_are_no_news(room):
    token = here()
    talk(room, 2)
    IgnoredUser.objects.create(user_id=BOB, ignored_user_id=ANN)
    assert since(BOB, token) == RoomsSince()


def test_late_events_come_at_the_end(room):
    base = talk(room, 1)[0]
    top = talk(room, 3)
    token = here()
    late = room.on(base).send(BOB, TEXT, {"body": "late"})
    newest = talk(room, 1)
    answer = only(since(ANN, token).joined)
    assert ids(answer.timeline) == [late.event_id, *newest]
    paged = only(first(ANN, events=6).rooms)
    assert ids(paged.timeline).index(late.event_id) < ids(paged.timeline).index(top[-1])


# --- joining, leaving, being invited ----------------------------------------------------------------------------------


def test_a_newly_joined_room_is_told_whole_and_limited(room):
    other = create_room(ANN, setup=RoomSetup(history_visibility="shared"))
    talk(other, 3)
    token = here()
    joined = other.join(BOB)
    answer = only(since(BOB, token, limit=2).joined)
    assert (answer.whole, answer.limited, ids(answer.timeline)[-1]) == (True, True, joined.event_id)
    assert state_keys(answer.state) >= {("m.room.create", ""), ("m.room.member", ANN)}


def test_leave_and_rejoin_is_told_whole(room):
    token = here()
    room.leave(BOB)
    room.join(BOB)
    answer = only(since(BOB, token).joined)
    assert (answer.whole, answer.limited) == (True, True)


def test_a_change_of_name_is_no_new_join(room):
    token = here()
    named = room.set_state(BOB, "m.room.member", {"membership": "join", "displayname": "Bob"}, state_key=BOB)
    answer = only(since(BOB, token).joined)
    assert (answer.whole, ids(answer.timeline)) == (False, [named.event_id])


@pytest.mark.parametrize("how", ["leave", "kick", "ban"])
def test_a_room_that_the_user_is_out_of_is_told_up_to_that(room, how):
    token = here()
    seen = talk(room, 1)
    out = room.leave(BOB) if how == "leave" else getattr(room, how)(ANN, BOB)
    talk(room, 2)
    answer = since(BOB, token)
    left = only(answer.left)
    assert answer.joined == ()
    assert (ids(left.timeline), left.membership) == ([*seen, out.event_id], "ban" if how == "ban" else "leave")


def test_a_room_left_before_the_token_is_told_no_more(room):
    room.leave(BOB)
    token = here()
    talk(room, 1)
    assert since(BOB, token) == RoomsSince()


def test_joined_and_left_between_two_answers(room):
    other = create_room(ANN)
    token = here()
    other.join(BOB)
    said = talk(other, 1)
    out = other.leave(BOB)
    assert ids(only(since(BOB, token).left).timeline)[-2:] == [*said, out.event_id]


@pytest.mark.parametrize("then", ["ban", "invite"])
def test_a_room_left_tells_no_state_of_the_time_after_the_user_was_in(then):
    room = create_room(ANN, setup=RoomSetup(history_visibility="joined"))
    room.join(BOB)
    token = here()
    known = room.set_state(ANN, TOPIC, {"topic": "for members"})
    talk(room, 30)
    room.leave(BOB)
    room.set_state(ANN, TOPIC, {"topic": "secret"})
    getattr(room, then)(ANN, BOB)
    if then == "invite":
        room.leave(BOB)
    left = only(since(BOB, token, limit=1).left)
    assert [event.event_id for event in left.state if event.type == TOPIC] == [known.event_id]


def test_an_invite_comes_with_stripped_state(room):
    other = create_room(
        ANN, setup=RoomSetup(join_rule="invite", state=[NewEvent(ANN, "m.room.name", {"name": "n"}, "")])
    )
    token = here()
    invite = other.invite(ANN, BOB)
    pending = only(since(BOB, token).invited)
    assert (pending.event.event_id, pending.membership) == (invite.event_id, "invite")
    told = {(one["type"], one["state_key"]) for one in pending.stripped_state}
    assert told == {
        *(("m.room.create", ""), ("m.room.join_rules", ""), ("m.room.name", "")),
        *(("m.room.member", ANN), ("m.room.member", BOB)),
    }
    assert all(set(one) == {"type", "state_key", "content", "sender"} for one in pending.stripped_state)
    assert only(first(BOB).invited) == pending


def test_an_invite_is_told_once(room):
    other = create_room(ANN)
    other.invite(ANN, BOB)
    token = here()
    talk(other, 1)
    assert since(BOB, token) == RoomsSince()


def test_an_invite_that_is_declined_leaves_only_the_own_membership():
    other = create_room(ANN, setup=RoomSetup(history_visibility="joined"))
    token = here()
    other.invite(ANN, BOB)
    talk(other, 1)
    no = other.leave(BOB)
    left = only(since(BOB, token).left)
    assert ids(left.timeline)[-1] == no.event_id
    assert left.state == ()
    assert all(event.type == "m.room.member" for event in left.timeline)


def test_an_invite_taken_back_within_one_answer_is_not_told_as_an_invite():
    other = create_room(ANN)
    token = here()
    other.invite(ANN, BOB)
    other.kick(ANN, BOB)
    answer = since(BOB, token)
    assert answer.invited == ()
    assert only(answer.left).room_id == other.room_id


def test_an_invite_from_another_server_comes_with_what_that_told():
    made = MadeRoom(room_id="!elsewhere:b.test", ruled=True)
    name = {"type": "m.room.name", "state_key": "", "content": {"name": "there"}, "sender": ALICE}
    told = [name, "no event", {"type": 5, "content": {}}, {**name, "more": "than stripped"}]
    parts = {"type": "m.room.member", "state_key": BOB, "content": {"membership": "invite"}}
    invite = made.send({**parts, "sender": ALICE, "unsigned": {"invite_room_state": told}})
    token = here()
    persist([Incoming(invite.json, room_version=made.version, event_id=invite.event_id, outlier=True)])
    pending = only(since(BOB, token).invited)
    own = {**parts, "sender": ALICE}
    assert (pending.event.event_id, list(pending.stripped_state)) == (invite.event_id, [name, name, own])
    assert only(first(BOB).invited) == pending
    assert since(BOB, here()) == RoomsSince()


def test_an_invite_from_another_server_that_is_declined_there_leaves_the_membership():
    made = MadeRoom(room_id="!elsewhere:b.test", ruled=True)
    token = here()
    invite = made.member(BOB, "invite", sender=ALICE)
    no = made.member(BOB, "leave")
    for event in (invite, no):
        persist([Incoming(event.json, room_version=made.version, event_id=event.event_id, outlier=True)])
    answer = since(BOB, token)
    assert (answer.invited, ids(only(answer.left).timeline)[-1]) == ((), no.event_id)
    assert first(BOB).invited == ()


def test_a_forgotten_room_tells_no_more_than_the_leave(room):
    token = here()
    talk(room, 2)
    out = room.leave(BOB)
    forget_room(BOB, room.room_id)
    assert ids(only(since(BOB, token).left).timeline) == [out.event_id]


def test_a_knock_comes_with_stripped_state():
    other = create_room(ANN, setup=RoomSetup(join_rule="knock"))
    token = here()
    knock = other.knock(BOB)
    pending = only(since(BOB, token).knocked)
    assert (pending.event.event_id, pending.membership) == (knock.event_id, "knock")


def test_memberships_beyond_the_token_are_taken_back(room):
    token = here()
    said = talk(room, 1)
    now = here()
    room.leave(BOB)
    talk(room, 1)
    answer = since(BOB, token, now)
    assert ids(only(answer.joined).timeline) == said
    assert answer.left == ()


def test_current_state_is_told_although_the_rule_hides_its_event():
    room = create_room(ANN, setup=RoomSetup(history_visibility="joined"))
    before = room.send(ANN, TEXT, {"body": "before"}).event_id
    room.join(BOB)
    token = here()
    hidden = room.on(before).set_state(ANN, TOPIC, {"topic": "from a fork"})
    talked = room.on(before).send(ANN, TEXT, {"body": "from the same fork"})
    answer = only(since(BOB, token).joined)
    assert CurrentState.objects.get(room_id=room.room_id, type=TOPIC).event_id == hidden.event_id
    assert hidden.event_id in ids(answer.timeline)
    assert talked.event_id not in ids(answer.timeline)


# --- gaps -------------------------------------------------------------------------------------------------------------


def test_an_answer_that_crosses_a_gap_is_limited_and_begins_after_it(room):
    token = here()
    talk(room, 2)
    above = room.send(ANN, TEXT, {"body": "above the gap"})
    TimelineGap.objects.create(room_id=room.room_id, stream_ordering=above.stream_ordering, instance_name="master")
    last = talk(room, 1)
    answer = only(since(BOB, token).joined)
    assert (ids(answer.timeline), answer.limited) == ([above.event_id, *last], True)
    assert answer.prev_batch == f"s{above.stream_ordering - 1}"


def test_a_state_change_before_a_gap_is_in_the_answer(room):
    token = here()
    topic = room.set_state(ANN, "m.room.topic", {"topic": "before the gap"})
    above = room.send(ANN, TEXT, {"body": "above the gap"})
    TimelineGap.objects.create(room_id=room.room_id, stream_ordering=above.stream_ordering, instance_name="master")
    told = only(since(ANN, token).joined)
    assert (ids(told.timeline), ids(told.state), told.limited) == ([above.event_id], [topic.event_id], True)


def test_a_gap_that_was_crossed_before_does_not_limit(room):
    above = room.send(ANN, TEXT, {"body": "above the gap"})
    TimelineGap.objects.create(room_id=room.room_id, stream_ordering=above.stream_ordering, instance_name="master")
    token = here()
    talk(room, 1)
    assert not only(since(BOB, token).joined).limited


# --- several writers --------------------------------------------------------------------------------------------------


def test_what_a_faster_writer_has_told_is_not_told_again(room):
    base = here().base
    said = talk(room, 4)
    at = dict(Event.objects.filter(event_id__in=said).values_list("event_id", "stream_ordering"))
    Event.objects.writable().filter(event_id__in=said[2:]).update(instance_name="fast")
    token = VectorToken(base, {"fast": at[said[2]]})
    answer = only(since(ANN, token, VectorToken(at[said[1]], {"fast": at[said[3]]})).joined)
    assert ids(answer.timeline) == [said[0], said[1], said[3]]


def test_what_a_slower_writer_has_not_completed_is_not_told(room):
    base = here().base
    said = talk(room, 3)
    at = dict(Event.objects.filter(event_id__in=said).values_list("event_id", "stream_ordering"))
    Event.objects.writable().filter(event_id=said[0]).update(instance_name="fast")
    answer = only(since(ANN, VectorToken(base), VectorToken(base, {"fast": at[said[2]]})).joined)
    assert ids(answer.timeline) == [said[0]]


# --- cost -------------------------------------------------------------------------------------------------------------


def queries(work):
    """How many queries it makes, once they are planned."""
    work()
    with CaptureQueriesContext(connection) as found:
        work()
    return len(found)


def test_the_number_of_queries_does_not_depend_on_the_number_of_rooms():
    token = here()
    create_room(ANN).set_state(ANN, TOPIC, {"topic": "t"})
    one = queries(lambda: first(ANN)), queries(lambda: since(ANN, token))
    for _ in range(4):
        create_room(ANN).set_state(ANN, TOPIC, {"topic": "t"})
    assert (queries(lambda: first(ANN)), queries(lambda: since(ANN, token))) == one
    assert max(one) <= 14
