"""A room as one user sees it, against a real server's answers and the rule."""

import io
import json

import pytest
from django.core.management import CommandError, call_command

from events.errors import BadToken, NotReadable, UnknownRoom
from events.reading.pages import timeline_of
from tests.oracle.answers import parsed
from tests.support.made_rooms import ALICE, BOB, EVE, MadeRoom
from tests.support.room_data import oracle
from tests.support.stored_rooms import store_room

pytestmark = pytest.mark.django_db


def ids(user_id, room_id, **options):
    """The event IDs of a user's timeline."""
    return [entry.event_id for entry in timeline_of(user_id, room_id, **options)]


@pytest.mark.parametrize("room", ["v6_membership_visibility", "v10_visibility_walk", "v11_redactions", "v11_fork_walk"])
def test_members_see_what_the_real_server_shows_them(room):
    events = parsed(room)
    store_room(events)
    compared = 0
    for row in oracle(room, "visibility"):
        if row["kind"] == "user" and row["membership_now"] == "join" and not row["is_peeking"]:
            numbers = [n for n, letter in enumerate(row["result"]) if letter in "1p"]
            numbers.sort(key=lambda n: (events[n].depth, n), reverse=True)
            assert ids(row["user_id"], events[0].room_id, limit=1_000) == [events[n].event_id for n in numbers]
            compared += 1
    assert compared > 2


def test_pages_add_up_to_the_whole():
    made = MadeRoom()
    for _ in range(12):
        made.message()
    store_room(made.events)
    whole = timeline_of(ALICE, made.room_id, limit=100)
    pages, token = [], None
    while page := timeline_of(ALICE, made.room_id, limit=5, before=token):
        pages += page
        token = page[-1].token
    assert pages == list(whole) and len(pages) == len(made.events)


def test_who_left_sees_nothing_after_the_leave():
    made = MadeRoom()
    made.member(BOB, "join")
    leave = made.member(BOB, "leave")
    made.message()
    store_room(made.events)
    assert ids(BOB, made.room_id)[0] == leave.event_id


def test_closed_parts_are_left_out_and_pages_stay_full():
    made = MadeRoom()
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    hidden = [made.message() for _ in range(10)]
    made.member(BOB, "join")
    shown = [made.message() for _ in range(3)]
    store_room(made.events)
    found = ids(BOB, made.room_id, limit=6)
    assert found[:3] == [event.event_id for event in reversed(shown)] and len(found) == 6
    assert not {event.event_id for event in hidden} & set(found)


def test_redaction_that_redacts_nothing_does_not_shorten_a_page():
    made = MadeRoom()
    elsewhere = MadeRoom(room_id="!other:a.test").message()
    for _ in range(5):
        made.message()
        made.redaction(elsewhere)
    store_room(made.events)
    assert len(ids(ALICE, made.room_id, limit=6)) == 6


@pytest.mark.parametrize("setting, readable", [("world_readable", True), ("shared", False)])
def test_strangers_read_world_readable_rooms_only(setting, readable):
    made = MadeRoom()
    made.state("m.room.history_visibility", "", {"history_visibility": setting})
    message = made.message()
    store_room(made.events)
    if readable:
        assert ids(EVE, made.room_id) == [message.event_id, made.events[2].event_id]
    else:
        with pytest.raises(NotReadable, match="may not read"):
            timeline_of(EVE, made.room_id)


def test_room_of_unknown_visibility_is_not_guessed():
    made = MadeRoom()
    made.message(prev=["$gone"])
    store_room(made.events)
    with pytest.raises(NotReadable, match="not known"):
        timeline_of(ALICE, made.room_id)


def test_unusable_questions_are_refused():
    with pytest.raises(UnknownRoom):
        timeline_of(ALICE, "!nowhere:a")
    with pytest.raises(BadToken):
        timeline_of(ALICE, "!nowhere:a", before="x")


def test_command_prints_the_users_view_and_exits_1_where_there_is_none():
    made = MadeRoom()
    store_room(made.events)
    out = io.StringIO()
    call_command("timeline", made.room_id, "--user", ALICE, "--json", stdout=out)
    assert [json.loads(line)["event_id"] for line in out.getvalue().splitlines()] == [
        made.alice.event_id, made.create.event_id,
    ]  # fmt: skip
    with pytest.raises(CommandError) as error:
        call_command("timeline", made.room_id, "--user", EVE, stdout=out)
    assert error.value.returncode == 1
