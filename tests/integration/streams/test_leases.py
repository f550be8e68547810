"""Taking a name: both locks, the lease, and words that name whoever is in the way."""

from __future__ import annotations

import threading

import pytest

from streams.db import driver
from streams.errors import WriterBusy, WriterNameTaken
from streams.models import Instance, StreamPosition
from streams.writing import lease
from tests.support.writing import session, stored, stream

pytestmark = pytest.mark.django_db(transaction=True)
ME = lease.Identity("here", 4711, "manage.py serve")


def test_each_holder_gets_a_new_lease():
    for expected in (1, 2, 3):
        with session() as cursor:
            assert lease.take(cursor, "north", ME, 1.0) == lease.Held(
                "north", expected, driver.append_key(cursor, "north")
            )


def test_place_of_the_holder_is_kept():
    with session() as cursor:
        lease.take(cursor, "north", ME, 1.0)
        pid = cursor.connection.info.backend_pid
    row = Instance.objects.get(name="north")
    assert (row.host, row.process_id, row.command, row.lock_backend_pid) == ("here", 4711, "manage.py serve", pid)


def test_refusal_names_the_holder_and_its_session():
    with session() as first, session() as second:
        lease.take(first, "north", ME, 1.0)
        with pytest.raises(WriterNameTaken) as error:
            lease.take(second, "north", ME, 1.0)
        assert "process 4711 on host here (manage.py serve)" in str(error.value)
        assert f"database session {first.connection.info.backend_pid}" in str(error.value)


def test_lock_of_a_stranger_is_named_too():
    with session() as first, session() as second:
        first.execute("SELECT pg_advisory_lock(%s)", [driver.writer_key(first, "north")])
        with pytest.raises(WriterNameTaken, match="it is locked"):
            lease.take(second, "north", ME, 1.0)


def test_open_transaction_of_an_earlier_holder_is_named():
    with session() as ghost, session() as cursor:
        ghost.execute("BEGIN")
        ghost.execute("SELECT pg_advisory_xact_lock_shared(%s)", [driver.append_key(ghost, "north")])
        with pytest.raises(WriterBusy) as error:
            lease.take(cursor, "north", ME, 0.05)
        assert f"database session {ghost.connection.info.backend_pid}" in str(error.value)
        assert "streams abort" in str(error.value)
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("0",)


def test_taking_waits_for_the_end_of_an_open_transaction():
    with session() as ghost, session() as cursor:
        ghost.execute("BEGIN")
        ghost.execute("SELECT pg_advisory_xact_lock_shared(%s)", [driver.append_key(ghost, "north")])
        timer = threading.Timer(0.1, lambda: ghost.execute("ROLLBACK"))
        timer.start()
        assert lease.take(cursor, "north", ME, 5.0).lease == 1
        timer.join()


def test_lease_ends_for_its_holder_only():
    with session() as cursor:
        held = lease.take(cursor, "north", ME, 1.0)
        lease.end(cursor, "north", held.lease + 5)
        assert Instance.objects.get().lease == held.lease
        lease.end(cursor, "north", held.lease)
        assert Instance.objects.get().lease == held.lease + 1


def test_entry_never_lowers_a_position():
    StreamPosition.objects.create(stream="caches", instance_name="north", position=9, state="retired")
    with session() as cursor:
        lease.store_entry(cursor, stream(), "north", 5)
    assert (stored()["north"].position, stored()["north"].state) == (9, "active")


def test_held_positions_wait_for_the_entry():
    """An announcement that came between would let the new row lie below what readers saw."""
    StreamPosition.objects.create(stream="caches", instance_name="north", position=9)
    with session() as joining, session() as announcing:
        joining.execute("BEGIN")
        assert lease.hold_positions(joining, "caches") == [("north", "active", 9)]
        announcing.execute("SET lock_timeout = 100")
        with pytest.raises(driver.OperationalError):
            announcing.execute("UPDATE streams_streamposition SET position = 10")
        joining.execute("ROLLBACK")
