"""The hot caches on a real server: against an obvious slow version, with several writer processes, and when they lose track."""

from __future__ import annotations

import random
import threading

import pytest
from django.db import connection, transaction
from django.test import override_settings

from events.models import CurrentState, CurrentStateDelta, Event
from events.notifier import notifier
from events.sending.send import create_room
from events.sync.sync import sync
from streams import registry
from streams.caches import invalidate_room_state
from streams.core.tokens import VectorToken
from streams.db.driver import KeptConnection
from streams.errors import WaitTimedOut
from streams.homeserver.append import devices_changed
from streams.writing.given_out import record_given_out
from tests.oracles.token_ranges import in_range
from tests.support.room_talker import USERS, chatter, talkers
from tests.support.syncing import heard
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import cut, session, store_positions

pytestmark = pytest.mark.django_db(transaction=True)
ALICE, BOB = USERS[0], USERS[1]
START = VectorToken(0)


# --- the slow version -----------------------------------------------------------------------------------------------


def rooms_changed(since: VectorToken, upto: VectorToken) -> set[str]:
    """Rooms with an event or a change of state in between, by looking at all rows."""
    rows = [
        *Event.objects.filter(stream_ordering__gt=0).values_list("room_id", "instance_name", "stream_ordering"),
        *CurrentStateDelta.objects.values_list("room_id", "instance_name", "stream_ordering"),
    ]
    return {room_id for room_id, writer, at in rows if in_range(since, upto, writer, at)}


def membership_events(user: str) -> list[tuple[str, str, int, str]]:
    found = Event.objects.filter(type="m.room.member", state_key=user, stream_ordering__gt=0)
    return list(found.values_list("room_id", "instance_name", "stream_ordering", "membership"))


def rooms_joined(user: str, upto: VectorToken) -> set[str]:
    """By replaying every change of the user's membership."""
    memberships: dict[str, str] = {}
    for delta in CurrentStateDelta.objects.filter(type="m.room.member", state_key=user).order_by("stream_ordering"):
        if upto.covers(delta.instance_name, delta.stream_ordering):
            memberships[delta.room_id] = Event.objects.get(event_id=delta.event_id).membership or ""
    return {room_id for room_id, membership in memberships.items() if membership == "join"}


def check(user: str, since: VectorToken) -> notifier.UserChanges:
    """Ask, and compare with the slow version; returns the answer."""
    found = notifier.look(user, since)
    assert since.before_or_equal(found.now)
    assert found.rooms == rooms_joined(user, found.now)
    changed = rooms_changed(since, found.now)
    if found.changed is not None:
        assert found.changed == changed & found.rooms
    moved = any(in_range(since, found.now, writer, at) for _, writer, at, _ in membership_events(user))
    assert found.memberships_changed or not moved
    if found.nothing:
        assert not moved
        assert not changed & found.rooms
    return found


def settled(user: str) -> VectorToken:
    """The position up to which the memory answers for a user, once everything is heard."""
    heard()
    return notifier.look(user, START).now


# --- differential ---------------------------------------------------------------------------------------------------


def test_two_writers_and_this_process_against_the_slow_version(database_url):
    for number in range(5):
        create_room(USERS[number % 4])
    tokens = [notifier.now() or START]
    chance = random.Random(7)
    with talkers(database_url, "one", "two") as found:
        for turn in range(8):
            for number, talker in enumerate(found):
                talker.tell("chatter", f"{turn}-{number}", "15")
            for step in range(4):
                chatter(f"own {turn} {step}", 2)
                looked = check(chance.choice(USERS), chance.choice(tokens[-6:]))
                tokens.append(looked.now)
            for talker in found:
                talker.answer()
    high = registry.get("events").current().linear
    wait_until(lambda: notifier.now().covers(None, high))
    for user in USERS:
        for since in tokens[::10]:
            check(user, since)


def test_a_small_cache_is_never_wrong(database_url):
    rooms = [create_room(ALICE) for _ in range(6)]
    with override_settings(REPLSITE_HOT_ENTRIES=3):
        notifier.stop_feeds()
        tokens = [notifier.now()]
        for number in range(30):
            rooms[number % 6].send(ALICE, "m.room.message", {})
            tokens.append(check(ALICE, tokens[-1]).now)
        assert notifier.look(ALICE, tokens[0]).changed is None
        assert notifier.look(ALICE, tokens[-2]).changed is not None
        for since in tokens:
            check(ALICE, since)


# --- what is seen when ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["@\0:a", "@\ud800:a", "@" + "x" * 1000])
def test_users_that_cannot_be_are_in_no_room(user):
    found = notifier.look(user, START)
    assert found.rooms == frozenset() and not found.memberships_changed


def test_own_commits_come_as_those_of_others(room):
    since = settled(ALICE)
    for _ in range(20):
        sent = room.send(ALICE, "m.room.message", {})
        heard()
        found = notifier.look(ALICE, since)
        assert found.changed == {room.room_id}
        assert found.now.covers("master", sent.stream_ordering)
        since = found.now
        assert notifier.look(ALICE, since).nothing


def test_own_open_transaction_is_not_seen(room):
    since = settled(ALICE)
    with transaction.atomic():
        room.send(ALICE, "m.room.message", {})
        assert notifier.look(ALICE, since).nothing
    heard()
    assert not notifier.look(ALICE, since).nothing


def test_own_rollback_brings_nothing(room):
    since = settled(ALICE)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        room.leave(ALICE)
        raise ZeroDivisionError
    found = notifier.look(ALICE, since)
    assert found.nothing
    assert found.rooms == {room.room_id}


def test_whoever_waited_for_a_position_asks_a_memory_that_has_it(room, other):
    """``wait_for`` and the memory hear by connections of their own; the first must not be ahead of the second."""
    since = settled(ALICE)
    registry.get("events").wait_for(1, DEADLINE_SECONDS)
    for _ in range(30):
        position, _ = other.do("send", room.room_id, ALICE)
        try:
            registry.get("events").wait_for(VectorToken.of(0, {"other": position}), DEADLINE_SECONDS)
        except WaitTimedOut:
            pytest.fail("the position was never seen")
        found = notifier.look(ALICE, since)
        assert found.changed == {room.room_id}
        assert found.now.covers("other", position)
        since = found.now


def test_other_rooms_are_nothing_new(room):
    elsewhere = create_room(BOB)
    since = settled(ALICE)
    elsewhere.send(BOB, "m.room.message", {})
    heard()
    found = notifier.look(ALICE, since)
    assert found.nothing
    assert found.now != since


def test_each_membership_change_is_seen_and_rooms_follow(room):
    since = settled(BOB)
    assert notifier.look(BOB, since).nothing
    room.invite(ALICE, BOB)
    heard()
    assert notifier.membership_changed_since(BOB, since)
    assert notifier.rooms_of(BOB) == frozenset()
    since = notifier.look(BOB, since).now
    room.join(BOB)
    heard()
    found = notifier.look(BOB, since)
    assert found.memberships_changed
    assert found.rooms == {room.room_id}
    room.leave(BOB)
    heard()
    assert notifier.look(BOB, found.now).rooms == frozenset()
    assert notifier.may_have_changed(BOB, found.now) is None


def test_a_question_asks_no_query_when_the_rooms_are_known(room, monkeypatch):
    since = settled(ALICE)
    create_room(BOB)
    notifier.look(ALICE, since)

    asking, direct = threading.current_thread(), KeptConnection.cursor

    def not_here(kept: KeptConnection) -> object:
        assert threading.current_thread() is not asking, "a query"
        return direct(kept)

    def refuse(*_: object) -> None:
        raise AssertionError("a query")

    monkeypatch.setattr(KeptConnection, "cursor", not_here)
    monkeypatch.setattr("django.db.backends.utils.CursorWrapper.execute", refuse)
    assert notifier.look(ALICE, since).nothing
    assert notifier.rooms_changed_since([room.room_id], since) == frozenset()


def test_rooms_are_those_of_the_position_and_not_newer(room, other, monkeypatch):
    """The current state changes with the commit, the position a moment later; in between the rooms are the old ones."""
    notifier.look(ALICE, START)
    monkeypatch.setattr("events.notifier.feed.NotifierFeed.apply", lambda *given, **_: None)
    position, _ = other.do("join", room.room_id, BOB)
    found = notifier.look(BOB, START)
    assert not found.now.covers("other", position)
    assert found.rooms == frozenset()
    monkeypatch.undo()
    notifier.stop_feeds()
    wait_until(lambda: notifier.rooms_of(BOB) == {room.room_id})


def test_rooms_of_users_that_somebody_names_are_read_again(room):
    """Current state that vanishes without an event (a purged room, a state that is no longer known) is told so."""
    heard()
    assert notifier.rooms_of(ALICE) == {room.room_id}
    CurrentState.objects.filter(room_id=room.room_id).delete()
    invalidate_room_state(room.room_id, [BOB])
    assert notifier.rooms_of(ALICE) == {room.room_id}
    invalidate_room_state(room.room_id, [ALICE])
    wait_until(lambda: notifier.rooms_of(ALICE) == frozenset())


# --- losing track ---------------------------------------------------------------------------------------------------


CONNECTIONS = ("replsite notifications positions", "replsite positions", "replsite rooms of users")


def test_what_happened_while_the_connection_was_lost_is_not_missed(room, other):
    since = settled(ALICE)
    cut("replsite notifications positions")
    position, _ = other.do("send", room.room_id, ALICE)
    for _ in range(50):
        found = notifier.look(ALICE, since)
        assert found.changed is None or not found.now.covers("other", position) or found.changed == {room.room_id}
    wait_until(lambda: notifier.now() is not None and notifier.now().covers("other", position))
    assert notifier.look(ALICE, since).changed in ({room.room_id}, None)


def test_connections_that_are_cut_make_no_answer_wrong(database_url):
    for user in USERS:
        create_room(user)
    tokens = [notifier.now() or START]
    chance = random.Random(11)
    with talkers(database_url, "one") as (talker,):
        for turn in range(10):
            talker.tell("chatter", str(turn), "8")
            for step in range(3):
                cut(chance.choice(CONNECTIONS))
                chatter(f"own {turn} {step}", 2)
                tokens.append(check(chance.choice(USERS), chance.choice(tokens[-6:])).now)
            talker.answer()
    wait_until(lambda: notifier.now() is not None)
    for user in USERS:
        for since in tokens[::5]:
            check(user, since)


def test_nothing_is_remembered_while_nothing_is_heard(room):
    since = settled(ALICE)
    feed = notifier._feeds.obtain()
    feed.cache.clear()
    found = feed.ask(ALICE, since)
    assert found.rooms == {room.room_id}
    assert found.changed is None
    assert found.memberships_changed


def test_own_commits_come_while_nothing_is_remembered(room):
    since = settled(ALICE)
    sent = room.send(ALICE, "m.room.message", {})
    heard()
    found = notifier._feeds.obtain()._read_tables(ALICE)
    assert since.before_or_equal(found.now)
    assert found.now.covers("master", sent.stream_ordering)
    assert found.rooms == {room.room_id}


@pytest.fixture
def altering():
    """Somebody alters the sequence of events, until the timer ends."""
    with session() as cursor:
        cursor.execute(f"BEGIN; ALTER SEQUENCE {registry.get('events').declaration.sequence} CACHE 1")
        end = threading.Timer(DEADLINE_SECONDS / 4, cursor.execute, ["ROLLBACK"])
        end.start()
        yield end
        end.cancel()
        end.join()


@pytest.mark.parametrize("is_remembered", [True, False])
def test_no_user_waits_for_who_alters_the_sequence_of_events(room, monkeypatch, request, is_remembered):
    """Nor while the memory is empty, or this process has appended what no position covers: all users stood behind one."""
    events = registry.get("events")
    since = settled(ALICE)
    before = sync(ALICE).next_batch
    feed = notifier._feeds.obtain()
    if is_remembered:
        record_given_out(events, connection, [since.base + 1])
    else:
        monkeypatch.setattr(feed, "apply", lambda *_, **__: None)
        feed.cache.clear()
    still_altering = request.getfixturevalue("altering").is_alive
    assert not sync(ALICE, before)
    found = notifier.look(ALICE, since)
    assert (found.now, found.rooms) == (since, {room.room_id})
    assert still_altering()


def test_a_position_that_fell_makes_everything_be_forgotten(room):
    """As a restored database would show it to a process that was not noticed to be cut off."""
    room.send(ALICE, "m.room.message", {})
    since = settled(ALICE)
    feed = notifier._feeds.obtain()
    registry.get("events").wait_for(since, DEADLINE_SECONDS)
    wait_until(lambda: registry.get("events").current().linear >= since.base)
    before = feed.cache.streams

    def is_forgotten() -> bool:
        if feed.cache.streams is before:  # again: the looker takes it up within a second, perhaps before it is read
            with session() as cursor:
                cursor.execute(
                    "UPDATE streams_streamposition SET position = 1 WHERE stream = 'events'; "
                    "SELECT pg_notify('replsite_streams', 'events')"
                )
        return feed.cache.is_ready and feed.cache.streams is not before

    wait_until(is_forgotten)


def test_trimmed_rows_are_answered_with_maybe(room):
    from tests.support.writing import session as own

    devices_changed([BOB])
    store_positions()
    with own() as cursor:
        cursor.execute(
            "INSERT INTO streams_lowwatermark (stream, position, writers, rows_deleted, trimmed_at) "
            "VALUES ('device_lists', 50, '{\"master\": 50}', 1, now())"
        )
    notifier.stop_feeds()
    feed = notifier._feeds.obtain()
    from events.notifier.routing import Target

    assert feed.changed("device_lists", Target.CONTACT, VectorToken(49)) is None
    assert feed.changed("device_lists", Target.CONTACT, VectorToken(50)) is not None
