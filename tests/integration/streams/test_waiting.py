"""``wait_for``: until this process sees a position, woken by notifications and by its own commits, in time, never too early."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from streams import epochs
from streams.core.tokens import VectorToken
from streams.errors import EpochChanged, TokenError, WaitTimedOut
from streams.models import StreamPosition
from streams.waiting import wait
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import append, cut, ids, in_thread, other_writer, session, stream, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)


FAR = 10**7
"""A position that no test reaches."""


@pytest.fixture
def north() -> Iterator[Any]:
    """A session of another process, which appends as the writer ``north``."""
    with other_writer("north") as cursor:
        yield cursor


def insert(cursor: Any) -> int:
    cursor.execute("INSERT INTO streams_cacheinvalidation (cache_name) VALUES ('x') RETURNING stream_id")
    return int(cursor.fetchone()[0])


def test_reached_already_returns_where_the_stream_is():
    number = append()[0]
    wait_for_linear(number)
    assert stream().wait_for(number).base == number


def test_own_fact_is_there_soon_after_the_commit():
    number = append()[0]
    assert stream().wait_for(number, DEADLINE_SECONDS).base >= number


@pytest.mark.parametrize("token", [-1, True, None, 1.5, "x", "5@a b", b"5"])
def test_what_is_no_token_is_refused(token):
    with pytest.raises(TokenError):
        stream().wait_for(token, 0.1)


def test_text_token_with_and_without_its_epoch():
    number = append()[0]
    wait_for_linear(number)
    key = StreamPosition.objects.get(instance_name="master").id
    with session() as cursor:
        word = epochs.current_epoch(cursor)
    for text in (str(number), f"m1~{key}.{number}", f"{number}@{word}"):
        assert stream().wait_for(text, DEADLINE_SECONDS).position_of("master") >= number


def test_async_text_token():
    number = append()[0]

    async def run() -> int:
        return (await stream().await_for(str(number), 60)).base

    assert async_to_sync(run)() >= number


def test_process_that_writes_nothing_sees_what_another_wrote(north):
    """The other process is no program of ours, and sends no hint."""
    waited = []
    north.execute("BEGIN")
    number = insert(north)
    thread = in_thread(lambda: waited.append(stream().wait_for(number, DEADLINE_SECONDS)))
    wait_until(wait.waiting)
    assert not waited
    north.execute("COMMIT")
    thread.join()
    assert waited == [VectorToken(number)]


def test_it_does_not_return_before_the_commit():
    with transaction.atomic():
        number = append()[0]
        with pytest.raises(WaitTimedOut, match=f"wanted {number}"):
            stream().wait_for(number, 0.3)
    stream().wait_for(number, DEADLINE_SECONDS)
    assert number in ids()


def test_it_knows_a_writer_that_nobody_has_seen(north):
    """The own fact above the open one of another is not there, for ``wait_for`` as for ``read``."""
    stream().wait_for(append()[0], DEADLINE_SECONDS)
    north.execute("BEGIN")
    opened, number = insert(north), append()[0]
    assert number > opened
    with pytest.raises(WaitTimedOut):
        stream().wait_for(number, 0.3)
    assert stream().current().linear < opened
    north.execute("COMMIT")
    assert stream().wait_for(number, DEADLINE_SECONDS).base >= number


def test_vector_token_waits_for_each_writers_entry(north):
    before = insert(north)
    number = append()[0]
    stream().wait_for(number, DEADLINE_SECONDS)
    north.execute("BEGIN")
    opened, above = insert(north), append()[0]
    token = VectorToken(1, {"master": above})
    assert stream().wait_for(token, DEADLINE_SECONDS).position_of("master") >= above
    with pytest.raises(WaitTimedOut, match=f"writer 'north' is at {number}, wanted {opened}"):
        stream().wait_for(VectorToken(1, {"north": opened}), 0.2)
    assert before < number < opened
    north.execute("COMMIT")
    assert stream().wait_for(VectorToken(1, {"north": opened}), DEADLINE_SECONDS).base >= opened


def test_time_out_names_stream_writer_wanted_and_seen_and_is_counted(north):
    insert(north)
    number = append()[0]
    stream().wait_for(number, DEADLINE_SECONDS)
    north.execute("BEGIN")
    insert(north)
    stream().wait_for(VectorToken(1, {"master": append()[0]}), DEADLINE_SECONDS)
    before = wait.timed_out["caches"]
    with pytest.raises(WaitTimedOut) as error:
        stream().wait_for(FAR, 0.2)
    north.execute("COMMIT")
    for part in (
        "Stream caches",
        f"wanted {FAR}",
        "linear position is",
        f"slowest writer is 'north' at {number}",
        "manage.py streams",
    ):
        assert part in str(error.value)
    assert isinstance(error.value, TimeoutError)
    assert wait.timed_out["caches"] == before + 1
    assert wait.waiting() == 0


def test_token_of_an_old_epoch_is_refused_at_once():
    append()
    with session() as cursor:
        old = epochs.current_epoch(cursor)
        epochs.begin_epoch(cursor, "put back")
    with pytest.raises(EpochChanged, match=f"Token 2@{old} of stream caches"):
        stream().wait_for(f"2@{old}", DEADLINE_SECONDS)


def test_async_waits_without_a_thread_for_each(north):
    """A thousand wait, one commit wakes all of them."""
    begun = append()[0]
    north.execute("BEGIN")
    numbers = [insert(north) for _ in range(3)]

    async def run() -> tuple[int, int]:
        await stream().await_for(begun)
        before = threading.active_count()
        tasks = [asyncio.create_task(stream().await_for(numbers[number % 3], 60)) for number in range(1_000)]
        while wait.waiting() < 1_000:  # noqa: ASYNC110 - nothing tells that somebody began to wait
            await asyncio.sleep(0.01)
        threads = threading.active_count() - before
        await asyncio.to_thread(north.execute, "COMMIT")
        await asyncio.gather(*tasks)
        return threads, len(tasks)

    threads, count = async_to_sync(run)()
    assert count == 1_000
    assert threads < 20
    assert wait.waiting() == 0


def test_async_time_out_and_cancelling_leave_nobody_behind():
    async def run() -> None:
        with pytest.raises(WaitTimedOut):
            await stream().await_for(FAR, 0.1)
        task = asyncio.create_task(stream().await_for(FAR, 30))
        while not wait.waiting():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async_to_sync(run)()
    assert wait.waiting() == 0


def test_woken_after_the_connection_was_lost(north):
    stream().wait_for(append()[0])
    north.execute("BEGIN")
    number, done = insert(north), []
    thread = in_thread(lambda: done.append(stream().wait_for(number, DEADLINE_SECONDS)))
    wait_until(wait.waiting)
    cut("replsite notifications positions")
    north.execute("COMMIT")
    thread.join()
    assert done


def test_what_was_seen_before_a_restore_is_not_there(north):
    """The database lacks it, and is going to give its ID out again."""
    first = insert(north)
    stream().wait_for(first, DEADLINE_SECONDS)
    with session() as cursor:
        epochs.current_epoch(cursor)
    later = insert(north)
    stream().wait_for(later, DEADLINE_SECONDS)
    with session() as cursor:
        cursor.execute(
            "BEGIN; SET LOCAL streams.maintenance = on; DELETE FROM streams_cacheinvalidation WHERE stream_id = %s; "
            "SELECT setval('streams_cacheinvalidation_seq', %s); UPDATE streams_streamposition SET position = %s",
            [later, first, first],
        )
        epochs.begin_epoch(cursor, "test")
        cursor.execute("COMMIT")
    cut("replsite looker")
    cut("replsite notifications positions")
    wait_until(lambda: wait.views.get().seen("caches").linear == first)
    with pytest.raises(WaitTimedOut):
        stream().wait_for(later, 0.3)
    assert insert(north) == later
    assert stream().wait_for(later, DEADLINE_SECONDS).base == later


def test_child_of_a_fork_waits_by_itself():
    stream().wait_for(append()[0])
    assert wait.views.get()
    child = os.fork()
    if child == 0:
        os._exit(wait.views.get() is not None)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- both ends of "current" -------------------------------------------------------------------------------------------


# --- streams in memory ------------------------------------------------------------------------------------------------


def test_current_names_both_ends(north):
    number = append()[0]
    stream().wait_for(number, DEADLINE_SECONDS)
    above = insert(north)
    stream().wait_for(above, DEADLINE_SECONDS)
    seen = stream().current()
    assert (seen.linear, seen.minimum("master"), seen.minimum("north")) == (above, number, above)
    assert seen.maximum("master") == seen.maximum("north") == above, "an idle writer stands at what was given out"
    assert (seen.minimum("unknown"), seen.maximum("unknown")) == (0, seen.linear)


def test_current_without_a_fact():
    assert (stream().current().linear, stream().current().maximum("x")) == (1, 1)


def test_current_has_what_this_process_has_committed():
    """Also if nobody looks: this process then looks itself."""
    for count in (1, 3):
        taken = append(count)
        assert stream().current().linear == taken[-1]


def test_current_has_what_another_program_has_committed_where_nobody_looks(north):
    assert insert(north) == stream().current().linear


def test_vector_of_current_goes_to_wait_for(north):
    insert(north)
    stream().wait_for(append()[0], DEADLINE_SECONDS)
    north.execute("BEGIN")
    insert(north)
    append()
    token = stream().current().token()
    assert token.entries
    assert stream().wait_for(token, DEADLINE_SECONDS).base >= token.base
    north.execute("COMMIT")
