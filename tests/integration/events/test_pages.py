"""Pages of a room, what stands around an event, and which events a user sees."""

import time

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from events.errors import BadToken, InvalidQuery, NotReadable, UnknownEvent, UnknownRoom
from events.models import ErasedUser, IgnoredUser
from events.reading.pages import OLDEST, events_around, timeline, visible_to
from events.reading.timeline import timeline as timeline_of_room
from events.tokens.positions import current_token, room_text, token_text
from state.groups.filters import StateFilter
from streams.core.tokens import VectorToken
from streams.db.driver import PREPARED_FROM_USE
from streams.errors import EpochChanged
from tests.support.made_rooms import ALICE, BOB, EVE, MadeRoom
from tests.support.stored_rooms import WRITER, store_room

pytestmark = pytest.mark.django_db

FAR = VectorToken(10**6)


def ids(events):
    return [event.event_id for event in events]


@pytest.fixture
def here(monkeypatch):
    """Rows of these tests are stored past the stream: its position is said to be far above them."""
    monkeypatch.setattr("events.reading.page_tokens.events_token", lambda using: FAR)


def talking_room(messages=12, **options):
    made = MadeRoom(**options)
    for _ in range(messages):
        made.message()
    store_room(made.events)
    return made


def walk(room_id, user_id, limit, **start):
    """All pages from there on, and what they have."""
    (way, token), pages = next(iter(start.items())), []
    while True:
        page = timeline(room_id, user_id, limit, **{way: token})
        pages.append(page)
        token = page.end
        if token is None:
            return pages, [event.event_id for page in pages for event in page.events]


# --- pages ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", [None, ALICE])
def test_pages_go_back_and_on_through_the_whole_room(user):
    made = talking_room()
    assert walk(made.room_id, user, 5, before=None)[1] == ids(reversed(made.events))
    assert walk(made.room_id, user, 5, after=OLDEST)[1] == ids(made.events)


def test_a_page_begins_beyond_its_token_in_both_directions():
    made = talking_room()
    third = timeline(made.room_id, ALICE, 1, after=OLDEST).events[0]
    assert third.token == timeline(made.room_id, ALICE, 1, after=OLDEST).end
    assert ids(timeline(made.room_id, ALICE, 2, after=third.token).events) == ids(made.events[1:3])
    assert timeline(made.room_id, ALICE, 2, before=third.token).events == ()


def test_last_page_has_no_end_and_a_full_one_has():
    made = talking_room(3)
    assert timeline(made.room_id, ALICE, 5).end is not None
    assert timeline(made.room_id, ALICE, 6).end is None


def test_empty_page_with_an_end_is_not_the_last(monkeypatch):
    """A thousand messages that the reader does not see lie above what they see."""
    made = MadeRoom()
    made.member(BOB, "join")
    seen = made.message()
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    for _ in range(1_100):
        made.message(sender=EVE)
    made.member(BOB, "join")
    store_room(made.events)
    IgnoredUser.objects.create(user_id=BOB, ignored_user_id=EVE)
    pages, found = walk(made.room_id, BOB, 10, before=None)
    assert len(pages[0].events) == 1 and seen.event_id in found
    first = timeline(made.room_id, BOB, 10, before=pages[0].events[-1].token)
    assert first.events == () and first.end is not None
    assert seen.event_id in ids(timeline(made.room_id, BOB, 10, before=first.end).events)


def test_a_page_is_one_query():
    made = talking_room()
    assert queries_of(lambda: timeline(made.room_id, ALICE, 5)) == 1


def queries_of(ask):
    """The queries of a question that a session has asked before, so that they are planned."""
    for _ in range(PREPARED_FROM_USE):
        ask()
    with CaptureQueriesContext(connection) as queries:
        ask()
    return len(queries)


def test_events_of_a_page_come_redacted_and_pruned():
    made = MadeRoom()
    rude, kind = made.message(), made.message(sender=EVE)
    redaction = made.redaction(rude)
    made.member(BOB, "join")
    store_room(made.events)
    ErasedUser.objects.create(user_id=EVE)
    by_id = {event.event_id: event for event in timeline(made.room_id, BOB).events}
    assert by_id[rude.event_id].client_event()["unsigned"]["redacted_by"] == redaction.event_id
    assert by_id[kind.event_id].pruned and by_id[kind.event_id].client_event()["content"] == {}


def test_who_left_reads_from_the_leave_on_down():
    made = MadeRoom()
    made.member(BOB, "join")
    leave = made.member(BOB, "leave")
    for _ in range(1_100):  # more than are looked at for a page: they cost the reader nothing
        made.message()
    store_room(made.events)
    assert timeline(made.room_id, BOB, 1).events[0].event_id == leave.event_id
    assert walk(made.room_id, BOB, 10, after=OLDEST)[1][-1] == leave.event_id


def test_old_messages_are_left_out_where_the_room_keeps_them_for_a_time():
    made = MadeRoom()
    made.state("m.room.retention", "", {"max_lifetime": 60_000})
    made.message()
    fresh = made.send({"type": "m.room.message", "origin_server_ts": time.time_ns() // 1_000_000})
    store_room(made.events)
    kinds = [event.type for event in timeline(made.room_id, ALICE).events]
    assert kinds.count("m.room.message") == 1 and timeline(made.room_id, ALICE).events[0].event_id == fresh.event_id
    assert len(timeline(made.room_id).events) == len(made.events)


def test_late_events_stand_at_their_depth_and_can_be_put_in_either_order():
    made = MadeRoom()
    low, high = made.message(), made.message()
    late = made.message(prev=[made.alice])
    store_room(made.events)
    page = timeline(made.room_id, ALICE, 3).events
    assert ids(page) == ids([high, late, low])
    assert ids(sorted(page, key=lambda event: event.stream_ordering)) == ids([low, high, late])


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_position_of_a_sync_bounds_a_page(here):
    made = talking_room(5)  # positions 2 to 8
    assert ids(timeline(made.room_id, ALICE, before="s5").events) == ids(reversed(made.events[:4]))
    assert ids(timeline(made.room_id, ALICE, after="s5").events) == ids(made.events[4:])
    assert timeline(made.room_id, ALICE, before="s1").events == ()


def test_vector_bounds_each_writer_by_itself(monkeypatch, here):
    made = talking_room(5)
    monkeypatch.setattr("events.reading.page_tokens._names", lambda token, using: {1: WRITER, 2: "other"})
    assert ids(timeline(made.room_id, ALICE, before="m3~1.6").events) == ids(reversed(made.events[:5]))
    assert ids(timeline(made.room_id, ALICE, before="m3~2.6").events) == ids(reversed(made.events[:2]))
    assert ids(timeline(made.room_id, ALICE, after="m3~1.6").events) == ids(made.events[5:])


def test_backfilled_events_are_below_every_sync():
    made = MadeRoom()
    made.message()
    store_room(made.events, first_position=-len(made.events))
    assert ids(timeline(made.room_id, None, before="s0").events) == ids(reversed(made.events))


def test_future_is_cut_to_the_present():
    made = talking_room(3)
    present = room_text(VectorToken(1))
    assert (
        timeline(made.room_id, ALICE, before="s999999999").events
        == timeline(made.room_id, ALICE, before=present).events
    )


def test_whole_sync_token_works_as_a_start(here):
    made = talking_room(3)
    text = token_text(current_token().replace(events=VectorToken(4)))
    assert ids(timeline(made.room_id, ALICE, before=text).events) == ids(reversed(made.events[:3]))


def test_sync_token_of_a_database_before_its_restore_is_refused():
    made = talking_room(1)
    with pytest.raises(EpochChanged):
        timeline(made.room_id, ALICE, before="events-5@abcdefghij")


HOSTILE = [
    "",
    "x",
    "5",
    "t",
    "t5",
    "s",
    "s5x",
    "sx",
    "m",
    "m5~9999.7",
    "m9~1.2",
    "t1-2-3",
    "s" + "9" * 19,
    "t5-\0",
]
HOSTILE += [
    "s" + "9" * 200_000,
    "t1-1;DROP TABLE",
    "events-5",
    "@",
    "m1" + "~1.2" * 20_000,
    "t\u0661-\u0661",
    5,
    b"t1-1",
    ["t1-1"],
]


@pytest.mark.parametrize("token", HOSTILE, ids=lambda token: repr(token)[:20])
def test_unreadable_tokens_are_refused(token):
    made = talking_room(1)
    for way in ("before", "after"):
        with pytest.raises(BadToken):
            timeline(made.room_id, ALICE, **{way: token})


# --- unusable questions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, -5, "10", None, 1.5, True])
def test_unusable_limits_are_refused(limit):
    made = talking_room(1)
    with pytest.raises(InvalidQuery):
        timeline(made.room_id, ALICE, limit)
    with pytest.raises(InvalidQuery):
        events_around(made.alice.event_id, ALICE, limit)
    with pytest.raises(InvalidQuery):
        timeline_of_room(made.room_id, limit)


def test_both_directions_at_once_are_no_question():
    with pytest.raises(InvalidQuery, match="not both"):
        timeline("!a:b", ALICE, before="t1-1", after="t1-1")


@pytest.mark.parametrize("room_id", ["!gone:a", "", "!a\0", "\ud800", "!" + "x" * 10_000])
@pytest.mark.parametrize("user", [None, ALICE])
def test_unknown_rooms_are_named(room_id, user):
    with pytest.raises(UnknownRoom):
        timeline(room_id, user)


@pytest.mark.parametrize("user", [EVE, "", "@a\0:b", "\ud800", "@" + "x" * 1_000])
def test_strangers_of_any_form_read_nothing(user):
    made = talking_room(1)
    with pytest.raises(NotReadable):
        timeline(made.room_id, user)
    assert visible_to(user, ids(made.events)) == {}


@pytest.mark.parametrize("asked", [5, b"!a", None])
def test_what_is_no_identifier_is_no_question(asked):
    with pytest.raises(InvalidQuery):
        timeline(asked, ALICE)
    with pytest.raises(InvalidQuery):
        visible_to(ALICE, [asked])


# --- around an event --------------------------------------------------------------------------------------------------


def test_events_stand_around_an_event_with_tokens_that_go_on():
    made = talking_room(9)
    middle = made.events[6]
    around = events_around(middle.event_id, ALICE, 4)
    assert around.event.event_id == middle.event_id
    assert ids(around.before) == ids([made.events[5], made.events[4]]) and ids(around.after) == ids(made.events[7:9])
    assert ids(timeline(made.room_id, ALICE, 1, before=around.start).events) == [made.events[3].event_id]
    assert ids(timeline(made.room_id, ALICE, 1, after=around.end).events) == [made.events[9].event_id]


def test_both_sides_of_an_event_are_one_query():
    middle = talking_room(9).events[6].event_id
    assert queries_of(lambda: events_around(middle, ALICE, 4)) == 3  # access, the event, both sides


def test_state_is_that_after_the_last_event():
    made = MadeRoom()
    message = made.message()
    topic = made.topic("new")
    store_room(made.events)
    topics = StateFilter.of_types(["m.room.topic"])
    assert events_around(message.event_id, ALICE, 2, only=topics).state == {("m.room.topic", ""): topic.event_id}
    alone = events_around(message.event_id, ALICE, 1)
    assert ("m.room.topic", "") not in alone.state and alone.before == alone.after == ()
    assert alone.start == alone.end == alone.event.token


@pytest.mark.parametrize(("was_in", "known"), [(False, False), (True, True)])
def test_state_around_an_own_leave_is_told_to_who_was_in(was_in, known):
    made = MadeRoom()
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    topic = made.topic("for members")
    made.member(BOB, "join" if was_in else "invite", sender=BOB if was_in else ALICE)
    leave = made.member(BOB, "leave")
    store_room(made.events)
    state = events_around(leave.event_id, BOB).state
    assert (topic.event_id in state.values()) is known
    assert state["m.room.member", BOB] == leave.event_id


def test_state_around_what_an_invited_user_sees_is_cut_to_that():
    made = MadeRoom()
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    made.topic("for members")
    made.state("m.room.history_visibility", "", {"history_visibility": "invited"})
    made.member(BOB, "invite", sender=ALICE)
    seen = made.message()
    leave = made.member(BOB, "leave")
    store_room(made.events)
    around = events_around(seen.event_id, BOB, 1)
    assert ("m.room.topic", "") not in around.state and leave.event_id not in around.state.values()


@pytest.mark.parametrize("setting", ["world_readable", "shared"])
def test_state_of_an_open_room_is_told_whole(setting):
    made = MadeRoom()
    made.state("m.room.history_visibility", "", {"history_visibility": setting})
    seen = made.message()
    made.member(BOB, "invite", sender=ALICE)
    made.member(BOB, "leave")
    store_room(made.events)
    assert ("m.room.create", "") in events_around(seen.event_id, BOB, 1).state


def test_what_is_around_is_filtered_for_the_user():
    made = MadeRoom()
    made.member(BOB, "join")
    leave = made.member(BOB, "leave")
    made.message()
    store_room(made.events)
    around = events_around(leave.event_id, BOB, 10)
    assert around.after == () and len(around.before) == 3


@pytest.mark.parametrize("event", ["hidden", "$gone", "$a\0", ""])
def test_unseen_event_is_unknown(event):
    made = MadeRoom()
    made.member(BOB, "join")
    made.member(BOB, "leave")
    hidden = made.message()
    store_room(made.events)
    with pytest.raises(UnknownEvent):
        events_around(hidden.event_id if event == "hidden" else event, BOB)


# --- which of some events ---------------------------------------------------------------------------------------------


def test_visible_events_come_in_the_order_asked_from_several_rooms_in_few_queries():
    first, second = MadeRoom(), MadeRoom(room_id="!second:a.test")
    closed = MadeRoom(room_id="!closed:a.test")
    closed.member(ALICE, "leave")
    unseen = closed.message()
    for number, made in enumerate((first, second, closed)):
        made.message()
        store_room(made.events, first_position=2 + 100 * number)
    asked = ids([second.events[-1], unseen, first.events[-1]])
    assert list(visible_to(ALICE, [*asked, "$gone", *asked])) == [asked[0], asked[2]]
    assert queries_of(lambda: visible_to(ALICE, asked)) <= 2


def test_visible_events_are_those_of_the_timeline():
    made = MadeRoom()
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    made.message()
    made.member(BOB, "join")
    made.message()
    made.message(soft_failed=True)
    made.message(rejected_reason="no")
    made.member(BOB, "leave")
    made.message()
    store_room(made.events)
    assert set(visible_to(BOB, ids(made.events))) == set(ids(timeline(made.room_id, BOB).events))


def test_ten_thousand_ids_are_answered_and_more_are_no_question():
    made = talking_room(1)
    many = [f"${number}" for number in range(9_999)]
    assert list(visible_to(ALICE, [*many, made.alice.event_id])) == [made.alice.event_id]
    with pytest.raises(InvalidQuery, match="10000"):
        visible_to(ALICE, [f"${number}" for number in range(10_001)])


def test_events_of_a_room_that_nobody_can_judge_are_not_given():
    made = MadeRoom()
    message = made.message(prev=["$gone"])
    store_room(made.events)
    assert visible_to(ALICE, [message.event_id]) == {}
