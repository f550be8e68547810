"""``handles(Model, each=True)``: one instance at a time, each fact in a transaction of its own, exactly once."""

from __future__ import annotations

import io
import signal
import threading
import time
from contextlib import contextmanager
from functools import partial

import pytest
from django.core.management import call_command
from django.db import connection

from streams.catalog.models import CacheInvalidation
from streams.errors import BadHandler, HandlerFailed, UnknownTable
from streams.follow import Begin, Handler, OnFailure, Reader, handles, parked_facts, retry_parked
from streams.follow import handlers as declared
from streams.follow.lease import ReaderLock
from streams.follow.table_source import TableSource
from streams.management.commands import runhandlers
from streams.models import StreamPosition
from tests.support.waiting import wait_until
from tests.support.writing import append, fact, stream, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)


def transaction_number() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_xact_id()::text::bigint")
        return int(cursor.fetchone()[0])


def handler(function, **options) -> Handler:
    return Handler("caches", "mailer", function, each=True, begin=Begin.OLDEST, **options)


@pytest.fixture
def forgotten():
    yield
    declared._handlers.pop("mailer", None)


def test_model_names_its_stream(forgotten):
    @handles(CacheInvalidation, reader="mailer", each=True)
    def mail(one):
        pass

    (found,) = declared.handlers_of("mailer")
    assert (found.stream, found.each) == ("caches", True)


def test_model_without_a_stream_is_refused():
    with pytest.raises(UnknownTable, match="holds no facts"):
        handles(StreamPosition, reader="mailer")
    with pytest.raises(BadHandler, match="colour"):
        handles(CacheInvalidation, reader="mailer", colour="red")(print)


def test_a_reader_is_announced_before_it_handles_a_fact(monkeypatch):
    """A handler printed first, now and then."""
    wait_for_linear(append()[-1])
    printed, printed_before = io.StringIO(), []
    announce = runhandlers.Command.announce_ready

    def announce_late(command, line):
        time.sleep(0.2)  # on a busy machine
        announce(command, line)

    monkeypatch.setattr(runhandlers.Command, "announce_ready", announce_late)
    found = handler(lambda one: printed_before.append(printed.getvalue()))
    monkeypatch.setattr(runhandlers, "Reader", partial(Reader, handlers=[found]))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    call_command("runhandlers", "mailer", once=True, stdout=printed)
    assert printed_before == ["ready readers=mailer\n"]


@pytest.fixture
def jobs():
    """A queue in the handler's database: enqueues a number, and tells all that were."""

    class Queue:
        def enqueue(self, *, number: int) -> None:
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO jobs VALUES (%s)", [number])

        def numbers(self) -> list[int]:
            with connection.cursor() as cursor:
                cursor.execute("SELECT number FROM jobs ORDER BY number")
                return [number for (number,) in cursor.fetchall()]

    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE jobs (number bigint)")
    yield Queue()
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE jobs")


@pytest.mark.parametrize("by_function", [False, True])
def test_a_task_is_enqueued_in_the_transaction_of_the_cursor(jobs, by_function):
    first, second, third = append(3)
    wait_for_linear(third)
    failed = []

    def enqueue_and_fail_once(*, number: int) -> None:
        jobs.enqueue(number=number)
        if not failed:
            failed.append(number)
            raise OSError("after the job was enqueued")

    def arguments(one):
        return None if one.stream_id == second else {"number": one.stream_id}

    task = enqueue_and_fail_once if by_function else jobs
    assert Reader("mailer", [handler(arguments, task=task, retry_seconds=0.01)]).catch_up() == 3
    assert jobs.numbers() == [first, third]
    assert failed == ([first] if by_function else [])


def test_a_task_is_for_each_fact():
    with pytest.raises(BadHandler, match="each=True"):
        handles(CacheInvalidation, reader="mailer", task=print)(print)


@pytest.mark.parametrize("chunk_rows", [1, 3, 1000])
def test_each_fact_comes_once_in_order_in_a_transaction_of_its_own(chunk_rows):
    expected = [*append(4), *append(3)]
    wait_for_linear(expected[-1])
    seen, numbers = [], set()

    def mail(one):
        assert isinstance(one, CacheInvalidation)
        assert one.token == str(one.stream_id)
        seen.append(one.stream_id)
        numbers.add(transaction_number())

    assert Reader("mailer", [handler(mail, chunk_rows=chunk_rows)]).catch_up() == 7
    assert seen == expected
    assert len(numbers) == 7
    assert Reader("mailer", [handler(mail, chunk_rows=chunk_rows)]).catch_up() == 0


def test_instances_of_a_chunk_are_loaded_together():
    wait_for_linear(append(20)[-1])
    loads = []

    def mail(one):
        loads.extend(query["sql"] for query in connection.queries_log if 'cacheinvalidation" WHERE' in query["sql"])
        connection.queries_log.clear()

    connection.force_debug_cursor = True
    try:
        reader = Reader("mailer", [handler(mail)])
        with held(reader) as (owner, lock):
            (loop,) = [reader._loop(one, owner, lock, until_caught_up=True) for one in reader._handlers]
            loop.run()
    finally:
        connection.force_debug_cursor = False
    assert loop.error is None
    assert len(loads) == 1


@contextmanager
def held(reader):
    lock = ReaderLock(reader.name, "default", dict)
    try:
        yield lock.acquire(), lock
    finally:
        lock.release()


def test_fact_that_fails_is_parked_alone_with_fresh_instances_and_retried():
    numbers = [*append(2), *stream().append(cache_name="bad", keys=[]), *append(2)]
    wait_for_linear(numbers[-1])
    seen, attempts = [], []

    def mail(one):
        if one.cache_name == "bad":
            attempts.append(one.stream_id)
            one.cache_name = "changed by the attempt"
            raise ValueError("no such address")
        seen.append(one.stream_id)

    options = {"on_failure": OnFailure.PARK, "attempts": 3, "retry_seconds": 0.01}
    Reader("mailer", [handler(mail, **options)]).catch_up()
    assert seen == numbers[:2] + numbers[3:]  # none twice: the others were not rolled back
    assert attempts == [numbers[2]] * 3
    (parked,) = parked_facts("mailer")
    assert (parked.token, parked.attempts) == (numbers[2], 3)

    taken = []
    declared._handlers["mailer"] = {"caches": handler(lambda one: taken.append(one.cache_name), **options)}
    try:
        assert retry_parked("mailer") == (1, 0)
    finally:
        del declared._handlers["mailer"]
    assert taken == ["bad"]


def test_reader_that_stops_has_stored_what_was_handled():
    numbers = append(5)
    wait_for_linear(numbers[-1])
    seen = []

    def mail(one):
        if one.stream_id == numbers[3] and len(seen) < 4:
            raise ValueError
        seen.append(one.stream_id)

    with pytest.raises(HandlerFailed, match=f"token {numbers[3]}"):
        Reader("mailer", [handler(mail, attempts=1)]).catch_up()
    assert seen == numbers[:3]
    seen.append(0)
    Reader("mailer", [handler(mail, attempts=1)]).catch_up()
    assert seen == [*numbers[:3], 0, *numbers[3:]]


def test_stop_ends_between_two_facts():
    numbers = append(50)
    wait_for_linear(numbers[-1])
    seen = []

    def mail(one):
        seen.append(one.stream_id)
        if len(seen) == 3:
            reader.stop()

    reader = Reader("mailer", [handler(mail)])
    reader.run()
    assert seen == numbers[:3]
    Reader("mailer", [handler(mail)]).catch_up()
    assert seen == numbers


def test_positions_are_read_for_the_hint_and_the_announcement_only(monkeypatch):
    """After a fact was handled, the positions are not read again before something new is heard."""
    read, seen = [], []
    next_batch = TableSource.next
    monkeypatch.setattr(TableSource, "next", lambda source, after: read.append(after) or next_batch(source, after))
    wait_for_linear(append(1)[0])
    reader = Reader("mailer", [handler(lambda one: seen.append(one.stream_id))])
    thread = threading.Thread(target=reader.run)
    thread.start()
    try:
        wait_until(lambda: len(seen) == 1)
        for n in range(20):
            append(1)
            wait_until(lambda n=n: len(seen) == n + 2)
    finally:
        reader.stop()
        thread.join()
    assert len(read) < 54  # 21 facts, two reads each, and heartbeats; with a look behind each fact they would be 63


def test_handler_outside_of_a_transaction_gets_one_fact_for_each_move_of_the_cursor():
    numbers = append(4)
    wait_for_linear(numbers[-1])
    seen = []

    def mail(one):
        assert not connection.in_atomic_block
        seen.append(one.stream_id)
        if len(seen) == 3:
            raise ValueError

    with pytest.raises(HandlerFailed):
        Reader("mailer", [handler(mail, atomic=False, attempts=1)]).catch_up()
    seen.append(0)
    Reader("mailer", [handler(mail, atomic=False, attempts=1)]).catch_up()
    assert seen == [*numbers[:3], 0, *numbers[2:]]  # only the fact that failed comes again


def test_rows_of_one_fact_come_one_by_one_in_one_transaction():
    with stream().reserve() as reservation:
        made = [fact(name) for name in ("a", "b", "c")]
        for one in made:
            one.stream_id = reservation.ids[0]
        reservation.write(*made)
    wait_for_linear(reservation.ids[0])
    seen, numbers = [], set()

    def mail(one):
        seen.append(one.cache_name)
        numbers.add(transaction_number())

    Reader("mailer", [handler(mail)]).catch_up()
    assert (seen, len(numbers)) == (["a", "b", "c"], 1)
