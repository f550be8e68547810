"""Sequences only ever move forward: by a step or a jump, whoever takes IDs at the same moment, and after a fail-over."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from replsite.live_rows.reading import read_snapshot
from replsite.status.words import Severity
from streams.catalog.models import CacheInvalidation
from streams.db import sequences
from streams.errors import SequenceBehind, SequenceBusy
from streams.maintenance import check
from streams.models import StreamPosition
from streams.reading.looker import look_now
from streams.testing import forget_writers
from tests.support.waiting import wait_until
from tests.support.writing import append, fact, ids, in_thread, linear, session, stored, stream, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)
NAME = "streams_cacheinvalidation_seq"


def value() -> int:
    with session() as cursor:
        return stream().sequence_value(cursor)


def nextval() -> int:
    with session() as cursor:
        cursor.execute("SELECT nextval(%s)", [NAME])
        return cursor.fetchone()[0]


@contextmanager
def others_taking_ids(taken: list[int]):
    """Two sessions that take IDs as fast as the server can."""
    stop = threading.Event()

    def take() -> None:
        with session() as cursor:
            while not stop.is_set():
                cursor.execute("SELECT array_agg(nextval(%s)) FROM generate_series(1, 5000)", [NAME])
                taken.extend(cursor.fetchone()[0])

    threads = [in_thread(take) for _ in range(2)]
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_step_forward_reaches_the_value_and_never_goes_back():
    with session() as cursor:
        sequences.move_forward(cursor, NAME, value() + 5)
        reached = value()
        sequences.move_forward(cursor, NAME, 3)
    assert value() == reached


@pytest.mark.parametrize("steps_limit", [pytest.param(1_000_000, marks=pytest.mark.scenario), 0], ids=["step", "jump"])
def test_no_id_is_given_out_twice_beside_others(monkeypatch, steps_limit):
    monkeypatch.setattr(sequences, "STEPS_LIMIT", steps_limit)
    taken: list[int] = []
    with others_taking_ids(taken), session() as cursor:
        for ahead in range(0, 3000, 30):
            sequences.move_forward(cursor, NAME, value() + ahead)
        wait_until(lambda: len(taken) > 300)
    assert len(taken) == len(set(taken))


def test_long_jump():
    with session() as cursor:
        sequences.move_forward(cursor, NAME, 10**12)
    assert nextval() == 10**12 + 1


def test_long_jump_that_open_transactions_keep_out_is_named(monkeypatch):
    monkeypatch.setattr(sequences, "LOCK_SECONDS", 1)
    with session() as holder, session() as cursor:
        holder.execute("BEGIN")
        holder.execute("SELECT nextval(%s)", [NAME])
        with pytest.raises(SequenceBusy, match="check_streams --repair"):
            sequences.move_forward(cursor, NAME, 10**13)


@pytest.mark.scenario
def test_check_beside_writers_finds_no_fault():
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            append()

    thread = in_thread(work)
    try:
        wait_until(stored)
        with session() as cursor:
            for _ in range(200):
                (finding,) = [f for f in check.inspect_streams(cursor) if f.stream == "caches"]
                assert finding.well, finding
    finally:
        stop.set()
        thread.join()


def insert(number: int) -> None:
    CacheInvalidation._base_manager.writable().bulk_create(
        [CacheInvalidation(stream_id=number, instance_name="x", cache_name="c")]
    )


def test_repair_moves_all_streams_at_once_and_says_what_it_did(capsys):
    insert(value() + 500)
    with pytest.raises(CommandError, match="1 of"):
        call_command("check_streams")
    call_command("check_streams", "--repair")
    assert "sequence behind table; sequence moved to" in capsys.readouterr().err
    assert value() >= ids()[-1]
    assert append()[0] > ids()[0]


def test_the_table_is_not_folded_where_no_terminal_is(capsys):
    """Whoever reads it through a pipe finds a stream in a line."""
    insert(value() + 500)
    with pytest.raises(CommandError, match="1 of"):
        call_command("check_streams")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "caches" in line]
    assert "sequence behind table" in line
    assert "check_streams --repair" in line


def test_repair_beside_a_living_writer_keeps_its_row():
    append()
    insert(value() + 50)
    with session() as cursor:
        check.repair(cursor, stream())
    assert stored()["master"].state == "active"
    assert append()[0] > ids()[-2]


# --- a fail-over: PostgreSQL writes sequences 32 values ahead ---------------------------------------------------------


def jump(by: int) -> None:
    """As a crash recovery or a promoted standby leaves it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT setval(%s, %s)", [NAME, value() + by])


def test_jump_by_32_under_a_living_writer_is_a_gap_like_any_other():
    before = append()[0]
    wait_for_linear(before)
    jump(32)
    after = append()[0]
    assert after == before + 33
    wait_for_linear(after)
    assert not [f for f in inspect() if not f.well]


def test_jump_by_32_before_a_start_is_not_stored_as_a_position():
    """Else the stored position would be above the sequence when it falls back to where it was."""
    before = append()[0]
    wait_for_linear(before)
    forget_writers()
    jump(32)
    append_after_start = append()[0]
    assert append_after_start == before + 33
    wait_for_linear(append_after_start)
    assert [at.position for at in stored().values()] == [append_after_start]


def test_sequence_behind_a_stored_position_is_found_and_repaired():
    before = append(5)[-1]
    wait_for_linear(before)
    forget_writers()
    CacheInvalidation._base_manager.writable().all()._raw_delete("default")
    jump(-3)
    (finding,) = [f for f in inspect() if f.stream == "caches"]
    assert (finding.verdict, finding.wanted_sequence) == ("sequence behind stored position", before)
    with session() as cursor:
        assert check.repair(cursor, stream()) == before
    assert StreamPosition.objects.get().position == before
    assert append()[0] == before + 1


def _append_in_a_transaction() -> None:
    """It catches the error and commits what else it did."""
    with transaction.atomic():
        try:
            append()
        except SequenceBehind as error:
            caught = error
    raise caught


def _append_reserved() -> None:
    with stream().reserve(2) as reservation:
        reservation.write(fact(), fact())


@pytest.mark.parametrize(
    "attempt", [append, lambda: append(3), lambda: append(1_001), _append_in_a_transaction, _append_reserved],
    ids=["one", "many", "more than a message", "in a transaction", "reserved"],
)  # fmt: skip
@pytest.mark.parametrize("trimmed", [True, False])
def test_what_a_sequence_gives_out_again_under_a_living_writer_is_not_used(attempt, trimmed):
    """Its followers are past these IDs, so they would never read the facts, which the caller takes for stored."""
    wait_for_linear(head := append(2_000)[-1])
    if trimmed:
        CacheInvalidation._base_manager.writable().all()._raw_delete("default")
    before = ids()
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER SEQUENCE {NAME} RESTART WITH 5")
    with pytest.raises(SequenceBehind, match=f"gave out an ID that is not above {head}, .*check_streams --repair"):
        attempt()
    assert ids() == before
    with session() as cursor:
        assert check.repair(cursor, stream()) >= head
    after = append()[0]
    assert linear() >= after
    assert after > head and [number for number in ids() if number not in before] == [after]


def test_it_is_said_until_somebody_repairs_that_a_sequence_was_set_back(capsys):
    last = append(5)[-1]
    wait_for_linear(last)
    look_now("default", even_if_led=True)
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER SEQUENCE {NAME} RESTART WITH {last - 2}")
        cursor.execute("INSERT INTO streams_cacheinvalidation (cache_name) VALUES ('lost')")
    look_now("default", even_if_led=True)
    assert value() == last
    status = read_snapshot().stream("caches").status
    assert (status.word, status.severity) == ("holds unfit", Severity.WRONG)
    assert f"set back from {last}, and moved there again when it was at {last - 2}; 1 fact got" in status.sentence
    with pytest.raises(CommandError, match="Append those facts again"):
        call_command("check_streams")
    assert "1 fact got IDs that readers have passed" in capsys.readouterr().out
    call_command("check_streams", "--repair")
    assert read_snapshot().stream("caches").status.severity < Severity.WARNING
    assert append()[0] == last + 1


def inspect() -> list[check.Finding]:
    with session() as cursor:
        return check.inspect_streams(cursor)
