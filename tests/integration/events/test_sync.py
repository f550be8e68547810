"""``sync`` over all streams: snapshot + changes = fresh snapshot for each of them; tokens, waiting, full answers on demand."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from asgiref.sync import sync_to_async
from django.db import connections

from events.notifier import notifier
from events.notifier.feed import NotifierFeed
from events.notifier.routing import NOT_ROUTED, Target, routed_streams
from events.sending.send import create_room
from events.sync.providers import StreamQuery, providers
from events.sync.shared_rooms import SharedRooms
from events.sync.sync import await_sync, resync_user, sync
from streams import registry
from streams.catalog.models import Presence
from streams.core.tokens import VectorToken
from streams.epochs import begin_epoch
from streams.errors import EpochChanged, TokenError
from streams.homeserver import append
from streams.homeserver import typing as typing_users
from streams.reading.watcher import Found
from tests.support.async_waiting import wait_for
from tests.support.room_talker import USERS, chatter, talkers
from tests.support.sync_client import SyncClient, check_matches
from tests.support.syncing import heard
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import in_thread, session

T = TypeVar("T")
pytestmark = pytest.mark.django_db(transaction=True)
ALICE, BOB, CAROL, DAVE = USERS


def online(user: str, **more: object) -> Callable[[], object]:
    return lambda: append.set_presence(Presence(user_id=user, state="online", **more))


# --- every stream ---------------------------------------------------------------------------------------------------


def test_every_stream_has_a_provider_or_a_reason():
    parts = {*providers(), "events", "caches"}
    assert parts == set(routed_streams())
    assert parts | set(NOT_ROUTED) == {s.name for s in registry.all_streams() if not s.name.startswith("test")}
    assert not parts & set(NOT_ROUTED)


#: Stream -> what is done to it, in a room that Alice and Bob are joined to; each act tells Alice something.
ACTS: dict[str, list[Callable[[str], object]]] = {
    "presence": [
        lambda room: online(BOB)(),
        lambda room: online(ALICE, status_msg="here")(),
        lambda room: append.set_presence(Presence(user_id=BOB, state="offline")),
    ],
    "typing": [
        lambda room: typing_users.set_typing(room, BOB, True),
        lambda room: typing_users.set_typing(room, ALICE, True),
        lambda room: typing_users.set_typing(room, BOB, False),
        lambda room: typing_users.set_typing(room, ALICE, False),
    ],
    "receipts": [
        lambda room: append.add_receipt(room, "m.read", BOB, "$1", {"ts": 1}),
        lambda room: append.add_receipt(room, "m.read", BOB, "$2", {"ts": 2}),
        lambda room: append.add_receipt(room, "m.read.private", ALICE, "$2", {"ts": 3}),
    ],
    "push_rules": [lambda room: append.push_rules_changed(ALICE)] * 2,
    "pushers": [
        lambda room: append.pusher_changed(ALICE, "app", "key"),
        lambda room: append.pusher_changed(ALICE, "app", "other"),
        lambda room: append.pusher_changed(ALICE, "app", "key", deleted=True),
    ],
    "device_lists": [
        lambda room: append.devices_changed([BOB, "x.example"]),
        lambda room: append.devices_changed([ALICE, CAROL]),
    ],
    "to_device": [lambda room: append.messages_to_devices([ALICE, BOB])] * 2,
    "tag_account_data": [
        lambda room: append.set_tags(ALICE, room, {"m.favourite": {"order": 0.5}}),
        lambda room: append.set_tags(ALICE, room, {}),
    ],
    "account_data": [
        lambda room: append.account_data_changed(ALICE, "m.direct"),
        lambda room: append.account_data_changed(ALICE, "m.fully_read", room),
    ],
    "groups": [
        lambda room: append.group_changed("+g:x", ALICE, {"membership": "join", "content": {}}),
        lambda room: append.group_changed("+g:x", ALICE, {"membership": "leave", "content": {}}),
    ],
    "user_signature": [lambda room: append.signatures_changed(ALICE)] * 2,
}
#: Stream -> something that does not concern Alice, who shares no room with Carol and Dave.
FOREIGN: dict[str, Callable[[str], object]] = {
    "presence": lambda room: online(CAROL)(),
    "typing": lambda room: typing_users.set_typing(room, CAROL, True),
    "receipts": lambda room: append.add_receipt(room, "m.read", CAROL, "$1", {}),
    "push_rules": lambda room: append.push_rules_changed(CAROL),
    "pushers": lambda room: append.pusher_changed(CAROL, "app", "key"),
    "device_lists": lambda room: append.devices_changed([CAROL, "x.example"]),
    "to_device": lambda room: append.messages_to_devices([CAROL, "x.example"]),
    "tag_account_data": lambda room: append.set_tags(CAROL, room, {"u.x": {}}),
    "account_data": lambda room: append.account_data_changed(CAROL, "m.direct"),
    "groups": lambda room: append.group_changed("+g:x", CAROL, {"membership": "join", "content": {}}),
    "user_signature": lambda room: append.signatures_changed(CAROL),
}


def test_acts_are_there_for_every_stream():
    assert set(ACTS) == set(FOREIGN) == set(providers())


def settled() -> None:
    """Streams in memory are shown up to their linear position: once their facts are announced."""
    typing = registry.get("typing")
    with session() as cursor:
        top = typing.table_maximum(cursor)
    wait_until(lambda: (notifier.now("typing") or typing.current().token()).base >= top)


def test_what_is_held_and_told_is_what_a_fresh_snapshot_tells(room):
    room.join(BOB)
    elsewhere = create_room(CAROL)
    for name, acts in ACTS.items():

        def acted(act: Callable[[str], object]) -> Callable[[], object]:
            def run() -> None:
                act(room.room_id)
                settled()

            return run

        for answer in check_matches(ALICE, *(acted(act) for act in acts)):
            assert set(answer.streams) == {name}
            assert not answer.full
        client = SyncClient(ALICE)
        FOREIGN[name](elsewhere.room_id)
        settled()
        assert not client.sync(), f"{name}: told what does not concern the user"


def test_rooms_follow_like_any_stream(room):
    second = create_room(BOB)
    check_matches(
        ALICE,
        lambda: room.send(ALICE, "m.room.message", {"body": "x"}),
        lambda: room.set_state(ALICE, "m.room.topic", {"topic": "t"}),
        lambda: second.invite(BOB, ALICE),
        lambda: second.join(ALICE),
        lambda: second.leave(ALICE),
        lambda: room.join(BOB),
        lambda: second.join(ALICE),
    )


def test_coming_and_going_brings_and_takes_what_is_met(room):
    second = create_room(BOB)
    append.add_receipt(second.room_id, "m.read", BOB, "$1", {"ts": 1})
    typing_users.set_typing(second.room_id, BOB, True)
    append.devices_changed([BOB, CAROL])
    append.set_presence(Presence(user_id=BOB, state="online"), Presence(user_id=CAROL, state="busy"))
    settled()
    joined, *_ = check_matches(
        ALICE,
        lambda: second.join(ALICE),
        lambda: second.join(CAROL),
        lambda: second.leave(BOB),
        lambda: second.leave(ALICE),
        lambda: room.join(BOB),
        lambda: room.kick(ALICE, BOB),
    )
    assert set(joined.streams) == {"presence", "device_lists", "receipts", "typing"}
    assert joined.streams["presence"].changed.keys() == {(BOB,)}


def test_a_contact_who_goes_after_the_position_is_still_told_of(room, other, monkeypatch):
    """The view of the database is newer than the positions: it shows Bob gone, who was met where the answer ends."""
    room.join(BOB)
    client = SyncClient(ALICE)
    feed = NotifierFeed.apply

    def all_but_events(self: NotifierFeed, cursor: object, found: Found, *, everything: bool) -> None:
        feed(self, cursor, {name: stored for name, stored in found.items() if name != "events"}, everything=everything)

    monkeypatch.setattr(NotifierFeed, "apply", all_but_events)
    other.do("leave", room.room_id, BOB)
    append.devices_changed([BOB])
    assert client.sync().streams["device_lists"].changed.keys() == {(BOB,)}
    position, _ = other.do("join", room.room_id, BOB)
    monkeypatch.undo()
    notifier.stop_feeds()
    wait_until(lambda: notifier.now().covers("other", position))
    client.sync()
    assert client.held() == SyncClient(ALICE).held()


def test_who_shares_another_room_already_is_not_told_again(room):
    second = create_room(BOB)
    room.join(BOB)
    online(BOB)()
    client = SyncClient(ALICE)
    second.join(ALICE)
    assert "presence" not in client.sync().streams


def test_private_receipts_are_told_to_their_own(room):
    room.join(BOB)
    client = SyncClient(ALICE)
    append.add_receipt(room.room_id, "m.read.private", BOB, "$1", {"ts": 1})
    append.add_receipt(room.room_id, "m.read", BOB, "$1", {"ts": 1, "hidden": True})
    assert not client.sync()
    assert "receipts" in SyncClient(BOB).streams


def test_random_acts_in_three_processes_lose_and_repeat_nothing(database_url):
    rooms = [create_room(USERS[number]) for number in range(3)]
    chance = random.Random(3)
    clients = [SyncClient(user) for user in USERS]
    with talkers(database_url, "one", "two") as found:
        for turn in range(6):
            for number, talker in enumerate(found):
                talker.tell("chatter", f"{turn}-{number}", "12")
            chatter(f"own {turn}", 6)
            for _ in range(6):
                act = chance.choice([act for acts in ACTS.values() for act in acts])
                act(chance.choice(rooms).room_id)
                chance.choice(clients).sync()
            for talker in found:
                talker.answer()
    high = {name: registry.get(name).current().linear for name in ("events", "receipts")}
    wait_until(lambda: all(notifier.now(name).covers(None, at) for name, at in high.items()))
    settled()
    for client in clients:
        client.sync()
        fresh = SyncClient(client.user_id)
        assert client.held() == fresh.held()
        assert not client.sync()


def test_a_full_answer_has_all_rooms_however_many_a_page_holds(room, monkeypatch):
    rooms = {room.room_id, *(create_room(ALICE).room_id for _ in range(4))}
    monkeypatch.setattr("events.sync.sync.MOST_ROOMS", 2)
    answer = sync(ALICE)
    assert [found.room_id for found in answer.rooms.joined] == list({found.room_id: 1 for found in answer.rooms.joined})
    assert {found.room_id for found in answer.rooms.joined} == rooms


# --- tokens ---------------------------------------------------------------------------------------------------------


def without(token: str, stream: str) -> str:
    body, _, epoch = token.partition("@")
    return ",".join(part for part in body.split(",") if not part.startswith(f"{stream}-")) + f"@{epoch}"


def test_a_token_without_a_stream_gets_it_whole(room):
    append.account_data_changed(ALICE, "m.direct")
    client = SyncClient(ALICE)
    answer = sync(ALICE, without(client.token, "account_data"))
    assert set(answer.streams) == {"account_data"}
    assert answer.streams["account_data"].whole
    assert not answer.full
    assert not sync(ALICE, answer.next_batch)


def test_a_token_without_events_gets_the_rooms(room):
    answer = sync(ALICE, without(SyncClient(ALICE).token, "events"))
    assert [found.room_id for found in answer.rooms.joined] == [room.room_id]
    assert not sync(ALICE, answer.next_batch)


def test_what_this_program_cannot_read_is_carried_along(room):
    token = SyncClient(ALICE).token
    answer = sync(ALICE, f"zzz-m3~1.7,{token}")
    assert "zzz-m3~1.7" in answer.next_batch


def test_a_token_from_the_future_is_taken_back(room, monkeypatch):
    monkeypatch.setattr("events.sync.sync.FOLLOW_SECONDS", 0.05)
    token = SyncClient(ALICE).token
    epoch = token.partition("@")[2]
    answer = sync(ALICE, f"events-999999999,receipts-999999999@{epoch}")
    assert not answer.rooms
    client = SyncClient(ALICE)
    client.token = answer.next_batch
    room.send(ALICE, "m.room.message", {})
    assert client.sync().rooms


def test_a_token_that_another_process_has_just_handed_out_is_waited_for(room, other):
    client = SyncClient(ALICE)
    own = notifier.now().highest
    position, _ = other.do("send", room.room_id, ALICE)
    with session() as cursor:

        def number_of_other() -> int:
            cursor.execute("SELECT id FROM streams_streamposition WHERE stream = 'events' AND instance_name = 'other'")
            return (cursor.fetchone() or (0,))[0]

        number = wait_until(number_of_other, what="the looker enters the writer")
    body, _, epoch = client.token.partition("@")
    parts = [part for part in body.split(",") if not part.startswith("events-")]
    ahead = ",".join([f"events-m{own}~{number}.{position}", *parts])
    answer = sync(ALICE, f"{ahead}@{epoch}")
    told = [event.stream_ordering for found in answer.rooms.joined for event in found.timeline]
    assert position not in told


def test_a_token_of_another_epoch_is_refused(room):
    token = SyncClient(ALICE).token
    with pytest.raises(EpochChanged):
        sync(ALICE, token.partition("@")[0] + "@other2other")


def test_tokens_of_an_epoch_that_begins_meanwhile_are_good(room):
    old = SyncClient(ALICE)
    with session() as cursor:
        begin_epoch(cursor, "a test")
    with pytest.raises(EpochChanged):
        old.sync()
    fresh = SyncClient(ALICE)
    room.send(ALICE, "m.room.message", {"body": "x"})
    assert fresh.sync().rooms


def test_what_is_new_is_told_while_nothing_is_heard(room, monkeypatch):
    client = SyncClient(ALICE)
    feed = notifier._feeds.obtain()
    feed.cache.clear()
    monkeypatch.setattr(feed, "apply", lambda *given, **_: None)
    append.push_rules_changed(ALICE)
    sent = room.send(ALICE, "m.room.message", {"body": "x"})
    answer = client.sync()
    assert client.events[-1] == sent.event_id
    assert set(answer.streams) == {"push_rules"}
    assert not client.sync()


def test_what_is_no_token_is_refused(room):
    for token in ("", "x", "events-1", "events-1@", "events-x@abc", "\0", "events-5" * 5000, 5):
        with pytest.raises(TokenError):
            sync(ALICE, token)  # type: ignore[arg-type]


# --- full answers on demand -----------------------------------------------------------------------------------------


def test_a_mark_makes_the_next_answer_full_once(room):
    client, bystander = SyncClient(ALICE), SyncClient(BOB)
    append.push_rules_changed(ALICE)
    resync_user(ALICE)
    answer = client.sync()
    assert answer.full
    assert [found.room_id for found in answer.rooms.joined] == [room.room_id]
    assert client.held() == SyncClient(ALICE).held()
    assert not client.sync()
    assert not bystander.sync()


def test_a_mark_wakes_who_waits(room):
    client = SyncClient(ALICE)
    waiting = in_thread(lambda: client.sync(20.0))
    wait_until(lambda: notifier.waiting() == 1)
    resync_user(ALICE)
    waiting.join(DEADLINE_SECONDS)
    assert not waiting.is_alive()
    assert client.rooms.keys() == {room.room_id}


def test_a_first_token_is_above_all_marks(room):
    resync_user(ALICE)
    assert not SyncClient(ALICE).sync()


def test_marks_that_were_trimmed_are_taken_to_be_there(room):
    client = SyncClient(ALICE)
    position = resync_user(BOB)
    wait_until(lambda: registry.get("caches").current().linear >= position)
    with session() as cursor:
        cursor.execute("SET LOCAL streams.maintenance = on; DELETE FROM streams_cacheinvalidation")
        cursor.execute(
            "INSERT INTO streams_lowwatermark (stream, position, writers, rows_deleted, trimmed_at) "
            "VALUES ('caches', %s, jsonb_build_object('master', %s::bigint), 1, now())",
            [position, position],
        )
    notifier.stop_feeds()
    assert client.sync().full
    assert not client.sync()


def test_facts_that_were_trimmed_bring_the_stream_whole(room):
    append.account_data_changed(ALICE, "m.direct")
    client = SyncClient(ALICE)
    for _ in range(3):
        append.account_data_changed(ALICE, "m.direct")
    with session() as cursor:
        cursor.execute("SELECT max(stream_id) FROM streams_accountdatachange")
        top = cursor.fetchone()[0]
        cursor.execute(
            "SET LOCAL streams.maintenance = on; DELETE FROM streams_accountdatachange WHERE stream_id < %s", [top]
        )
        cursor.execute(
            "INSERT INTO streams_lowwatermark (stream, position, writers, rows_deleted, trimmed_at) "
            "VALUES ('account_data', %s, jsonb_build_object('master', %s::bigint), 1, now())",
            [top - 1, top - 1],
        )
    notifier.stop_feeds()
    assert client.sync().streams["account_data"].whole
    assert client.held() == SyncClient(ALICE).held()


# --- waiting --------------------------------------------------------------------------------------------------------


def test_nothing_new_is_answered_at_the_end_of_the_time(room):
    client = SyncClient(ALICE)
    begun = time.monotonic()
    assert not client.sync(0.3)
    assert time.monotonic() - begun >= 0.3
    assert notifier.waiting() == 0


def test_a_local_commit_wakes_at_once(room):
    client = SyncClient(ALICE)
    waiting = in_thread(lambda: client.sync(30.0))
    wait_until(lambda: notifier.waiting() == 1)
    sent = room.send(ALICE, "m.room.message", {"body": "x"})
    waiting.join(DEADLINE_SECONDS)
    assert client.events[-1] == sent.event_id


def test_what_concerns_others_wakes_nobody(room, other):
    elsewhere = create_room(CAROL)
    client = SyncClient(ALICE)
    done: list[object] = []
    waiting = in_thread(lambda: done.append(client.sync(30.0)))
    wait_until(lambda: notifier.waiting() == 1)
    looks: list[int] = []
    feed = notifier._feeds.obtain()
    take = feed.cache._waiters.remove_concerned
    feed.cache._waiters.remove_concerned = lambda users, rooms: looks.append(len(taken := take(users, rooms))) or taken  # type: ignore[method-assign]
    other.do("send", elsewhere.room_id, CAROL)
    for foreign in FOREIGN.values():
        foreign(elsewhere.room_id)
    for name in (*FOREIGN, "events"):
        heard(name)
    assert looks and sum(looks) == 0
    assert not done
    other.do("send", room.room_id, ALICE)
    waiting.join(DEADLINE_SECONDS)
    assert done and done[0]


def in_a_loop(talk: Callable[[], Awaitable[T]]) -> T:
    """Run it, and close what its thread for database work has open."""

    async def run() -> T:
        try:
            return await talk()
        finally:
            await sync_to_async(connections.close_all)()

    return asyncio.run(run())


def test_async_callers_wait_without_threads(room):
    many = 200

    async def talk() -> list[bool]:
        first = await await_sync(ALICE)
        threads = threading.active_count()
        tasks = [asyncio.create_task(await_sync(ALICE, first.next_batch, 30.0)) for _ in range(many)]
        await wait_for(lambda: notifier.waiting() == many)
        assert threading.active_count() < threads + 40
        await sync_to_async(append.push_rules_changed)(ALICE)
        return [bool(answer) for answer in await asyncio.gather(*tasks)]

    assert in_a_loop(talk) == [True] * many
    assert notifier.waiting() == 0


def test_an_async_caller_gives_up_in_time(room):
    async def talk() -> bool:
        first = await await_sync(ALICE)
        return bool(await await_sync(ALICE, first.next_batch, 0.2))

    assert in_a_loop(talk) is False


def test_an_async_caller_that_is_cancelled_leaves(room):
    async def talk() -> None:
        first = await await_sync(ALICE)
        task = asyncio.create_task(await_sync(ALICE, first.next_batch, 30.0))
        await wait_for(lambda: notifier.waiting() == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    in_a_loop(talk)
    assert notifier.waiting() == 0


# --- cost -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("new_tables")
def test_what_a_stream_holds_of_a_user_is_found_by_an_index(room):
    question = StreamQuery(None, ALICE, SharedRooms(frozenset()), VectorToken(10**9))
    with session() as cursor:
        cursor.execute("SET enable_seqscan = off")
        for name, provider in providers().items():
            if provider.kind is Target.USER:
                cursor.execute("EXPLAIN " + provider._sql(question), provider._parameters(question))
                plan = "\n".join(row[0] for row in cursor.fetchall())
                assert f"on {registry.get(name).declaration.tables[0].name}" in plan
                assert "Index Cond: (" in plan, plan


def test_nothing_new_costs_a_constant_number_of_queries(room, django_assert_max_num_queries):
    heard()
    client = SyncClient(ALICE)
    with django_assert_max_num_queries(4):
        client.sync()
    for _ in range(5):
        create_room(ALICE)
        client.sync()
        with django_assert_max_num_queries(4):
            client.sync()
