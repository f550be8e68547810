"""Who writes: a name that several may have, and what becomes of a writer that writes nothing more."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from django.db import DatabaseError, InterfaceError, connection, connections, transaction
from django.test import override_settings

from streams.errors import BadInstanceName, SequenceBehind, SequenceUnfit, WriterNotAllowed
from streams.models import StreamPosition
from streams.reading.position_store import RETIRED_AFTER
from streams.reading.rows import stored_positions
from streams.writing.name import use_instance, writer_name
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import (
    append,
    as_instance,
    fact,
    ids,
    in_thread,
    linear,
    session,
    sessions,
    stored,
    stream,
    terminate,
    wait_for_linear,
)

pytestmark = pytest.mark.django_db(transaction=True)


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "two words", "x" * 101, "tab\t"])
def test_name_that_cannot_travel_is_refused_at_once(name):
    with pytest.raises(BadInstanceName, match="cannot be an instance name"):
        use_instance(name)


@pytest.mark.parametrize(("pattern", "name"), [("web-{n}", "web"), ("web-3", "web-3"), ("{n}", "server")])
def test_a_number_in_a_name_is_left_out(pattern, name):
    with as_instance(pattern):
        assert writer_name() == name


def test_writer_that_may_not_write_the_stream():
    with override_settings(REPLSITE_WRITERS={"caches": ["other", "web-{n}"]}):
        with pytest.raises(WriterNotAllowed, match=r"web-\{n\}"):
            append()
        with pytest.raises(WriterNotAllowed), transaction.atomic(), stream().reserve(1):
            pass
        for name in ("web-{n}", "web-3", "web"):
            with as_instance(name):
                assert append()


def test_processes_may_share_a_name(run_manage):
    append()
    done = run_manage("append", "caches", "--count", "25", "--batch", "5", "--instance", "master")
    assert done.returncode == 0, done.stderr
    wait_for_linear(ids()[-1])
    assert len(ids()) == 26 and set(stored()) == {"master"}


def test_a_forked_child_appends_as_its_parent_does():
    append()
    connections.close_all()  # the child must not end the session of its parent
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            words = str(append()[0])
        except BaseException as error:  # noqa: BLE001 - told to the parent
            words = f"{type(error).__name__}: {error}"
        os.write(write, words.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as said:
        assert int(said.read()) == ids()[-1]
    wait_for_linear(ids()[-1])


def test_appending_leaves_no_thread_and_no_connection():
    append()
    threads, before = threading.active_count(), sessions()
    with as_instance("north"):
        append(3)
    assert threading.active_count() == threads
    assert sessions().keys() <= before.keys()


# --- what readers see of them -----------------------------------------------------------------------------------------


def test_naive_reading_by_id_loses_what_ours_does_not():
    """The reason for all of this: IDs become visible in the order of commits, not of reservations."""
    append()
    naive, ours = [ids()[-1]], [ids()[-1]]

    def look() -> None:
        naive.extend(number for number in ids() if number > naive[-1])
        position = linear()
        ours.extend(number for number in ids() if ours[-1] < number <= position)

    opened, close = threading.Event(), threading.Event()

    def slow() -> None:
        with transaction.atomic():
            stream().append(fact("slow"))
            opened.set()
            close.wait(DEADLINE_SECONDS)

    thread = in_thread(slow)
    opened.wait(DEADLINE_SECONDS)
    fast = append()[0]
    look()
    close.set()
    thread.join()
    wait_for_linear(fast)
    look()
    assert fast - 1 not in naive, "the slow one came too late for the naive reader"
    assert ours == ids()


def test_reader_that_looks_while_writers_come_and_go_never_passes_an_open_fact():
    """Each round a writer comes that nobody knows, and another that is ahead: the set and the positions are one snapshot."""
    stop = threading.Event()
    passed: list[tuple[int, int]] = []
    open_ids: list[int] = []

    def look() -> None:
        while not stop.is_set():
            first_open = min(open_ids, default=None)
            at = linear()
            if first_open is not None and first_open in open_ids and at >= first_open:
                passed.append((at, first_open))

    reader = in_thread(look)
    try:
        for number in range(12):
            with as_instance(f"web-{number}"), transaction.atomic():
                open_ids.append(append()[0])
                ahead: list[int] = []
                in_thread(lambda: ahead.extend(append())).join()  # noqa: B023
                looks = linear()
                assert looks < open_ids[0] < ahead[0]
                open_ids.clear()
    finally:
        stop.set()
        reader.join()
    assert passed == []
    assert linear() == ids()[-1]


def test_set_of_writers_and_positions_are_read_by_one_statement(django_assert_num_queries):
    wait_for_linear(append()[0])
    with django_assert_num_queries(1), connection.cursor() as cursor:
        assert stored_positions(cursor, ["caches"])["caches"]["master"].state == "active"


def test_threads_whose_connections_are_lost_lose_nothing():
    append()
    done: list[int] = []

    def work() -> None:
        while len(done) < 200:
            try:
                done.extend(append())
            except (DatabaseError, InterfaceError):
                connection.close()

    threads = [in_thread(work) for _ in range(4)]
    for _ in range(3):
        wanted = len(done) + 20
        wait_until(lambda: len(done) > min(wanted, 190))  # noqa: B023 - read at once
        terminate(*sessions("%").keys() - {server_of_this_thread()})
    for thread in threads:
        thread.join()
    assert set(done) <= set(ids()), "of an append whose answer was lost nobody knows whether it is there"
    wait_for_linear(ids()[-1])


def server_of_this_thread() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def test_one_that_writes_nothing_for_long_is_retired_until_its_next_fact():
    with as_instance("north"):
        wait_for_linear(append()[0])
    with session() as cursor:
        cursor.execute(
            f"UPDATE streams_streamposition SET last_fact_at = last_fact_at - interval '{RETIRED_AFTER}' - interval '1 s'"
        )
    from streams.reading import looker

    looker.end_looks()  # the next look is the first one of its session, which retires
    assert linear() == ids()[-1]
    assert stored()["north"].state == "retired"
    wait_for_linear(append()[0])
    assert stored()["north"].position < ids()[-1], "its row is not raised any more"
    with as_instance("north"):
        wait_for_linear(append()[0])
    assert stored()["north"].state == "active"


# --- sequences that were changed ----------------------------------------------------------------------------------------


def test_sequence_behind_the_table_is_moved_forward():
    with connection.cursor() as cursor:
        highest = stream().sequence_value(cursor) + 50
        cursor.execute(
            "SET LOCAL streams.maintenance = on; "
            "INSERT INTO streams_cacheinvalidation (stream_id, instance_name, cache_name) VALUES (%s, 'x', 'y')",
            [highest],
        )
    assert append() == [highest + 1]


def test_sequence_behind_a_stored_position_is_refused():
    StreamPosition.objects.create(stream="caches", instance_name="old", position=10**9)
    with pytest.raises(SequenceBehind, match="check_streams --repair"):
        append()
    assert ids() == []


def test_a_stream_whose_sequence_is_behind_does_not_stop_the_others():
    StreamPosition.objects.create(stream="events", instance_name="master", position=10**9)
    assert append()


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("inside", [False, True])
def test_a_sequence_that_is_set_back_under_the_process_appends_nothing(count, inside):
    taken = append(5)

    def again() -> Any:
        if not inside:
            return append(count)
        with transaction.atomic():
            return append(count)

    wait_for_linear(taken[-1])
    with session() as cursor:
        cursor.execute("SELECT setval('streams_cacheinvalidation_seq', 3)")
    for _ in range(2):  # the second append examines the sequence
        with pytest.raises(SequenceBehind, match="check_streams --repair"):
            again()
    assert ids() == taken
    with session() as cursor:
        cursor.execute("SELECT setval('streams_cacheinvalidation_seq', %s)", [taken[-1]])
    wait_for_linear(again()[-1])


def test_a_sequence_with_a_cache_is_refused_before_the_first_append():
    with session() as cursor:
        cursor.execute("ALTER SEQUENCE streams_cacheinvalidation_seq CACHE 20")
        try:
            with pytest.raises(SequenceUnfit, match="CACHE"):
                append()
        finally:
            cursor.execute("ALTER SEQUENCE streams_cacheinvalidation_seq CACHE 1")
    assert ids() == []
