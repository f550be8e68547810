"""The process as a writer: one holder of a name, fenced when the lock is lost, gone in order."""

from __future__ import annotations

import gc
import os
import socket
import threading
from collections.abc import Iterator

import psutil
import pytest
from django.db import OperationalError, connection, connections, transaction
from django.test import override_settings

from streams.core.tracker import PositionTracker
from streams.db import driver
from streams.errors import (
    BadInstanceName,
    SequenceBehind,
    WriterFenced,
    WriterNameTaken,
    WriterNotAllowed,
)
from streams.models import Instance, StreamPosition
from streams.reading.rows import stored_positions
from streams.testing import forget_writers
from streams.writing import dead_writers
from streams.writing.control_loop import ControlLoop
from streams.writing.process import current_writer, retire_all, use_instance
from streams.writing.writer import Condition, WriterProcess
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import (
    append,
    as_instance,
    fact,
    ids,
    in_thread,
    linear,
    session,
    stored,
    stream,
    terminate,
    wait_for_linear,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_cached_functions")]


@pytest.fixture
def another() -> object:
    """Make further writers in this process, each with sessions of its own; all are let go."""
    made: list[WriterProcess] = []

    def make(pattern: str) -> WriterProcess:
        made.append(WriterProcess("default", pattern, ControlLoop))
        made[-1].hold()
        return made[-1]

    yield make
    for writer in made:
        writer.close()


def test_name_is_taken_at_the_first_reservation_only():
    current_writer()
    assert not Instance.objects.exists()
    append()
    assert Instance.objects.get().process_id == os.getpid()


def test_second_holder_is_refused_with_the_first_ones_place(another):
    append()
    with pytest.raises(WriterNameTaken) as error:
        another("master")
    assert f"process {os.getpid()} on host {socket.gethostname()}" in str(error.value)
    assert "REPLSITE_INSTANCE" in str(error.value)


def test_second_process_is_refused(run_manage):
    append()
    done = run_manage("append", "caches", "--count", "1", "--instance", "master")
    assert done.returncode == 1
    assert f"process {os.getpid()}" in done.stderr
    assert "Traceback" not in done.stderr


def test_pattern_takes_the_lowest_free_number(another):
    first, second = another("web-{n}"), another("web-{n}")
    assert (first.name, second.name) == ("web-1", "web-2")
    first.close()
    assert another("web-{n}").name == "web-1"


def test_a_session_that_is_just_ending_does_not_take_the_name():
    holder = driver.direct_connection(application_name="test")
    holder.cursor().execute("SELECT pg_advisory_lock(%s)", [driver.writer_key(holder.cursor(), "master")])
    threading.Timer(0.2, holder.close).start()
    assert append()


def test_a_database_that_is_away_at_the_first_append_is_djangos_error(monkeypatch):
    """As at every later append: programs catch that one."""
    connection.ensure_connection()

    def refuse(*_, **__):
        raise driver.OperationalError("connection refused")

    monkeypatch.setattr(driver, "direct_connection", refuse)
    with pytest.raises(OperationalError, match="connection refused"):
        append()


def test_writer_that_may_not_write_the_stream():
    with override_settings(REPLSITE_WRITERS={"caches": ["other", "web-{n}"]}):
        with pytest.raises(WriterNotAllowed, match=r"web-\{n\}"):
            append()
        with as_instance("web-{n}"):
            assert append()


def test_row_is_there_before_the_first_reservation(another):
    another("north").enter(stream())
    assert stored()["north"].state == "active"
    assert ids() == []


def test_joining_does_not_lower_the_linear_position(another):
    taken = append()
    wait_for_linear(taken[0])
    another("north").enter(stream())
    assert linear() == taken[0]


def test_lock_lost_is_noticed_and_taken_again():
    before = append()
    writer = current_writer()
    terminate(writer.control.info.backend_pid)
    wait_until(lambda: writer.lease == 2 and writer.condition is Condition.HOLDING)
    after = append()
    wait_for_linear(after[0])
    assert ids() == before + after


def test_an_idle_writer_that_was_taken_for_dead_stands_in_its_streams_again():
    """Without an append: it lives, and a page without it would say that nobody writes."""
    append()
    writer = current_writer()
    with session() as cursor:
        terminate(writer.control.info.backend_pid)
        cursor.execute(
            "SELECT pg_advisory_lock(%s)", [driver.writer_key(cursor, "master")]
        )  # so that it cannot come back yet
        assert [one.stream for one in dead_writers.resolve_writer(cursor, "master", "test")]
        assert stored()["master"].state == "retired"
        cursor.execute("SELECT pg_advisory_unlock(%s)", [driver.writer_key(cursor, "master")])
    wait_until(lambda: stored()["master"].state == "active")
    assert writer.condition is Condition.HOLDING
    later = append()
    wait_for_linear(later[0])


def test_appending_while_fenced_is_refused(monkeypatch):
    append()
    writer = current_writer()
    monkeypatch.setattr(writer, "hold_again", lambda: None)
    writer.fenced("for the test")
    with pytest.raises(WriterFenced, match=r"Cause: for the test\. .*repeat the transaction"):
        append()
    assert len(ids()) == 1


def test_an_append_while_fenced_says_why_the_name_is_not_taken_again(monkeypatch):
    """A full disk under the embedded server was told as a lost lock only."""
    append()
    writer = current_writer()

    def away(*_: object, **__: object) -> None:
        raise driver.OperationalError("The disk of /data is full.\nThe end of the log")

    monkeypatch.setattr(driver, "direct_connection", away)
    writer.fenced("for the test")
    wait_until(lambda: "disk" in writer.trouble)
    with pytest.raises(WriterFenced, match=r"Cause: The disk of /data is full\. It tries"):
        append()
    monkeypatch.undo()
    wait_until(lambda: writer.condition is Condition.HOLDING)
    assert writer.trouble == ""


def test_open_transaction_of_the_old_lease_is_neither_lost_nor_passed():
    """Taking the name again waits for it, and appends in it are refused at once meanwhile."""
    first = append()[0]
    wait_for_linear(first)  # else the writer may lose its name between its commit and the announcement
    writer = current_writer()
    with transaction.atomic():
        append()
        terminate(writer.control.info.backend_pid)
        wait_until(lambda: writer.condition is Condition.FENCED)
        wait_until(lambda: Instance.objects.get().lease == 2)
        with pytest.raises(WriterFenced):
            append()
        assert linear() == first
    wait_until(lambda: writer.condition is Condition.HOLDING)
    wait_for_linear(first + 1)
    assert ids() == [first, first + 1]


def test_process_that_does_not_know_of_its_loss_is_stopped_by_the_lease():
    append()
    writer = current_writer()
    Instance.objects.update(lease=7)
    with pytest.raises(WriterFenced):
        append()
    wait_until(lambda: writer.lease == 8 and writer.condition is Condition.HOLDING)
    assert append()


def test_threads_that_append_through_a_loss_lose_nothing():
    append()
    done: list[int] = []

    def work() -> None:
        while len(done) < 200:
            try:
                done.extend(append())
            except WriterFenced:
                connection.close()

    threads = [in_thread(work) for _ in range(4)]
    for _ in range(2):
        wanted = len(done) + 20
        wait_until(lambda: len(done) > min(wanted, 190))  # noqa: B023 - read at once
        lock = current_writer().control
        terminate(lock.info.backend_pid)
        wait_until(lambda: current_writer().control is not lock)  # noqa: B023
    for thread in threads:
        thread.join()
    assert sorted(done) == ids()[1:]
    wait_for_linear(ids()[-1])


def test_streams_of_an_earlier_life_are_entered_at_once(another):
    append()
    StreamPosition.objects.create(stream="events", instance_name="north", position=1)
    north = another("north")
    assert set(north.trackers) == {"events"}


def test_streams_that_may_no_longer_be_written_are_left(another):
    StreamPosition.objects.create(stream="events", instance_name="north", position=1)
    StreamPosition.objects.create(stream="gone", instance_name="north", position=-5)
    with override_settings(REPLSITE_WRITERS={"events": ["south"]}):
        another("north")
    assert stored("events")["north"].state == stored("gone")["north"].state == "retired"
    assert StreamPosition.objects.get(stream="gone").position == -5


def test_idle_writer_goes_on_announcing_after_it_took_its_name_again(another):
    """Otherwise it would hold the linear position back until its next append."""
    north = another("north")
    north.enter(stream())
    terminate(north.control.info.backend_pid)
    wait_until(lambda: north.lease == 2 and north.condition is Condition.HOLDING)
    wait_for_linear(append()[0])


def test_orderly_exit_retires():
    taken = append()
    assert retire_all()
    assert stored()["master"].state == "retired"
    assert linear() == taken[0]
    assert Instance.objects.get().state == "retired"


def test_a_database_that_is_away_is_one_line_at_the_exit(monkeypatch, caplog):
    append()
    writer = current_writer()

    def away(*_: object) -> None:
        raise driver.DatabaseError("server closed the connection unexpectedly")

    monkeypatch.setattr(writer._background, "drain", away)
    assert retire_all() is False
    assert writer.condition is Condition.CLOSED
    said = [record for record in caplog.records if "not_retired" in str(record.msg)]
    assert len(said) == 1
    assert "server closed" in str(said[0].msg)
    assert said[0].exc_info is None


def test_command_retires_at_its_end(run_manage):
    done = run_manage("append", "caches", "--count", "25", "--batch", "5", "--instance", "load-{n}")
    assert done.returncode == 0, done.stderr
    assert (stored()["load-1"].state, linear(), len(ids())) == ("retired", ids()[-1], 25)


def test_retiring_waits_for_open_transactions():
    append()
    with transaction.atomic():
        taken = append()
        thread = threading.Thread(target=lambda: results.append(current_writer().retire()))
        results: list[bool] = []
        thread.start()
    thread.join()
    assert results == [True]
    assert linear() == taken[0]


def test_writer_with_an_open_transaction_does_not_retire():
    before = append()
    wait_for_linear(before[0])
    with transaction.atomic():
        append()
        assert not current_writer().retire(timeout_seconds=0.1)
        assert stored()["master"].state == "draining"
        assert linear() == before[0]


def test_append_that_races_with_retiring_is_refused_or_covered(monkeypatch):
    """An append that began before the drain and takes its ID after the wait: retiring proves that nothing is open."""
    append()
    writer = current_writer()
    passed, drained, started, go_on = (threading.Event() for _ in range(4))
    begin = PositionTracker.begin_fetch

    def held_up(tracker: PositionTracker, *given: object) -> object:
        passed.set()
        drained.wait(DEADLINE_SECONDS)
        return begin(tracker, *given)

    def drain(timeout_seconds: float) -> bool:
        drained.set()
        return started.wait(DEADLINE_SECONDS)

    monkeypatch.setattr(PositionTracker, "begin_fetch", held_up)
    monkeypatch.setattr(writer._background, "drain", drain)

    def late() -> None:
        with transaction.atomic():
            append()
            started.set()
            go_on.wait(DEADLINE_SECONDS)

    thread = in_thread(late)
    assert passed.wait(DEADLINE_SECONDS)
    threading.Timer(0.2, go_on.set).start()
    assert writer.retire()
    thread.join()
    assert linear() == ids()[-1]
    assert len(ids()) == 2


def test_name_comes_back_from_retirement():
    append()
    retire_all()
    taken = append()
    wait_for_linear(taken[0])
    assert (stored()["master"].state, Instance.objects.get().state) == ("active", "active")


def test_sequence_behind_the_table_is_moved_forward():
    with connection.cursor() as cursor:
        highest = stream().sequence_value(cursor) + 50
        cursor.execute(
            "INSERT INTO streams_cacheinvalidation (stream_id, instance_name, cache_name) VALUES (%s, 'x', 'y')",
            [highest],
        )
    assert append() == [highest + 1]


def test_sequence_behind_a_stored_position_is_refused():
    StreamPosition.objects.create(stream="caches", instance_name="old", position=10**9)
    with pytest.raises(SequenceBehind, match="check_streams --repair"):
        append()
    assert ids() == []


def test_a_stream_that_cannot_be_resumed_does_not_stop_the_others():
    StreamPosition.objects.create(stream="events", instance_name="master", position=10**9)
    assert append()


def test_closing_leaves_no_thread_connection_or_file():
    append()
    forget_writers()
    connection.close()
    gc.collect()
    process, threads = psutil.Process(), threading.active_count()
    before = process.num_fds()
    for _ in range(3):
        append()
        forget_writers()
        connection.close()
    gc.collect()
    assert process.num_fds() <= before
    assert threading.active_count() <= threads


def in_child(pattern: str) -> str:
    """What a forked child gets when it appends; the child leaves without running anything of the tests."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            connections.close_all()
            with override_settings(REPLSITE_INSTANCE=pattern):
                append()
            words = current_writer().name
        except BaseException as error:  # noqa: BLE001 - told to the parent
            words = f"{type(error).__name__}: {error}"
        os.write(write, words.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as said:
        return said.read()


def test_forked_child_takes_the_next_number():
    with override_settings(REPLSITE_INSTANCE="web-{n}"):
        append()
        connections.close_all()
        assert in_child("web-{n}") == "web-2"
        assert current_writer().name == "web-1"
        assert append()


def test_forked_child_with_a_fixed_name_is_refused():
    append()
    connections.close_all()
    assert in_child("master").startswith("WriterNameTaken")
    wait_for_linear(append()[0])


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


def test_session_sees_the_lock():
    append()
    with session() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [driver.writer_key(cursor, "master")])
        assert cursor.fetchone() == (False,)


# --- a writer is known before its facts are --------------------------------------------------------------------------


def test_row_is_committed_at_the_linear_position_before_the_first_id_is_taken(monkeypatch):
    """Seen from another session at the moment at which the first ID is about to be taken."""
    with as_instance("earlier"):
        taken = append(3)
        wait_for_linear(taken[-1])
        retire_all()
    seen: list[tuple[int, int, int]] = []
    begin = PositionTracker.begin_fetch

    def look_first(tracker: PositionTracker, *given: object) -> object:
        if "joining" in stored() and not seen:
            with session() as cursor:
                seen.append((stored()["joining"].position, linear(), stream().sequence_value(cursor)))
        return begin(tracker, *given)

    monkeypatch.setattr(PositionTracker, "begin_fetch", look_first)
    with as_instance("joining"):
        number = append()[0]
        wait_for_linear(number)
    assert seen == [(taken[-1], taken[-1], number - 1)]


def test_reader_that_looks_while_writers_come_and_go_never_passes_an_open_fact():
    """Each round a writer joins and reserves, and another that is ahead leaves: the set and the positions are one snapshot."""
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
            with as_instance(f"web-{number}"):
                with transaction.atomic():
                    open_ids.append(append()[0])
                    wait_until(lambda number=number: stored()[f"web-{number}"].pending is not None)
                    open_ids.clear()
                retire_all()
    finally:
        stop.set()
        reader.join()
    assert passed == []
    assert linear() == ids()[-1]


def test_set_of_writers_and_positions_are_read_by_one_statement(django_assert_num_queries):
    append()
    with django_assert_num_queries(1), connection.cursor() as cursor:
        assert stored_positions(cursor, ["caches"])["caches"]["master"].state == "active"


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "two words", "x" * 101, "tab\t"])
def test_name_that_cannot_travel_is_refused_at_once(name):
    with pytest.raises(BadInstanceName, match="cannot be an instance name"):
        use_instance(name)


@pytest.fixture
def impatient_role() -> Iterator[None]:
    """The role's statements end after 150 ms, and so does their waiting for a lock."""
    with session() as cursor:
        cursor.execute("SELECT current_user, current_database()")
        place = "{} IN DATABASE {}".format(*cursor.fetchone())
        cursor.execute(f"ALTER ROLE {place} SET lock_timeout = 150; ALTER ROLE {place} SET statement_timeout = 150")
        try:
            yield
        finally:
            cursor.execute(f"ALTER ROLE {place} RESET lock_timeout; ALTER ROLE {place} RESET statement_timeout")


def wait_for_waiter(cursor: object) -> int:
    """The session that waits for the one of the cursor."""

    def waiting() -> int | None:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity "
            "WHERE datname = current_database() AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
        )
        return (cursor.fetchone() or [None])[0]

    return wait_until(waiting)


@pytest.mark.usefixtures("impatient_role")
def test_time_limits_of_the_role_do_not_fence_a_healthy_writer():
    """An UPDATE of the heartbeat that waited longer was taken for the end of the connection."""
    append()
    writer = current_writer()
    lease = writer.lease
    with session() as blocker:
        blocker.execute("BEGIN; SELECT FROM streams_instance FOR UPDATE")
        control = wait_for_waiter(blocker)
        assert control == writer.control.info.backend_pid
        blocker.execute("SELECT pg_sleep(0.5)")
        assert wait_for_waiter(blocker) == control
        assert (writer.lease, writer.has_lock) == (lease, True)
        blocker.execute("ROLLBACK")
    wait_for_linear(append()[0])
    assert (writer.lease, writer.has_lock) == (lease, True)


def test_a_statement_that_an_operator_cancels_does_not_fence_the_writer(caplog):
    """The connection works, so the name is still held."""
    caplog.set_level("INFO", "streams.writing.control_loop")
    append()
    writer = current_writer()
    lease = writer.lease
    with session() as blocker:
        blocker.execute("BEGIN; SELECT FROM streams_instance FOR UPDATE")
        control = wait_for_waiter(blocker)
        with session() as operator:
            operator.execute("SELECT pg_cancel_backend(%s)", [control])
        wait_until(lambda: "writer.delayed" in caplog.text)
        blocker.execute("ROLLBACK")
    wait_until(lambda: "writer.goes_on" in caplog.text)
    wait_for_linear(append()[0])
    assert (writer.lease, writer.has_lock) == (lease, True)


def test_a_session_that_an_operator_ends_does_fence_the_writer():
    append()
    writer = current_writer()
    lease = writer.lease
    terminate(writer.control.info.backend_pid)
    wait_until(lambda: writer.lease > lease and writer.has_lock)
