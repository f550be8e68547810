"""Reservations on a real server: complete once the outermost transaction is known to have ended, however it ended."""

from __future__ import annotations

import asyncio

import pytest
from asgiref.sync import sync_to_async
from django.db import DatabaseError, connection, connections, transaction
from django.db.utils import InterfaceError, OperationalError

from streams.catalog.models import CacheInvalidation
from streams.db import driver
from streams.errors import BadCount, ForeignFact, ReservationEnded, ReservationNotOpen
from streams.holds.look import holders
from streams.models import Reader
from tests.support.waiting import wait_until
from tests.support.writing import (
    append,
    fact,
    ids,
    in_thread,
    linear,
    server_process,
    session,
    stored,
    stream,
    terminate,
    wait_for_linear,
)

pytestmark = pytest.mark.django_db(transaction=True)


class Oops(Exception):
    """Raised by a test inside a transaction."""


def pending() -> bool:
    """True while an append to the stream is open."""
    with session() as cursor:
        return bool(holders(cursor, ["caches"]))


def nothing_pending() -> None:
    wait_until(lambda: not pending(), what="nothing pending")


def test_commit_moves_the_position():
    taken = append(3)
    assert ids() == taken
    wait_for_linear(taken[-1])


def test_ids_are_ascending_and_start_above_one():
    first, second = append(2), append(2)
    assert 1 < first[0] < first[1] < second[0] < second[1]


def test_open_transaction_holds_the_position_back():
    before = append()[0]
    with transaction.atomic():
        append()
        in_thread(append).join()
        wait_for_linear(before)
    wait_for_linear(before + 2)


def test_rollback_lets_a_later_commit_be_seen():
    before = append()[0]
    with pytest.raises(Oops), transaction.atomic():
        append()
        in_thread(append).join()
        raise Oops
    wait_for_linear(before + 2)
    assert ids() == [before, before + 2]


def test_after_nothing_but_rollbacks_the_position_comes_to_the_head():
    append()
    for _ in range(3):
        with pytest.raises(Oops), transaction.atomic():
            taken = append(5)
            raise Oops
    wait_for_linear(taken[-1])
    assert stored()["master"].last_write_position == ids()[-1]


def test_after_nothing_but_errors_the_position_comes_to_the_head():
    append()
    for _ in range(3):
        with pytest.raises(DatabaseError):
            stream().append(CacheInvalidation(cache_name=None))
    wait_until(lambda: linear() >= ids()[-1] + 3)
    with session() as cursor:
        assert linear() == stream().sequence_value(cursor)


def test_nested_blocks_complete_with_the_outermost():
    with transaction.atomic():
        with transaction.atomic():
            inner = append()
        assert pending()
    wait_for_linear(inner[0])


def test_rolled_back_savepoint_does_not_lose_the_hook():
    with transaction.atomic():
        with pytest.raises(Oops), transaction.atomic():
            append()
            raise Oops
        kept = append()
        assert pending()
    wait_for_linear(kept[0])
    assert ids() == kept


def test_another_hook_that_fails_changes_nothing():
    def fails() -> None:
        raise Oops

    with pytest.raises(Oops), transaction.atomic():
        transaction.on_commit(fails)
        taken = append()
    wait_for_linear(taken[0])


def test_manual_commit_is_noticed():
    connection.set_autocommit(False)
    try:
        first = append()
        connection.commit()
        wait_until(lambda: linear() == first[0])
        second = append()
        connection.rollback()
        third = append()
        connection.commit()
    finally:
        connection.set_autocommit(True)
    wait_for_linear(third[0])
    assert ids() == [*first, *third]
    assert third[0] == second[0] + 1


def test_manual_rollback_right_after_a_commit_is_noticed():
    connection.set_autocommit(False)
    try:
        first = append()
        connection.commit()
        second = append()
        connection.rollback()
        wait_until(lambda: linear() == second[0])
        nothing_pending()
        assert ids() == first
    finally:
        connection.rollback()
        connection.set_autocommit(True)


def test_blocks_inside_manual_management_complete():
    connection.set_autocommit(False)
    try:
        with transaction.atomic():
            taken = append()
        assert linear() < taken[0]
        connection.commit()
        wait_until(lambda: linear() == taken[0])
    finally:
        connection.set_autocommit(True)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_first_append_in_a_frozen_snapshot(level):
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        assert ids() == []  # the snapshot is older than the writer's own row
        taken = append()
    wait_for_linear(taken[0])


def test_server_process_ended_in_the_open_transaction():
    before = append()[0]
    with pytest.raises((OperationalError, InterfaceError)), transaction.atomic():
        append()
        terminate(server_process())
        append()
    connection.close()
    nothing_pending()
    (after,) = append()
    assert ids() == [before, after]
    wait_for_linear(after)


def test_closing_the_connection_inside_is_noticed():
    append()
    connection.set_autocommit(False)
    append()
    connection.close()
    nothing_pending()
    assert len(ids()) == 1


def test_writing_under_a_completed_id_is_refused():
    with stream().reserve() as reservation:
        pass
    with pytest.raises(ReservationEnded, match="Reserve again"):
        reservation.write(fact())


def test_writing_under_an_earlier_transactions_id_is_refused():
    connection.set_autocommit(False)
    try:
        with stream().reserve() as reservation:
            connection.rollback()
            wait_until(lambda: not pending())
            append()
            with pytest.raises(ReservationEnded):
                reservation.write(fact())
    finally:
        connection.rollback()
        connection.set_autocommit(True)


def test_writing_after_a_savepoint_of_the_reservation_went_is_refused():
    """With the savepoint went what held readers back: they may have passed the IDs."""
    with transaction.atomic():
        with pytest.raises(Oops), transaction.atomic():
            reservation = stream().reserve()
            reservation.__enter__()
            raise Oops
        assert not pending()
        with pytest.raises(ReservationEnded, match="Reserve again"):
            reservation.write(fact())
        with stream().reserve() as again:
            again.write(fact())
    wait_for_linear(again.ids[0])
    assert ids() == again.ids


def test_writing_after_a_handmade_savepoint_went_is_refused():
    before = append()
    with transaction.atomic():
        savepoint = transaction.savepoint()
        with stream().reserve() as reservation:
            transaction.savepoint_rollback(savepoint)
            assert not pending()
            with pytest.raises(ReservationEnded, match="Reserve again"):
                reservation.write(fact())
    wait_for_linear(reservation.ids[0])
    assert ids() == before


def test_writing_after_a_savepoint_before_which_the_stream_was_held():
    with transaction.atomic():
        first = append()
        savepoint = transaction.savepoint()
        with stream().reserve() as reservation:
            transaction.savepoint_rollback(savepoint)
            reservation.write(fact())
    wait_for_linear(reservation.ids[0])
    assert ids() == first + reservation.ids


def test_several_writes_use_the_ids_in_order():
    with stream().reserve(3) as reservation:
        reservation.write(fact("a"))
        reservation.write(fact("b"), fact("c"))
    assert list(CacheInvalidation.objects.order_by("stream_id").values_list("cache_name", flat=True)) == ["a", "b", "c"]
    assert ids() == reservation.ids


def test_several_rows_under_one_id():
    with stream().reserve() as reservation:
        rows = [fact("a"), fact("b")]
        for row in rows:
            row.stream_id = reservation.ids[0]
        reservation.write(*rows)
    assert ids() == reservation.ids * 2


def test_more_facts_than_ids_are_refused():
    with pytest.raises(ForeignFact, match="reserve as many"), stream().reserve() as reservation:
        reservation.write(fact(), fact())
    assert ids() == []


def test_a_foreign_id_is_refused():
    stranger = fact()
    stranger.stream_id = 999_999
    with pytest.raises(ForeignFact, match="999999"), stream().reserve() as reservation:
        reservation.write(stranger)


def test_a_row_of_another_stream_is_refused():
    with pytest.raises(ForeignFact, match="Reader"), stream().reserve() as reservation:
        reservation.write(Reader(key="x"))


@pytest.mark.parametrize("count", [0, -1, 10_000_000, 2.5, 1.0, True, "3", None])
def test_a_senseless_count_is_refused(count):
    with pytest.raises(BadCount, match="ask for 1 to"):
        stream().reserve(count)


def test_a_reservation_is_used_inside_its_block_only():
    reservation = stream().reserve()
    with pytest.raises(ReservationNotOpen, match=r"with stream\.reserve"):
        reservation.write(fact())
    with pytest.raises(ReservationNotOpen, match=r"with stream\.reserve"):
        _ = reservation.ids


def test_a_reservation_is_entered_once():
    with stream().reserve() as reservation, pytest.raises(ReservationNotOpen, match="entered before"):
        reservation.__enter__()
    with pytest.raises(ReservationNotOpen, match="entered before"):
        reservation.__enter__()
    nothing_pending()


def test_the_same_object_is_written_once():
    once = fact()
    with stream().reserve(3) as reservation:
        with pytest.raises(ForeignFact, match="given twice"):
            reservation.write(once, once)
        reservation.write(once)
        with pytest.raises(ForeignFact, match="given twice"):
            reservation.write(once)
    assert ids() == [once.stream_id]


def test_a_write_that_failed_can_be_repeated_with_the_same_object():
    bad = CacheInvalidation(cache_name=None)
    with stream().reserve(2) as reservation:
        with pytest.raises(DatabaseError), transaction.atomic():
            reservation.write(bad)
        bad.cache_name = "now it has one"
        reservation.write(bad)
    assert ids() == [reservation.ids[1]]


def test_an_insert_that_fails_leaves_nothing_pending():
    before = append()[0]
    with pytest.raises(DatabaseError):
        stream().append(CacheInvalidation(cache_name=None))
    nothing_pending()
    (after,) = append()
    assert ids() == [before, after]
    wait_for_linear(after)


def test_an_append_in_a_broken_transaction_leaves_nothing_pending():
    append()
    with pytest.raises(Oops), transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(transaction.TransactionManagementError):
            append()
        raise Oops
    assert not pending()
    wait_for_linear(append()[0])


def test_threads_share_announcements():
    append()
    with session() as cursor:
        cursor.execute("SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'streams_streamposition'")
        cursor.execute("LISTEN replsite_streams")
        threads = [in_thread(lambda: [append() for _ in range(10)]) for _ in range(32)]  # type: ignore[arg-type, misc]
        for thread in threads:
            thread.join()
        wait_for_linear(max(ids()))
        announcements = len(driver.receive(cursor.connection))
    assert len(ids()) == 321
    assert announcements < 321 / 3, f"{announcements} announcements for 320 appends"


def test_threads_lose_nothing_when_some_roll_back():
    def work() -> None:
        for number in range(10):
            try:
                with transaction.atomic():
                    append()
                    if number % 3 == 0:
                        raise Oops
            except Oops:
                continue

    threads = [in_thread(work) for _ in range(8)]
    for thread in threads:
        thread.join()
    nothing_pending()
    wait_for_linear(max(append()))
    assert len(ids()) == 8 * 6 + 1


async def test_append_from_async_code():
    taken = await stream().aappend(fact(), fact())
    await sync_to_async(wait_for_linear)(taken[-1])
    await sync_to_async(connections.close_all)()


async def test_gathered_appends_each_get_their_own_id():
    taken = await asyncio.gather(*(stream().aappend(fact()) for _ in range(20)))
    assert len({number for some in taken for number in some}) == 20
    await sync_to_async(wait_for_linear)(max(taken)[0])
    await sync_to_async(connections.close_all)()


async def test_a_cancelled_append_leaves_nothing_pending():
    await stream().aappend(fact())
    task = asyncio.create_task(stream().aappend(fact()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await sync_to_async(nothing_pending)()
    await sync_to_async(connections.close_all)()


def test_last_write_is_shown():
    taken = append(2)
    wait_for_linear(taken[1])
    assert stored()["master"].last_write_position == taken[1]
