"""What is decided on reading: access, forgotten rooms, ignored users, retention."""

import json
import threading
import time

import pytest
from django.db import transaction
from django.test import override_settings

from events.errors import CannotForget, EventRefused, InvalidQuery, NotReadable, UnknownEvent, UnknownRoom
from events.models import IgnoredUser, RoomAccess, VisibleEvent
from events.reading.pages import timeline_of
from events.visibility.access import (
    IGNORED_USERS_LIMIT,
    ROOMS_LIMIT,
    Reach,
    erase_user,
    forget_room,
    ignored_users_in,
    max_lifetime_ms,
    read_access,
    set_ignored_users,
    unerase_user,
    unforget_room,
)
from events.visibility.explain import explain_visibility
from streams.catalog.models import AccountDataChange
from streams.conf import stream_settings
from tests.support.made_rooms import ALICE, BOB, EVE, MadeRoom
from tests.support.persisted_rooms import persist_all
from tests.support.reading_rooms import readable_room
from tests.support.stored_rooms import store_room
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import in_thread, waiting_sessions

pytestmark = pytest.mark.django_db

MADE_AT_MS = 1_700_000_000_000
"""``origin_server_ts`` of the first event of a made room."""


def ids(user_id, room_id):
    return [entry.event_id for entry in timeline_of(user_id, room_id)]


def rules(user_id, *events, **about):
    return [answer.rule for answer in explain_visibility(user_id, [event.event_id for event in events], **about)]


def left_room():
    """Bob has joined and left; a message before, one while he was there, and one afterwards."""
    made = MadeRoom()
    made.message()
    made.member(BOB, "join")
    made.message()
    made.leave = made.member(BOB, "leave")
    made.later = made.message()
    return made


# --- access ---------------------------------------------------------------------------------------------------------


def test_room_that_was_left_is_read_up_to_the_leave():
    made = left_room()
    store_room(made.events)
    access = readable_room(BOB, made.room_id)
    assert access.cut == made.events.index(made.leave) + 2 and access.cut_depth == made.leave.depth
    (before, after) = explain_visibility(BOB, [made.leave.event_id, made.later.event_id])
    assert (before.reach, after.reach) == (Reach.BEFORE_LEAVE, Reach.AFTER_LEAVE)
    assert ids(BOB, made.room_id)[0] == made.leave.event_id


def test_backfilled_events_above_the_leave_are_out_of_reach():
    made = left_room()
    old = made.message(stream_ordering=-1)
    events = [old, *(event for event in made.events if event is not old)]
    store_room(events, first_position=-1)
    (found,) = explain_visibility(BOB, [old.event_id])
    assert found.allowed and found.reach is Reach.AFTER_LEAVE
    assert old.event_id not in ids(BOB, made.room_id) and old.event_id in ids(ALICE, made.room_id)


@pytest.mark.parametrize("membership", ["ban", "invite", "knock"])
def test_banned_invited_and_knocking_users_read_world_readable_rooms_only(membership):
    made = MadeRoom()
    made.member(BOB, membership, sender=ALICE)
    store_room(made.events)
    (found,) = explain_visibility(BOB, [made.create.event_id])
    assert (found.reach, found.seen) == (Reach.NOT_A_MEMBER, False)
    open_room = MadeRoom(room_id="!open:a.test")
    open_room.state("m.room.history_visibility", "", {"history_visibility": "world_readable"})
    open_room.member(BOB, membership, sender=ALICE)
    message = open_room.message()
    store_room(open_room.events, first_position=100)
    (found,) = explain_visibility(BOB, [message.event_id])
    assert (found.reach, found.rule, found.seen) == (Reach.PEEKING, "world_readable", True)


def test_many_rooms_are_asked_in_one_query(django_assert_num_queries):
    rooms = [MadeRoom(room_id=f"!{number}:a.test") for number in range(3)]
    for number, made in enumerate(rooms):
        store_room(made.events, first_position=2 + 10 * number)
    with django_assert_num_queries(1):
        found = read_access(ALICE, [made.room_id for made in rooms] + ["!nowhere:a.test"])
    assert {room_id: access.readable for room_id, access in found.items()} == {made.room_id: True for made in rooms}


def test_rooms_that_are_not_here_or_not_known_have_errors_of_their_own():
    made = MadeRoom()
    made.message(prev=["$gone"])
    store_room(made.events)
    with pytest.raises(UnknownRoom):
        readable_room(ALICE, "!nowhere:a.test")
    with pytest.raises(NotReadable, match="not known"):
        readable_room(ALICE, made.room_id)


@pytest.mark.parametrize("name", ["@a\0:a.test", "@" + "a" * 1_000 + ":a.test", "@\ud800:a.test"])
def test_what_cannot_be_stored_is_unknown_and_no_error(name):
    made = MadeRoom()
    store_room(made.events)
    assert read_access(ALICE, [name, made.room_id]).keys() == {made.room_id}
    assert not read_access(name, [made.room_id])[made.room_id].readable
    unknown, known = explain_visibility(name, [name, made.create.event_id])
    assert isinstance(unknown, UnknownEvent) and not known.seen
    with pytest.raises(CannotForget):
        forget_room(name, made.room_id)
    assert not unforget_room(name, made.room_id) and not unerase_user(name)


def test_questions_are_bounded():
    with pytest.raises(InvalidQuery, match="too many"):
        read_access(ALICE, [f"!{number}:a.test" for number in range(ROOMS_LIMIT + 1)])


# --- forgotten rooms ------------------------------------------------------------------------------------------------


def test_forgotten_room_is_read_as_by_a_stranger():
    made = left_room()
    store_room(made.events)
    forget_room(BOB, made.room_id)
    with pytest.raises(NotReadable):
        timeline_of(BOB, made.room_id)
    (found,) = explain_visibility(BOB, [made.leave.event_id])
    assert (found.reach, found.seen) == (Reach.FORGOTTEN, False)
    assert not RoomAccess.objects.filter(user_id=BOB).exists() and not VisibleEvent.objects.filter(user_id=BOB).exists()
    assert unforget_room(BOB, made.room_id) and not unforget_room(BOB, made.room_id)
    assert ids(BOB, made.room_id)[0] == made.leave.event_id


def test_rejoining_ends_forgetting_and_leaving_again_does_not_bring_it_back():
    made = MadeRoom(ruled=True)
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    made.member(BOB, "join")
    made.member(BOB, "leave")
    persist_all(made.events, batch=10)
    forget_room(BOB, made.room_id)
    assert not read_access(BOB, [made.room_id])[made.room_id].readable
    for membership in ("join", "leave"):
        persist_all([made.member(BOB, membership)])
        access = read_access(BOB, [made.room_id])[made.room_id]
        assert access.readable and not access.forgotten


@pytest.mark.parametrize("membership, message", [("join", "'join'"), (None, "no membership")])
def test_only_rooms_that_were_left_can_be_forgotten(membership, message):
    made = MadeRoom()
    if membership is not None:
        made.member(BOB, membership)
    store_room(made.events)
    with pytest.raises(CannotForget, match=message):
        forget_room(BOB, made.room_id)


# --- ignored users --------------------------------------------------------------------------------------------------


def test_messages_of_ignored_users_are_left_out_and_their_state_is_not():
    made = MadeRoom()
    made.member(BOB, "join")
    message, topic = made.message(), made.topic("x")
    store_room(made.events)
    set_ignored_users(BOB, [ALICE])
    assert rules(BOB, message, topic) == ["ignored_sender", "joined"]
    assert message.event_id not in ids(BOB, made.room_id) and topic.event_id in ids(BOB, made.room_id)
    assert message.event_id in ids(ALICE, made.room_id)
    assert not VisibleEvent.objects.filter(user_id=BOB, event_id=message.event_id).exists()


def test_list_of_ignored_users_is_replaced_and_told_in_the_stream():
    set_ignored_users(BOB, [ALICE, EVE, BOB])
    set_ignored_users(BOB, [EVE, "@new:a.test"])
    assert set(IgnoredUser.objects.filter(user_id=BOB).values_list("ignored_user_id", flat=True)) == {
        EVE, "@new:a.test",
    }  # fmt: skip
    facts = AccountDataChange.objects.filter(user_id=BOB, data_type="m.ignored_user_list", room_id=None)
    assert facts.count() == 2


@pytest.mark.django_db(transaction=True)
def test_two_lists_at_the_same_time_leave_one_of_them():
    second = threading.Event()

    def replace() -> None:
        set_ignored_users(BOB, [EVE])
        second.set()

    with transaction.atomic():
        set_ignored_users(BOB, [ALICE])
        thread = in_thread(replace)
        wait_until(lambda: second.is_set() or waiting_sessions())
    thread.join(DEADLINE_SECONDS)
    assert second.is_set()
    assert [row.ignored_user_id for row in IgnoredUser.objects.filter(user_id=BOB)] == [EVE]


def test_ignored_users_are_bounded_and_checked():
    with pytest.raises(ValueError, match="limit"):
        set_ignored_users(BOB, [f"@{number}:a.test" for number in range(IGNORED_USERS_LIMIT + 1)])
    with pytest.raises(EventRefused, match="nul-character"):
        set_ignored_users(BOB, ["@a\0:a.test"])
    with pytest.raises(EventRefused, match="bad-unicode"):
        set_ignored_users(BOB, ["@\ud800:a.test"])


@pytest.mark.parametrize(
    "content, named",
    [
        ({"ignored_users": {"@b:a": {}, "@a:a": {}}}, ["@a:a", "@b:a"]),
        ({"ignored_users": ["@a:a"]}, []),
        ({}, []),
        (None, []),
    ],
)
def test_account_data_names_ignored_users(content, named):
    assert ignored_users_in(content) == named


# --- erased users ---------------------------------------------------------------------------------------------------


def test_erased_users_are_pruned_until_that_is_taken_back():
    made = MadeRoom()
    message = made.message()
    made.member(BOB, "join")
    store_room(made.events)

    def pruned():
        return [answer.pruned for answer in explain_visibility(BOB, [message.event_id])]

    assert erase_user(ALICE) and not erase_user(ALICE) and pruned() == [True]
    assert VisibleEvent.objects.get(user_id=BOB, event_id=message.event_id).redacted
    assert unerase_user(ALICE) and not unerase_user(ALICE) and pruned() == [False]
    with pytest.raises(EventRefused, match="nul-character"):
        erase_user("@a\0:a.test")


# --- retention ------------------------------------------------------------------------------------------------------


def test_messages_beyond_the_rooms_lifetime_are_left_out_and_state_is_not():
    """Strictly older ones: a message of just that age is still shown."""
    made = MadeRoom()
    old = made.message()
    kept, topic = made.message(), made.topic("x")
    made.state("m.room.retention", "", {"max_lifetime": 5_000})
    store_room(made.events)
    now_ms = kept.origin_server_ts + 5_000
    assert rules(ALICE, old, kept, topic, now_ms=now_ms) == ["retention", "joined", "joined"]
    access = read_access(ALICE, [made.room_id], now_ms=now_ms)[made.room_id]
    assert access.kept_since == kept.origin_server_ts
    shown = ids(ALICE, made.room_id)  # as of today everything has expired
    assert topic.event_id in shown and not {old.event_id, kept.event_id} & set(shown)


def test_redacted_policy_is_none():
    made = MadeRoom()
    made.message()
    policy = made.state("m.room.retention", "", {"max_lifetime": 5_000})
    made.redaction(policy)
    store_room(made.events)
    assert read_access(ALICE, [made.room_id])[made.room_id].kept_since is None


@pytest.mark.parametrize(
    "wanted, settings, lifetime_ms",
    [
        (None, {}, None),
        (5_000, {}, 5_000),
        ("5000", {}, None),
        (True, {}, None),
        (-1, {}, None),
        (None, {"DEFAULT": 60}, 60_000),
        (5_000, {"DEFAULT": 60}, 5_000),
        (5_000, {"SHORTEST": 10}, 10_000),
        (5_000, {"LONGEST": 2}, 2_000),
        (None, {"LONGEST": 2}, None),
        (2**53 - 1, {}, 2**53 - 1),
        pytest.param(10**400, {}, 10**400, id="large"),
        pytest.param(10**400, {"LONGEST": 2}, 2_000, id="large and bounded"),
        pytest.param([10**4000], {"DEFAULT": 60}, 60_000, id="a large number within"),
    ],
)
def test_lifetime_is_the_rooms_within_the_sites_limits(wanted, settings, lifetime_ms):
    content = {} if wanted is None else {"max_lifetime": wanted}
    policy = json.dumps({"type": "m.room.retention", "content": content}).encode()
    named = {f"REPLSITE_RETENTION_{name}_SECONDS": float(value) for name, value in settings.items()}
    with override_settings(**named):
        assert max_lifetime_ms(policy, stream_settings()) == lifetime_ms


def test_sites_default_counts_for_rooms_without_a_policy():
    made = MadeRoom()
    message = made.message()
    store_room(made.events)
    with override_settings(REPLSITE_RETENTION_DEFAULT_SECONDS=1.0):
        assert message.event_id not in ids(ALICE, made.room_id)
        assert rules(ALICE, message) == ["retention"]
    forever = (time.time() + 1_000_000) - MADE_AT_MS / 1000
    with override_settings(REPLSITE_RETENTION_DEFAULT_SECONDS=forever):
        assert message.event_id in ids(ALICE, made.room_id)
