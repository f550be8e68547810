"""``Stream.read`` and ``Stream.listen``: every fact once, in order, whole, however writers' transactions overlap."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils.connection import ConnectionDoesNotExist

from streams import epochs
from streams.catalog.models import CacheInvalidation
from streams.core.tokens import VectorToken
from streams.errors import BadLimit, EpochChanged, ForeignFact, InTransaction, ResyncNeeded, TokenError
from streams.maintenance.trim import Keep, TrimRequest, trim
from tests.support.async_waiting import listeners_that_wait, wait_for
from tests.support.effort import SEED
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import (
    append,
    cut,
    fact,
    ids,
    in_thread,
    other_writer,
    server_process,
    session,
    sessions,
    stream,
    terminate,
    wait_for_linear,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module", autouse=True)
def _asgirefs_thread():
    """The connection of asgiref's thread would keep the test database from being dropped."""
    yield
    asyncio.run(sync_to_async(connections.close_all)())


def numbers(page) -> list[int]:
    return [one.stream_id for one in page.facts]


def all_pages(**options) -> list[int]:
    found, page = [], stream().read(**options)
    found += numbers(page)
    while not page.at_end:
        key = "before" if options.get("newest") else "after"
        page = stream().read(**options | {key: page.next})
        found += numbers(page)
    return found


# --- append ---------------------------------------------------------------------------------------------------------


def test_append_takes_the_fields_of_a_fact():
    (number,) = stream().append(cache_name="a", keys=["k"])
    (found,) = stream().read().facts
    assert (found.stream_id, found.cache_name, found.keys) == (number, "a", ["k"])


def test_append_of_facts_and_fields_is_refused():
    with pytest.raises(ForeignFact, match="one or the other"):
        stream().append(fact(), cache_name="a")
    with pytest.raises(TypeError, match="colour"):
        stream().append(colour="red")


async def test_aappend_takes_fields():
    await stream().aappend(cache_name="a", keys=["k"])
    page = await stream().aread()
    assert [one.cache_name for one in page.facts] == ["a"]


# --- read -----------------------------------------------------------------------------------------------------------


def test_stream_without_facts_gives_a_token_for_later():
    page = stream().read()
    assert (page.facts, page.at_end) == ([], True)
    number = append()[0]
    assert numbers(stream().read(after=page.next)) == [number]


def test_process_reads_its_own_write_at_once():
    for _ in range(20):
        number = append()[0]
        assert numbers(stream().read(newest=True, limit=1)) == [number]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 50])
def test_pages_have_every_fact_once_in_order(limit):
    expected = [number for _ in range(7) for number in append(2)]
    assert all_pages(limit=limit) == expected
    assert all_pages(limit=limit, newest=True) == expected[::-1]


def test_page_has_at_most_the_limit_and_says_if_more_is_there():
    expected = append(5)
    page = stream().read(limit=3)
    assert (numbers(page), page.at_end) == (expected[:3], False)
    page = stream().read(after=page.next, limit=3)
    assert (numbers(page), page.at_end) == (expected[3:], True)
    page = stream().read(after=page.next, limit=3)
    assert (page.facts, page.at_end) == ([], True)


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
@pytest.mark.parametrize("newest", [False, True])
def test_rows_of_one_fact_stay_together(limit, newest):
    expected = []
    for rows in (1, 3, 1, 12, 2):
        with stream().reserve() as reservation:
            made = [fact(f"row {n}") for n in range(rows)]
            for one in made:
                one.stream_id = reservation.ids[0]
            reservation.write(*made)
        expected.append((reservation.ids[0], [f"row {n}" for n in range(rows)]))
    found, page = [], None
    while page is None or not page.at_end:
        key = "before" if newest else "after"
        page = stream().read(newest=newest, limit=limit, **({key: page.next} if page else {}))
        assert len(page.facts) <= limit or len(set(numbers(page))) == 1
        for one in page.facts:
            if not found or found[-1][0] != one.stream_id:
                found.append((one.stream_id, []))
            found[-1][1].append(one.cache_name)
    assert found == (expected[::-1] if newest else expected)


def test_token_of_a_fact_and_the_list_of_an_append_are_good_for_after():
    first, *others = append(3)
    one = stream().read(limit=1).facts[0]
    for token in (one.token, first, [first], VectorToken(first), str(first)):
        assert numbers(stream().read(after=token)) == others


def test_fact_of_an_open_transaction_is_left_out_and_found_later():
    """A takes 5 and stays open, B commits 6: neither may be read yet, and then both are."""
    before = append()[0]
    page = stream().read()
    with transaction.atomic():
        first = append()[0]
        assert numbers(stream().read(after=page.next)) == []
        other: list[int] = []
        in_thread(lambda: other.extend(append())).join()
        page = stream().read(after=page.next)
        assert (page.facts, page.at_end) == ([], True)
    assert numbers(stream().read(after=page.next)) == [first, *other]
    assert numbers(stream().read()) == [before, first, *other]


def test_vector_token_gives_each_writers_facts_after_its_place():
    first, second, third = append(3)
    assert numbers(stream().read(after=VectorToken(first, {"master": second}))) == [third]
    page = stream().read(after=VectorToken(1, {"master": third + 5}))
    assert page.facts == []
    append()
    assert stream().read(after=page.next).facts == []  # the vector's place is kept


def test_facts_that_were_trimmed_are_an_error_and_not_skipped():
    old = append(5)
    wait_for_linear(old[-1])
    token = stream().read(limit=1).next
    with session() as cursor:
        list(trim(cursor, TrimRequest(stream(), Keep(facts=1), settle_seconds=0.0)))
    with pytest.raises(ResyncNeeded, match="trimmed"):
        stream().read(after=token)
    with pytest.raises(ResyncNeeded, match="trimmed"):
        next(stream().listen(after=token, beat=1))
    assert numbers(stream().read()) == all_pages() == ids()


def test_token_of_another_epoch_is_refused():
    append()
    token = stream().read().next
    listener = stream().listen(after=token, beat=0.2)
    assert next(listener) is None
    with session() as cursor:
        epochs.begin_epoch(cursor, "test")
    with pytest.raises(EpochChanged):
        stream().read(after=token)
    with pytest.raises(EpochChanged):
        stream().read(newest=True, before=token)
    append()
    with pytest.raises(EpochChanged):
        for fact in listener:
            assert fact is None  # on a slow machine a beat comes before the fact


@pytest.mark.parametrize("token", ["", "x", "5@?", "m5~9.9", -1, True, 2.5, [], [None]])
def test_bad_tokens_are_refused(token):
    with pytest.raises(TokenError):
        stream().read(after=token)
    with pytest.raises(TokenError):
        next(stream().listen(after=token, beat=0.1))


@pytest.mark.parametrize("limit", [0, -1, 10_001, True, 2.5, "50"])
def test_limits_are_bounded(limit):
    with pytest.raises(BadLimit, match="1 to 10000"):
        stream().read(limit=limit)


def test_before_and_after_belong_to_their_kind_of_page():
    with pytest.raises(TokenError, match="before="):
        stream().read(newest=True, after=1)
    with pytest.raises(TokenError, match="newest=True"):
        stream().read(before=1)


def test_a_page_in_a_transaction_with_one_snapshot_ends_where_the_snapshot_does():
    """It counted what this process had committed since, and the next page began behind it."""
    before = append()
    wait_for_linear(before[-1])  # in the table, where the snapshot shows it
    after = stream().read(newest=True).facts[0]._token
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        since: list[int] = []
        in_thread(lambda: since.extend(append())).join()
        page = stream().read(after=after)
        at = stream().current()
    assert (numbers(page), at.linear, at.maximum("master")) == ([], before[-1], before[-1])
    wait_for_linear(since[-1])
    assert numbers(stream().read(after=page.next)) == since


# --- listen ---------------------------------------------------------------------------------------------------------


def test_listener_without_a_token_begins_at_the_call():
    append()
    listener = stream().listen(beat=5)
    number = append()[0]
    assert next(listener).stream_id == number


@pytest.mark.parametrize("beat", [0, -1, "1"])
def test_a_beat_that_is_no_time_is_refused(beat):
    with pytest.raises(ValueError, match=r"listen\(beat=.*\) is no time"):
        stream().listen(beat=beat)


def test_listener_gives_none_after_each_beat_and_then_facts():
    listener = stream().listen(beat=0.2)
    began = time.monotonic()
    assert [next(listener), next(listener)] == [None, None]
    assert time.monotonic() - began >= 0.4
    number = append()[0]
    assert next(listener).stream_id == number
    assert next(listener) is None


def test_listener_is_woken_and_does_not_poll(django_assert_num_queries):
    listener = stream().listen(beat=0.5)
    assert next(listener) is None
    with django_assert_num_queries(0):
        assert [next(listener), next(listener)] == [None, None]
    late = threading.Timer(0.3, lambda: in_thread(append))
    late.start()
    long = stream().listen(beat=60)
    assert next(long).stream_id
    late.join()


def test_page_of_a_listener_takes_three_statements(django_assert_num_queries):
    """For the epoch, the rows, and what was trimmed, and three that limit waits. The position is what woke the listener."""
    listener = stream().listen(beat=0.01)
    assert next(listener) is None
    (number,) = append()
    stream().wait_for(number)
    with django_assert_num_queries(3 + 3):
        assert next(listener).stream_id == number


@pytest.mark.parametrize("is_first", [True, False])
def test_listener_waits_for_a_locked_table_without_keeping_its_thread(is_first: bool, caplog):
    """All browsers of a process read in one thread: the first that met a locked table kept the others from their facts."""
    token = stream().read(newest=True).next
    listener = stream().listen(after=token, beat=0.1)
    if not is_first:
        assert next(listener) is None
    with session() as cursor:
        (number,) = append()
        stream().wait_for(number)
        cursor.execute("BEGIN; LOCK TABLE streams_cacheinvalidation")
        end = threading.Timer(DEADLINE_SECONDS / 2, cursor.execute, ["ROLLBACK"])
        end.start()
        assert next(listener) is None
        end.cancel()
        end.join()
        assert "streams_cacheinvalidation is locked by database session" in caplog.text
        cursor.execute("ROLLBACK")
    assert next(found for found in listener if found is not None).stream_id == number


def test_listener_inside_of_a_transaction_is_refused():
    with transaction.atomic(), pytest.raises(InTransaction, match="atomic"):
        next(stream().listen(beat=1))


def test_close_from_another_thread_ends_the_loop():
    listener = stream().listen()
    found = []
    thread = in_thread(lambda: found.extend(listener))
    wait_until(lambda: listener.wake is not None)
    number = append()[0]
    wait_until(lambda: found)
    listener.close()
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()
    assert [one.stream_id for one in found] == [number]


def test_slow_listener_keeps_one_page_in_memory():
    listener = stream().listen(beat=5)
    for _ in range(3):
        append(400)
    assert next(listener).stream_id
    assert len(listener._facts) < 400
    assert len([next(listener) for _ in range(1199)]) == 1199


def test_lost_connections_lose_no_fact_and_double_none():
    listener = stream().listen(beat=0.2)
    found, expected, stop = [], [], threading.Event()

    def listen() -> None:
        for one in listener:
            if one is not None:
                found.append(one.stream_id)
            elif stop.is_set() and len(found) >= len(expected):
                return

    thread = in_thread(listen)
    wait_until(lambda: listener.wake is not None)  # a listener whose first read is cut off raises the error
    chance = random.Random(SEED)
    for round in range(12):
        expected += append(chance.randrange(1, 30))
        if round % 3 == 1:
            cut("replsite positions")
            others = {pid for pid, name in sessions().items() if not name.startswith("replsite writer")}
            terminate(*others - {server_process()})
    stop.set()
    thread.join(DEADLINE_SECONDS)
    asyncio.run(sync_to_async(connections.close_all)())  # that of asgiref's thread was cut, too
    assert found == expected


async def test_async_listener_gives_facts_and_beats():
    await stream().aappend(cache_name="before", keys=[])
    listener = stream().listen(beat=0.2)
    assert await anext(listener) is None
    (number,) = await stream().aappend(cache_name="a", keys=[])
    async for one in listener:
        if one is not None:
            assert one.stream_id == number
            break
    await listener.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(listener)


async def test_many_async_listeners_share_reads_and_need_no_threads(monkeypatch):
    from streams.waiting import listen

    reads, real = [], listen.page_after
    monkeypatch.setattr(listen, "page_after", lambda *given, **more: reads.append(1) or real(*given, **more))
    (number,) = await stream().aappend(cache_name="first", keys=[])
    found: list[list[int]] = [[] for _ in range(500)]

    async def consume(place: int) -> None:
        async for one in stream().listen(after=str(number), beat=30):
            found[place].append(one.stream_id)
            if len(found[place]) == 3:
                return

    before = threading.active_count()
    tasks = [asyncio.create_task(consume(place)) for place in range(500)]
    await wait_for(lambda: listeners_that_wait() == 500)
    threads = threading.active_count() - before
    expected = []
    for facts in range(1, 4):
        expected += await stream().aappend(cache_name="next", keys=[])
        await wait_for(lambda facts=facts: all(len(of_listener) == facts for of_listener in found))
    await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE_SECONDS)
    assert all(one == expected for one in found)
    assert len(reads) < 50
    assert threads < 30


async def test_listener_that_ends_leaves_the_read_to_others_at_its_place(monkeypatch):
    from streams.waiting import listen

    begins, may_end, reads = threading.Event(), threading.Event(), []

    def page_after(*given, **more):
        reads.append(1)
        begins.set()
        may_end.wait(DEADLINE_SECONDS)
        return real(*given, **more)

    real = listen.page_after
    (number,) = await stream().aappend(cache_name="first", keys=[])
    listeners = [stream().listen(after=number, beat=60) for _ in range(3)]
    waiting = [asyncio.create_task(anext(listener)) for listener in listeners]
    await wait_for(lambda: listeners_that_wait() == 3)
    monkeypatch.setattr(listen, "page_after", page_after)
    async with asyncio.timeout(DEADLINE_SECONDS):
        (expected,) = await stream().aappend(cache_name="next", keys=[])
        await wait_for(begins.is_set)
        waiting[0].cancel()
        await asyncio.sleep(0)
        may_end.set()
        assert [(await task).stream_id for task in waiting[1:]] == [expected] * 2
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    assert len(reads) == 1
    assert not listeners_that_wait()


async def test_error_of_a_shared_read_comes_to_all_at_its_place(monkeypatch):
    from streams.waiting import listen

    (number,) = await stream().aappend(cache_name="a", keys=[])
    listeners = [stream().listen(after=number, beat=60) for _ in range(3)]
    waiting = [asyncio.create_task(anext(listener)) for listener in listeners]
    await wait_for(lambda: listeners_that_wait() == 3)
    reads = []

    def fail(*given, **more):
        reads.append(1)
        raise EpochChanged("restored")

    monkeypatch.setattr(listen, "page_after", fail)
    await stream().aappend(cache_name="b", keys=[])
    async with asyncio.timeout(DEADLINE_SECONDS):
        found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in found] == [EpochChanged] * 3
    assert len(reads) == 1


async def test_error_of_one_listener_is_not_that_of_others_at_its_place(monkeypatch):
    from streams.waiting import listen

    (number,) = await stream().aappend(cache_name="a", keys=[])
    listeners = [stream().listen(after=number, beat=60) for _ in range(3)]
    waiting = [asyncio.create_task(anext(listener)) for listener in listeners]
    await wait_for(lambda: listeners_that_wait() == 3)
    real, reads = listen.page_after, []

    def fail_once(*given, **more):
        reads.append(1)
        if len(reads) == 1:
            raise RuntimeError("the thread of this request has ended")
        return real(*given, **more)

    monkeypatch.setattr(listen, "page_after", fail_once)
    (expected,) = await stream().aappend(cache_name="b", keys=[])
    async with asyncio.timeout(DEADLINE_SECONDS):
        found = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(found[0], RuntimeError)
    assert [fact.stream_id for fact in found[1:]] == [expected] * 2
    assert len(reads) == 2


async def test_cancelled_listener_leaves_nothing_behind():
    from streams.waiting import wait

    listener = stream().listen(beat=30)
    task = asyncio.create_task(anext(listener))
    await asyncio.to_thread(wait_until, wait.waiting, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert wait.waiting() == 0
    (number,) = await stream().aappend(cache_name="a", keys=[])
    assert (await anext(listener)).stream_id == number  # the listener itself goes on


def test_several_writers_and_listeners_see_the_same_facts_in_the_same_order():
    """Threads and another writer commit and roll back in any order; each listener sees what the table has at the end."""
    listeners = [stream().listen(beat=0.3) for _ in range(2)]
    found: list[list[int]] = [[], [], []]
    done = threading.Event()

    def listen(place: int) -> None:
        for one in listeners[place]:
            if one is not None:
                found[place].append(one.stream_id)
            elif done.is_set() and len(found[place]) == len(ids()):
                return

    async def alisten() -> None:
        async for one in stream().listen(after=1, beat=0.3):
            if one is not None:
                found[2].append(one.stream_id)
            elif done.is_set() and len(found[2]) == len(await sync_to_async(ids)()):
                return

    def write(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(30):
            try:
                with transaction.atomic():
                    append(chance.randrange(1, 4))
                    time.sleep(chance.random() / 100)
                    if chance.random() < 0.3:
                        raise RuntimeError
            except RuntimeError:
                pass

    readers = [in_thread(lambda place=place: listen(place)) for place in range(2)]
    readers.append(in_thread(lambda: asyncio.run(alisten())))
    writers = [in_thread(lambda seed=seed: write(seed)) for seed in range(4)]
    for thread in writers:
        thread.join(DEADLINE_SECONDS)
    done.set()
    for thread in readers:
        thread.join(DEADLINE_SECONDS)
    assert found[0] == found[1] == found[2] == ids()


def test_another_writer_that_is_behind_holds_the_listener_back():
    number = append()[0]
    wait_for_linear(number)
    token = stream().read().next
    with other_writer("north") as cursor:
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO streams_cacheinvalidation (cache_name) VALUES ('x') RETURNING stream_id")
        theirs = cursor.fetchone()[0]
        mine = append()[0]
        listener = stream().listen(after=token, beat=0.5)
        with CaptureQueriesContext(connection) as queries:
            assert next(listener) is None
        assert len(queries) < 200, "it waits, and does not read again and again"
        assert stream().read(after=token).facts == []
        cursor.execute("COMMIT")
        listener = stream().listen(after=token, beat=20)
        assert [next(listener).stream_id for _ in range(2)] == [theirs, mine]


def test_token_is_empty_before_the_append():
    one = fact()
    assert one.token == ""
    stream().append(one)
    assert one.token == str(one.stream_id)
    assert CacheInvalidation.objects.get().token == one.token


def test_direct_connections_of_listeners_are_few():
    for _ in range(5):
        append()
        assert next(stream().listen(after=1, beat=1)) is not None
    assert len(sessions("replsite positions")) <= 2


# --- the router -----------------------------------------------------------------------------------------------------


class NorthRouter:
    """Sends the writes of the stream to another database."""

    def db_for_write(self, model, **hints):
        return "north" if model is CacheInvalidation else None


def test_router_chooses_the_database(settings):
    settings.DATABASE_ROUTERS = [NorthRouter()]
    assert stream().database == "north"
    for call in (lambda: stream().append(fact()), stream().read, lambda: next(stream().listen(after=1, beat=1))):
        with pytest.raises(ConnectionDoesNotExist, match="north"):
            call()
    number = stream().append(fact(), using="default")[0]
    assert numbers(stream().read(using="default")) == [number]


def test_without_a_router_it_is_the_database_of_the_settings(settings):
    assert stream().database == "default"
    settings.REPLSITE_DATABASE = "south"
    assert stream().database == "south"
