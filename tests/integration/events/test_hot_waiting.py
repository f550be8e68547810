"""The waiter on a real server: how soon it wakes, for what, how many may wait, and that none is forgotten."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from django.db import transaction
from django.test import override_settings

from events.errors import TooManyWaiters
from events.notifier import notifier
from events.sending.send import LocalRoom, create_room
from streams.homeserver import append
from tests.support.async_waiting import wait_for
from tests.support.room_talker import USERS
from tests.support.syncing import heard
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import cut, in_thread

pytestmark = pytest.mark.django_db(transaction=True)
ALICE, BOB = USERS[0], USERS[1]
WAKES = 20


@pytest.fixture
def room(room: LocalRoom) -> LocalRoom:
    """What made it wakes nobody later."""
    heard()
    return room


class Waiting:
    """A caller that waits in a thread."""

    def __init__(self, user: str, seconds: float = 60.0) -> None:
        self.woken: list[bool] = []
        heard()  # else what the test did before may wake it
        at, before = notifier.positions(), notifier.waiting()

        def run() -> None:
            self.woken.append(notifier.wait(user, at, seconds))

        self.thread = in_thread(run)
        wait_until(lambda: notifier.waiting() > before or self.woken)

    def end(self) -> bool:
        self.thread.join(2 * DEADLINE_SECONDS)
        return self.woken[0]


def test_every_commit_wakes_who_waits(room, other, settings):
    """Nobody looks at the table now and then. How soon they wake is measured in ``script/benchmarks/hot.py``."""
    settings.REPLSITE_HEARTBEAT_SECONDS = 600
    for _ in range(WAKES):
        caller = Waiting(ALICE)
        other.do("send", room.room_id, ALICE)
        assert caller.end()
        caller = Waiting(ALICE)
        room.send(ALICE, "m.room.message", {"body": "x"})
        assert caller.end()


def test_a_thousand_tasks_wake_by_one_commit(room, other):
    many = 1000

    async def talk() -> int:
        at = await asyncio.to_thread(notifier.positions)
        tasks = [asyncio.create_task(notifier.await_news(ALICE, at, 60.0)) for _ in range(many)]
        await wait_for(lambda: notifier.waiting() == many)
        threads = threading.active_count()
        await asyncio.to_thread(other.do, "send", room.room_id, ALICE)
        woken = await asyncio.gather(*tasks)
        assert threads < 60
        return sum(woken)

    assert asyncio.run(talk()) == many
    assert notifier.waiting() == 0


def test_others_are_not_woken(room, other):
    elsewhere = create_room(BOB)
    notifier.rooms_of(BOB)
    alice, bob = Waiting(ALICE), Waiting(BOB)
    other.do("send", elsewhere.room_id, BOB)
    assert bob.end()
    assert not alice.woken
    assert notifier.waiting() == 1
    other.do("invite", elsewhere.room_id, BOB, ALICE)
    assert alice.end()


def test_whoever_shares_a_room_is_woken_by_a_contact(room):
    room.join(BOB)
    alice, stranger = Waiting(ALICE), Waiting("@stranger:x")
    append.devices_changed([BOB])
    assert alice.end()
    assert not stranger.woken


def test_a_commit_between_the_question_and_the_wait_is_not_missed(room):
    at = notifier.positions()
    room.send(ALICE, "m.room.message", {"body": "x"})
    assert notifier.wait(ALICE, at, 60.0)


def test_an_open_transaction_wakes_nobody_until_it_ends(room):
    caller = Waiting(ALICE)
    with transaction.atomic():
        room.send(ALICE, "m.room.message", {"body": "x"})
        assert not caller.woken
    assert caller.end()


def test_the_time_is_kept(room):
    begun = time.monotonic()
    assert not notifier.wait(ALICE, notifier.positions(), 0.25)
    assert time.monotonic() - begun >= 0.25
    assert not notifier.wait(ALICE, notifier.positions(), 0.0)
    assert notifier.waiting() == 0


def test_no_more_wait_than_may(room):
    with override_settings(REPLSITE_HOT_WAITER_LIMIT=2):
        notifier.stop_feeds()
        callers = [Waiting(ALICE), Waiting(ALICE)]
        with pytest.raises(TooManyWaiters, match="REPLSITE_HOT_WAITER_LIMIT"):
            notifier.wait(ALICE, notifier.positions(), 5.0)
        room.send(ALICE, "m.room.message", {"body": "x"})
        assert all(caller.end() for caller in callers)


def test_a_lost_connection_wakes_everybody_to_look_again(room):
    caller = Waiting(ALICE)
    cut("replsite notifications positions")
    assert caller.end()


def test_the_end_of_the_process_wakes_everybody(room):
    caller = Waiting(ALICE)
    notifier.stop_feeds()
    assert caller.end()


def test_a_stream_without_a_position_is_news(room):
    at = dict(notifier.positions())
    assert notifier.news(ALICE, at, list(at)) == []
    del at["receipts"]
    assert notifier.news(ALICE, at, ["receipts", "events"]) == ["receipts"]
    assert notifier.wait(ALICE, at, 5.0)


def test_another_life_of_a_stream_in_memory_is_news(room):
    at = dict(notifier.positions())
    at["typing"] = at["typing"]._replace(generation=99)
    assert notifier.news(ALICE, at, list(at)) == ["typing"]
