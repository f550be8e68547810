"""``wait_for``: until this process sees a position, woken by notifications and by its own commits, in time, never too early."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from streams import epochs, registry
from streams.core.tokens import VectorToken
from streams.db import driver
from streams.errors import EpochChanged, TokenError, WaitTimedOut
from streams.models import StreamPosition
from streams.reading.position_notifications import notify_position
from streams.waiting import wait
from streams.writing import lease
from streams.writing.process import current_writer, retire_all
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import append, cut, give_out, ids, in_thread, session, stream, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def north():
    """Another living writer, entered at the present; returns how to announce a position of it."""
    with session() as cursor:
        lease.take(cursor, "north", lease.Identity("far", 1, "x"), 1.0)
        lease.store_entry(cursor, stream(), "north", 1)

        def announce(position: int) -> None:
            cursor.execute("UPDATE streams_streamposition SET position = %s WHERE instance_name = 'north'", [position])
            cursor.execute("SELECT pg_notify('replsite_streams', %s)", [f"caches north {position}"])

        yield announce


def test_reached_already_returns_where_the_stream_is():
    number = append()[0]
    wait_for_linear(number)
    assert stream().wait_for(number).base == number


def test_own_fact_is_there_soon_after_the_commit():
    number = append()[0]
    assert stream().wait_for(number, DEADLINE_SECONDS).base >= number


def test_process_that_writes_nothing_sees_what_another_wrote(north):
    assert not current_writer().has_lock
    waited = []
    thread = in_thread(lambda: waited.append(stream().wait_for(7, DEADLINE_SECONDS)))
    wait_until(wait.waiting)
    assert not waited
    north(7)
    thread.join()
    assert waited == [VectorToken(7)]


def test_it_does_not_return_before_the_commit(north):
    """The fact is reserved and announced by nobody: waiting for it may not end."""
    with transaction.atomic():
        number = append()[0]
        with pytest.raises(WaitTimedOut, match=f"a transaction of this process has {number} open"):
            stream().wait_for(number, 0.3)
    north(number)
    stream().wait_for(number, DEADLINE_SECONDS)
    assert number in ids()


def test_it_knows_a_writer_that_has_just_entered(monkeypatch):
    """Its notification has not come yet: the own fact above its open one is not there, for ``wait_for`` as for ``read``."""
    last = append()[0]
    stream().wait_for(last, DEADLINE_SECONDS)
    slow, arrives = threading.Event(), threading.Event()
    receive = driver.ListeningConnection.receive

    def receive_late(listening: driver.ListeningConnection) -> list[tuple[int, str]]:
        if slow.is_set():
            arrives.wait(DEADLINE_SECONDS)
        return receive(listening)

    monkeypatch.setattr(driver.ListeningConnection, "receive", receive_late)
    with session() as entering, session() as cursor:
        slow.set()
        try:
            lease.take(entering, "north", lease.Identity("far", 1, "x"), 1.0)
            with driver.in_transaction(entering):
                lease.store_entry(entering, stream(), "north", last)
            cursor.execute("SELECT nextval('streams_cacheinvalidation_seq')")
            [opened] = cursor.fetchone()
            number = append()[0]
            assert number > opened
            with pytest.raises(WaitTimedOut):
                stream().wait_for(number, 0.3)
            assert stream().current().linear < opened
        finally:
            arrives.set()
        entering.execute("UPDATE streams_streamposition SET position = %s WHERE instance_name = 'north'", [number])
        notify_position(entering, "caches", "north", number)
        assert stream().wait_for(number, DEADLINE_SECONDS).base >= number


def test_vector_token_waits_for_each_writers_entry(north):
    number = append()[0]
    token = VectorToken(1, {"master": number})
    assert stream().wait_for(token, DEADLINE_SECONDS).position_of("master") >= number
    with pytest.raises(WaitTimedOut, match="writer 'north' is at 1, wanted 50"):
        stream().wait_for(VectorToken(1, {"north": 50}), 0.2)


def test_time_out_names_stream_writer_wanted_and_seen_and_is_counted(north):
    append()
    before = wait.timed_out["caches"]
    with pytest.raises(WaitTimedOut) as error:
        stream().wait_for(99, 0.2)
    for part in (
        "Stream caches",
        "wanted 99",
        "linear position is",
        "slowest writer is 'north' at 1",
        "manage.py streams",
    ):
        assert part in str(error.value)
    assert isinstance(error.value, TimeoutError)
    assert wait.timed_out["caches"] == before + 1
    assert wait.waiting() == 0


@pytest.mark.parametrize("token", [-1, True, None, 1.5, "x", "5@a b", b"5"])
def test_what_is_no_token_is_refused(token):
    with pytest.raises(TokenError):
        stream().wait_for(token, 0.1)


def test_text_token_with_and_without_its_epoch():
    number = append()[0]
    key = StreamPosition.objects.get(instance_name="master").id
    with session() as cursor:
        word = epochs.current_epoch(cursor)
    for text in (str(number), f"m1~{key}.{number}", f"{number}@{word}"):
        assert stream().wait_for(text, DEADLINE_SECONDS).position_of("master") >= number


def test_token_of_an_old_epoch_is_refused_at_once():
    append()
    with session() as cursor:
        old = epochs.current_epoch(cursor)
        epochs.begin_epoch(cursor, "put back")
    with pytest.raises(EpochChanged, match=f"Token 2@{old} of stream caches"):
        stream().wait_for(f"2@{old}", DEADLINE_SECONDS)


def test_async_waits_without_a_thread_for_each(north):
    """A thousand wait, one announcement wakes all of them."""

    async def run() -> tuple[int, int]:
        await stream().await_for(1)
        before = threading.active_count()
        tasks = [asyncio.create_task(stream().await_for(5 + number % 3, 60)) for number in range(1_000)]
        while wait.waiting() < 1_000:  # noqa: ASYNC110 - nothing tells that somebody began to wait
            await asyncio.sleep(0.01)
        threads = threading.active_count() - before
        await asyncio.to_thread(north, 7)
        await asyncio.gather(*tasks)
        return threads, len(tasks)

    threads, count = async_to_sync(run)()
    assert count == 1_000
    assert threads < 20
    assert wait.waiting() == 0


def test_async_time_out_and_cancelling_leave_nobody_behind(north):
    async def run() -> None:
        with pytest.raises(WaitTimedOut):
            await stream().await_for(99, 0.1)
        task = asyncio.create_task(stream().await_for(98, 30))
        while not wait.waiting():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async_to_sync(run)()
    assert wait.waiting() == 0


def test_async_text_token():
    number = append()[0]

    async def run() -> int:
        return (await stream().await_for(str(number), 60)).base

    assert async_to_sync(run)() >= number


def test_local_commit_wakes_without_any_notification(monkeypatch):
    """Its own vector entry is known in the process before anything is announced."""
    append()
    number = append()[0]
    stream().wait_for(number, DEADLINE_SECONDS)
    monkeypatch.setattr(current_writer()._background, "wake", lambda: None)
    done = []
    token = VectorToken(number, {"master": number + 1})
    thread = in_thread(lambda: done.append(stream().wait_for(token, DEADLINE_SECONDS)))
    wait_until(wait.waiting)
    append()
    thread.join(DEADLINE_SECONDS)
    assert done


def test_woken_after_the_connection_was_lost(north):
    give_out(9)
    stream().wait_for(1)
    done = []
    thread = in_thread(lambda: done.append(stream().wait_for(9, DEADLINE_SECONDS)))
    wait_until(wait.waiting)
    cut("replsite notifications positions")
    north(9)
    thread.join()
    assert done


def test_what_was_seen_before_a_restore_is_not_there(north):
    """The database lacks it, and is going to give its ID out again."""
    give_out(9)
    with session() as cursor:
        epochs.current_epoch(cursor)
    north(9)
    stream().wait_for(9, DEADLINE_SECONDS)
    with session() as cursor:
        epochs.begin_epoch(cursor, "test")
        cursor.execute("UPDATE streams_streamposition SET position = 5 WHERE instance_name = 'north'")
    cut("replsite notifications positions")
    wait_until(lambda: wait.views.get().seen("caches").linear == 5)
    with pytest.raises(WaitTimedOut):
        stream().wait_for(9, 0.3)
    north(9)
    assert stream().wait_for(9, DEADLINE_SECONDS).base == 9


def test_writer_that_joins_is_not_passed(north):
    """Its row tells its place before it reserves; from then on the linear position waits for it."""
    north(5)
    stream().wait_for(5, DEADLINE_SECONDS)
    with session() as cursor:
        lease.take(cursor, "south", lease.Identity("far", 2, "x"), 1.0)
        lease.store_entry(cursor, stream(), "south", 5)
        north(8)
        with pytest.raises(WaitTimedOut, match="slowest writer is 'south' at 5"):
            stream().wait_for(8, 0.5)
        cursor.execute("SELECT pg_notify('replsite_streams', 'caches south 8')")
        stream().wait_for(8, DEADLINE_SECONDS)


def test_child_of_a_fork_waits_by_itself(north):
    stream().wait_for(1)
    assert wait.views.get()
    child = os.fork()
    if child == 0:
        os._exit(wait.views.get() is not None)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- both ends of "current" -------------------------------------------------------------------------------------------


def test_current_names_both_ends(north):
    number = append()[0]
    north(number)
    seen = wait_until(lambda: (c := stream().current()).linear >= number and c)
    assert (seen.linear, seen.minimum("master")) == (number, number)
    assert seen.maximum("north") == number
    assert seen.minimum("north") == 0
    assert seen.maximum("unknown") == seen.linear


def test_idle_writer_claims_the_maximum_and_keeps_its_minimum(north):
    number = append()[0]
    give_out(number + 40)
    north(number + 40)
    seen = wait_until(lambda: (c := stream().current()).linear == number + 40 and c)
    assert seen.minimum("master") == number
    assert seen.maximum("master") == number + 40


def test_current_without_a_fact():
    assert (stream().current().linear, stream().current().maximum("x")) == (1, 1)


def test_vector_of_current_goes_to_wait_for(north):
    append()
    north(30)
    token = stream().current().token()
    assert stream().wait_for(token, DEADLINE_SECONDS).base >= token.base


# --- streams in memory ------------------------------------------------------------------------------------------------


def test_stream_that_starts_anew_is_waited_for_anew():
    """A stream in memory begins at 0 with its writer: what was seen of its former life says nothing."""
    typing = registry.get("typing")
    one = lambda: typing.append(typing.models[0](**typing.sample(1, 1)))[0]  # noqa: E731
    for _ in range(5):
        before = one()
    assert typing.wait_for(before, DEADLINE_SECONDS).base >= before
    retire_all()
    after = one()
    assert after < before
    wait_until(lambda: typing.wait_for(after, DEADLINE_SECONDS).base < before)  # its notification has been heard
    with pytest.raises(WaitTimedOut):
        typing.wait_for(before, 0.3)
