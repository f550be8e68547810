"""Users whom a user ignores: what a sync does not bring of them. Receipts of threads, each with a place of its own."""

from __future__ import annotations

import pytest

from events.reading.pages import timeline_of
from events.sending.send import create_room
from events.sync.rooms import initial_sync, rooms_since
from events.sync.sync import sync
from events.visibility.access import set_ignored_users
from streams.homeserver import append
from streams.homeserver import typing as typing_users
from tests.integration.events.test_sync import settled
from tests.support.made_rooms import MadeRoom
from tests.support.persisted_rooms import incoming, persist
from tests.support.room_talker import USERS
from tests.support.sync_client import SyncClient, check_matches

pytestmark = pytest.mark.django_db(transaction=True)
ALICE, BOB, EVE, _ = USERS


@pytest.fixture
def ignored(room):
    """A room in which Alice ignores Eve, and not Bob."""
    room.join(BOB)
    room.join(EVE)
    set_ignored_users(ALICE, [EVE])
    return room


def typing(room, user, is_typing=True):
    typing_users.set_typing(room.room_id, user, is_typing)
    settled()


# --- ignored users --------------------------------------------------------------------------------------------------


def test_invites_of_ignored_users_do_not_come(ignored):
    client, before = SyncClient(ALICE), sync(ALICE).next_batch
    elsewhere = MadeRoom("10", "!elsewhere:x")
    outlier = elsewhere.member(ALICE, "invite", sender=EVE, outlier=True)
    assert not persist([incoming(outlier)]).refused
    create_room(EVE).invite(EVE, ALICE)
    wanted = create_room(BOB)
    wanted.invite(BOB, ALICE)
    assert [room.room_id for room in client.sync().rooms.invited] == [wanted.room_id]
    assert SyncClient(ALICE).pending == client.pending == {wanted.room_id: "invite"}
    assert [room.room_id for room in initial_sync(ALICE).invited] == [wanted.room_id]
    assert [room.room_id for room in rooms_since(ALICE, before).invited] == [wanted.room_id]


def test_an_invite_that_was_taken_back_does_not_come_either(ignored):
    client, elsewhere = SyncClient(ALICE), MadeRoom("10", "!elsewhere:x")
    invite = elsewhere.member(ALICE, "invite", sender=EVE, outlier=True)
    leave = elsewhere.member(ALICE, "leave", sender=EVE, outlier=True)
    assert not persist([incoming(invite), incoming(leave)]).refused
    told = [event.event_id for room in client.sync().rooms.left for event in room.timeline]
    assert invite.event_id not in told


def test_who_accepts_such_an_invite_reads_the_room(ignored):
    client, room = SyncClient(ALICE), create_room(EVE)
    room.set_state(EVE, "m.room.join_rules", {"join_rule": "invite"})
    invite = room.invite(EVE, ALICE)
    room.join(ALICE)
    client.sync()
    assert room.room_id in client.rooms and invite.event_id in [e.event_id for e in timeline_of(ALICE, room.room_id)]


def test_receipts_of_ignored_users_do_not_come(ignored):
    client = SyncClient(ALICE)
    append.add_receipt(ignored.room_id, "m.read", EVE, "$1", {"ts": 1})
    assert not client.sync()
    append.add_receipt(ignored.room_id, "m.read", BOB, "$1", {"ts": 1})
    assert {key[2] for key in client.sync().streams["receipts"].changed} == {BOB}
    assert client.streams["receipts"] == SyncClient(ALICE).streams["receipts"]
    assert {key[2] for key in SyncClient(BOB).streams["receipts"]} == {EVE, BOB}


def test_typing_of_ignored_users_does_not_come(ignored):
    client, held = SyncClient(ALICE), {}
    bob = {(ignored.room_id,): {"user_ids": [BOB]}}
    acts = (
        ((EVE, True), {}),
        ((EVE, False), {}),
        ((BOB, True), bob),
        ((EVE, True), bob),
        ((BOB, False), {}),
        ((EVE, False), {}),
    )
    for act, told in acts:
        typing(ignored, *act)
        assert bool(client.sync()) == (told != held), act
        held = told
        assert client.streams.get("typing", {}) == held
    typing(ignored, EVE)
    assert "typing" not in sync(ALICE).streams and "typing" in sync(BOB).streams


def test_a_change_of_the_list_counts_for_what_was_told_before(ignored):
    room = create_room(EVE)
    append.add_receipt(ignored.room_id, "m.read", EVE, "$1", {"ts": 1})

    def act(*acts):
        return lambda: [one() for one in acts]

    told, back, again, same = check_matches(
        ALICE,
        lambda: room.invite(EVE, ALICE),
        lambda: set_ignored_users(ALICE, []),
        lambda: set_ignored_users(ALICE, [EVE]),
        lambda: set_ignored_users(ALICE, [EVE]),
    )
    assert not told.rooms.invited and not again.rooms.invited
    assert [one.room_id for one in back.rooms.invited] == [room.room_id]
    assert "receipts" in back.streams and "receipts" not in again.streams
    assert back.full and again.full and not same.full


# --- receipts of threads ----------------------------------------------------------------------------------------------


def receipt(room, event_id, thread=None, user=BOB, **data):
    append.add_receipt(
        room.room_id, "m.read", user, event_id, data if thread is None else {**data, "thread_id": thread}
    )


def places(held, room):
    return {key[3:]: value["event_id"] for key, value in held["receipts"].items() if key[0] == room.room_id}


def test_each_thread_has_a_receipt_of_its_own(room):
    room.join(BOB)
    check_matches(
        ALICE,
        lambda: receipt(room, "$5"),
        lambda: receipt(room, "$2", "$thread", ts=1),
        lambda: receipt(room, "$3", "main"),
        lambda: receipt(room, "$4", "$thread", inner={"thread_id": "$other"}),
        lambda: receipt(room, "$6"),
        lambda: receipt(room, "$7", '$"\\quoted\u00e9'),
    )
    expected = {(): "$6", ("$thread",): "$4", ("main",): "$3", ('$"\\quoted\u00e9',): "$7"}
    assert places(SyncClient(ALICE).streams, room) == expected


def test_receipts_of_threads_come_together_with_the_place_in_the_room(room):
    room.join(BOB)
    client = SyncClient(ALICE)
    receipt(room, "$5")
    receipt(room, "$2", "$thread", ts=1)
    assert client.sync().streams["receipts"].changed.keys() == {
        (room.room_id, "m.read", BOB),
        (room.room_id, "m.read", BOB, "$thread"),
    }


@pytest.mark.parametrize("thread", [5, [], {}, "", "x" * 3_000], ids=str)
def test_a_thread_that_is_no_name_is_no_error(room, thread):
    room.join(BOB)
    receipt(room, "$1", thread, inner={"thread_id": "x"})
    receipt(room, "$2", thread)
    assert set(places(SyncClient(ALICE).streams, room).values()) == {"$2"}


def test_a_private_receipt_of_a_thread_is_told_to_its_own(room):
    room.join(BOB)
    append.add_receipt(room.room_id, "m.read.private", BOB, "$1", {"thread_id": "main"})
    receipt(room, "$1", "main", hidden=True)
    assert "receipts" not in SyncClient(ALICE).streams and "receipts" in SyncClient(BOB).streams
