"""Transactions of jobs outlast the limits that the server has for forgotten ones: seconds here, ten minutes as shipped."""

from __future__ import annotations

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.backends.postgresql.base import Database

from events.integrity import repair, room_mending
from events.models import EventVisibility
from pipeline.archive import write
from pipeline.frames.sources import inputs
from pipeline.importing.staging_tables import staging_connection
from pipeline.maintenance import resync_executor
from pipeline.maintenance.resync_executor import RoomsWork
from pipeline.operations import restore as restore_kind
from pipeline.source.write import fact_writer
from streams.db import driver
from streams.db.consistent_read import long_transaction, read_only_snapshot
from streams.db.driver import dsn
from tests.integration.events.test_purging import middle
from tests.integration.pipeline.test_archive import purge
from tests.integration.pipeline.test_restore import restore, stored
from tests.integration.pipeline.test_source_writing import CACHES, batch, options
from tests.support.impatient_server import LIMIT_SECONDS, impatient, wait_for_the_limit
from tests.support.synapse_database import postgresql_database
from tests.support.waiting import wait_until
from tests.support.writing import is_open

pytestmark = pytest.mark.django_db(transaction=True)
LIMITS = ("idle_in_transaction_session_timeout", "statement_timeout", "transaction_timeout")


@pytest.fixture
def impatience():
    with impatient():
        yield


def waiting_before(monkeypatch, module, name):
    """Each call of the function comes after a transaction has waited beyond the limit."""
    calls, function = [], getattr(module, name)

    def late(*arguments, **named):
        wait_for_the_limit()
        calls.append(arguments)
        return function(*arguments, **named)

    monkeypatch.setattr(module, name, late)
    return calls


def test_the_server_ends_a_forgotten_transaction(impatience):
    with pytest.raises(DatabaseError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        wait_for_the_limit()
        cursor.execute("SELECT 1")


def test_the_snapshot_of_an_archive_and_its_readers_outlast_it(impatience, monkeypatch, tmp_path):
    room_id = stored("v10_gap")
    written = waiting_before(monkeypatch, write, "write_part")
    monkeypatch.setattr(write, "ONE_FILE", ())
    purge("history", room_id, "--before-token", f"t{middle(room_id, 0.7)}-0", "--archive", str(tmp_path))
    assert written


def test_a_restore_outlasts_it(impatience, monkeypatch, tmp_path):
    room_id = stored("v10_gap")
    outcome = purge("history", room_id, "--before-token", f"t{middle(room_id, 0.7)}-0", "--archive", str(tmp_path))
    copied = []
    real = restore_kind.copy_groups

    def late(*arguments):
        wait_for_the_limit()
        copied.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(restore_kind, "copy_groups", late)
    restore(outcome["archive"]["folder"])
    assert copied


def test_checking_and_mending_a_room_in_a_process_outlasts_it(impatience, monkeypatch):
    room_id = without_ranges()
    looked = waiting_before_queries(monkeypatch, room_mending)
    assert repair.check_room(room_id).events > 0
    with monkeypatch.context() as mending:
        mended = waiting_before_queries(mending, room_mending, "repair_room")
        assert repair.resync_room(room_id, "visibility").before.of("visibility") > 0
    assert (len(looked), len(mended)) == (3, 1)


def test_checking_rooms_on_executors_outlasts_it(impatience, monkeypatch):
    room_id = without_ranges()
    looked = waiting_before_queries(monkeypatch, room_mending)
    mended = waiting_before_queries(monkeypatch, room_mending, "repair_room")
    (answer,) = resync_executor.resync_rooms(RoomsWork(dsn(), "visibility", mend=True), [room_id])
    assert answer.before.of("visibility") > 0 and (len(looked), len(mended)) == (2, 1)


def without_ranges() -> str:
    """A room that nobody sees."""
    room_id = stored("v10_gap")
    EventVisibility.objects.filter(room_id=room_id).delete()
    return room_id


def waiting_before_queries(monkeypatch, module, name="find_damage"):
    looked, real = [], getattr(module, name)

    def late(cursor, *arguments):
        cursor.execute("SELECT 1")  # the transaction has begun
        wait_for_the_limit()
        looked.append(arguments)
        return real(cursor, *arguments)

    monkeypatch.setattr(module, name, late)
    return looked


def test_staged_rows_wait_for_the_next_ones(impatience):
    with staging_connection(dsn()) as staging, staging.cursor() as cursor:
        cursor.execute("SELECT 1")
        wait_for_the_limit()
        cursor.execute("SELECT 1")


def test_rows_that_spark_writes_wait_for_the_next_ones(impatience):
    writer = fact_writer(options(), CACHES, overwrite=False)

    def slow():
        yield batch("a")
        wait_for_the_limit()
        yield batch("b")

    try:
        assert writer.write(slow()).rows == 2
    finally:
        writer.abort([])


def test_the_snapshot_of_a_synapse_and_its_readers_outlast_it(database_url):
    with postgresql_database(database_url, ["v9_restricted"]) as url:
        name = url.rpartition("/")[2]
        with impatient(name), inputs.parts_of_inputs(inputs.open_inputs([url]), 1) as parts:
            wait_for_the_limit(name)
            lines = inputs.read_part(parts[0], 1 << 20)
            read = [next(lines)]
            wait_for_the_limit(name)
            read += lines
            assert len(read) == parts[0].rows > 0


# --- each limit ---------------------------------------------------------------------------------------------------------


def limits_in(cursor):
    return {name: shown(cursor, name) for name in LIMITS if shown(cursor, name) is not None}


def shown(cursor, name):
    cursor.execute("SELECT setting FROM pg_settings WHERE name = %s", [name])
    row = cursor.fetchone()
    return row and row[0]


@pytest.fixture
def limited():
    with connection.cursor() as cursor:
        here = limits_in(cursor)
    assert here.keys() >= set(LIMITS[:2])
    with impatient(**dict.fromkeys(here, "50s")):
        yield here


def test_no_limit_is_left_in_a_long_transaction_and_all_are_there_after_it(limited):
    with connection.cursor() as cursor:
        assert set(limits_in(cursor).values()) == {"50000"}
    with read_only_snapshot("default", is_long=True) as cursor:
        assert set(limits_in(cursor).values()) == {"0"}
    with long_transaction("default") as cursor:
        assert set(limits_in(cursor).values()) == {"0"}
    with connection.cursor() as cursor:
        assert set(limits_in(cursor).values()) == {"50000"}


def test_a_view_for_a_page_keeps_them(limited):
    with read_only_snapshot("default") as cursor:
        assert set(limits_in(cursor).values()) == {"50000"}


def test_sessions_of_tasks_have_none(limited):
    with staging_connection(dsn()) as session, session.cursor() as cursor:
        assert set(limits_in(cursor).values()) == {"0"}


def test_a_transaction_of_a_job_goes_on_beyond_the_servers_limit_for_all_transactions():
    with connection.cursor() as cursor:
        if shown(cursor, "transaction_timeout") is None:
            pytest.skip("PostgreSQL before 17 has no transaction_timeout")
    with impatient(transaction_timeout=f"{LIMIT_SECONDS}s"), long_transaction("default") as cursor:
        cursor.execute("SELECT 1")
        wait_for_the_limit()
        cursor.execute("SELECT 1")


def test_a_session_that_waits_for_notifications_or_holds_a_lock_may_be_silent():
    with impatient(idle_session_timeout=f"{LIMIT_SECONDS}s"):
        held = driver.direct_connection(application_name="replsite held")
        other = Database.connect(dsn())
        other.autocommit = True
        wait_until(lambda: not is_open(other.info.backend_pid))
        assert is_open(held.info.backend_pid)
        held.close()
        other.close()
