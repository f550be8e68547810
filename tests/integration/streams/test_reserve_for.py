"""IDs that a writer reserves for the transaction of another session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from streams import registry
from streams.db.sequences import move_forward
from streams.errors import SequenceBehind, WriterDraining
from streams.writing import append_lock
from streams.writing.dead_writers import resolve_writer
from streams.writing.process import current_writer
from streams.writing.reserve_for import reserve_for
from tests.support.waiting import wait_until
from tests.support.writing import append, ids, linear, session, stored, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def worker() -> Iterator[tuple[Any, int, int]]:
    """A session of no writer that has begun a transaction as it should: cursor, number of the transaction, lease."""
    writer = current_writer()
    writer.hold()
    with session() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(append_lock.TAKE, {"key": writer.tenure.append_key})
        cursor.execute(
            "SELECT pg_current_xact_id()::text::bigint, lease FROM streams_instance WHERE name = %s", [writer.name]
        )
        yield cursor, *cursor.fetchone()


def write(cursor: Any, numbers: list[int]) -> None:
    cursor.execute(
        "INSERT INTO streams_cacheinvalidation (stream_id, instance_name, cache_name) "
        "SELECT n, %s, 'x' FROM unnest(%s::bigint[]) AS n",
        [current_writer().name, numbers],
    )


def pending() -> list[int]:
    return list(current_writer().trackers["caches"].pending)


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_ids_are_pending_until_the_other_transaction_has_ended(end):
    before = append()[0]
    with worker() as (cursor, number, lease):
        reserved = reserve_for(number, current_writer().name, lease, {"caches": 3}, "default")
        assert reserved is not None and list(reserved.ids["caches"]) == pending() and len(pending()) == 3
        later = append()[0]
        write(cursor, reserved.ids["caches"])
        assert linear() <= before and not reserved.ended
        cursor.execute(end)
        reserved.ask()
        wait_for_linear(later)
    assert reserved.ended and pending() == []
    assert ids() == sorted([before, later, *(reserved.ids["caches"] if end == "COMMIT" else [])])


def test_the_end_is_noticed_by_itself_also_when_the_session_is_lost():
    before = append()[0]
    with worker() as (cursor, number, lease):
        assert reserve_for(number, current_writer().name, lease, {"caches": 2, "receipts": 1}, "default") is not None
        later = append()[0]
        cursor.connection.close()
        wait_until(lambda: not pending(), what="nothing pending")
    wait_for_linear(later)
    assert ids() == [before, later]


def test_a_worker_with_another_lease_gets_nothing():
    with worker() as (_, number, lease):
        assert reserve_for(number, current_writer().name, lease - 1, {"caches": 1}, "default") is None
        assert reserve_for(number, "another", lease, {"caches": 1}, "default") is None
    assert pending() == []


def test_nothing_stays_pending_when_it_fails():
    append()
    with worker() as (_, number, lease):
        with session() as cursor:
            sequence = registry.get("caches").declaration.sequence
            at = registry.get("caches").sequence_value(cursor)
            cursor.execute("SELECT setval(%s, 2)", [sequence])
        with pytest.raises(SequenceBehind, match="gave out ID"):
            reserve_for(number, current_writer().name, lease, {"receipts": 1, "caches": 1}, "default")
        with session() as cursor:
            move_forward(cursor, sequence, at + 10)
    wait_until(lambda: not pending(), what="nothing pending")
    taken = append()[0]
    wait_for_linear(taken)


def test_a_writer_that_leaves_reserves_nothing_new_and_waits_for_what_is_open():
    append()
    with worker() as (cursor, number, lease):
        reserved = reserve_for(number, current_writer().name, lease, {"caches": 1}, "default")
        current_writer().begin_drain()
        with pytest.raises(WriterDraining):
            reserve_for(number, current_writer().name, lease, {"caches": 1}, "default")
        assert not current_writer().retire(timeout_seconds=0.2)
        write(cursor, reserved.ids["caches"])
        cursor.execute("COMMIT")


def test_a_writer_that_is_gone_is_retired_only_after_the_other_transaction():
    append()
    with worker() as (cursor, number, lease):
        writer = current_writer()
        reserved = reserve_for(number, current_writer().name, lease, {"caches": 1}, "default")
        writer.close()
        with session() as other:
            assert resolve_writer(other, writer.name, "test") == []
            write(cursor, reserved.ids["caches"])
            cursor.execute("COMMIT")
            wait_until(lambda: resolve_writer(other, writer.name, "test"), what="the writer to be retired")
    assert abs(stored()[writer.name].position) == reserved.ids["caches"][0] == max(ids())
