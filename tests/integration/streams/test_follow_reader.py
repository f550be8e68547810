"""Named readers on a real server: each fact has its effect once, whatever fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from django.db import connection, transaction

from streams import registry
from streams.catalog.models import CacheInvalidation, Receipt
from streams.core.tokens import VectorToken
from streams.epochs import begin_epoch
from streams.errors import BadHandler, EpochChanged, HandlerFailed, ReaderNameTaken, UnknownReader, UnknownStream
from streams.follow import (
    Begin,
    Chunk,
    Handler,
    OnFailure,
    Reader,
    View,
    drop_parked,
    parked_facts,
    resync_reader,
    retry_parked,
)
from streams.follow import handlers as declared
from streams.follow.handlers import handles
from streams.follow.table_source import TableSource
from streams.models import Reader as ReaderRow
from streams.models import ReaderResync, StoredCursor
from tests.support.effects import Running, effects, effects_table, running, take
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import (
    append,
    cut,
    fact,
    ids,
    server_process,
    session,
    stored,
    stream,
    terminate,
    wait_for_linear,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _table() -> Iterator[None]:
    with effects_table():
        yield


def handler(function=take, **options) -> Handler:
    options.setdefault("begin", Begin.OLDEST)
    options.setdefault("retry_seconds", 0.01)
    return Handler("caches", "r", function, **options)


def caught_up(*handlers: Handler) -> int:
    wait_for_linear(ids()[-1])
    return Reader("r", handlers).catch_up()


def cursor_base() -> int:
    return StoredCursor.objects.get(reader="r", stream="caches").base


def poison(*tokens: int, error: type[Exception] = ValueError):
    """A handler that takes everything but these."""

    def function(chunk: Chunk) -> None:
        take(chunk)
        if bad := [one.token for one in chunk if one.token in tokens]:
            raise error(f"cannot take {bad}")

    return function


@pytest.mark.parametrize("view", list(View))
def test_all_facts_have_their_effect_once_and_in_order(view):
    append(7)
    assert caught_up(handler(view=view, chunk_rows=3)) == 7
    append(2)
    assert caught_up(handler(view=view, chunk_rows=3)) == 2
    assert effects() == ids()
    assert cursor_base() == ids()[-1]


def test_a_reader_without_a_cursor_begins_now_unless_told_otherwise():
    append(3)
    wait_for_linear(ids()[-1])
    with running(handler(begin=Begin.NOW)):
        later = append(2)
        wait_until(lambda: effects() == later)


def test_what_was_committed_before_a_new_reader_began_is_not_handled_though_nobody_had_looked():
    append(3)
    with running(handler(begin=Begin.NOW)):
        later = append(2)
        wait_until(lambda: effects()[-2:] == later)
        assert effects() == later


@pytest.mark.parametrize("view", list(View))
def test_facts_are_handled_as_they_come(view):
    with running(handler(view=view)) as runs:
        for _ in range(20):
            append(3)
        wait_until(lambda: len(effects()) == 60)
        assert effects() == ids()
    assert runs.error is None
    assert runs.reader.facts_handled == 60


def test_a_fact_whose_transaction_is_open_is_not_handed_out_and_later_ones_wait_in_linear_order():
    append()
    wait_for_linear(ids()[-1])
    with running(handler(view=View.LINEAR)):
        with transaction.atomic():
            held = append()
            with session() as cursor:
                cursor.execute("SELECT 1")
            assert held[0] not in effects()
        wait_until(lambda: effects() == ids())


def test_rows_of_a_fact_stay_together_whatever_the_chunk():
    chunks: list[list[int]] = []
    for size in (1, 5, 2, 9):
        with stream().reserve(1) as reservation:
            for _ in range(size):
                row = fact()
                row.stream_id = reservation.ids[0]
                reservation.write(row)
    assert caught_up(handler(lambda chunk: chunks.append([len(one.rows) for one in chunk]), chunk_rows=3)) == 4
    assert [size for chunk in chunks for size in chunk] == [1, 5, 2, 9]


def test_instances_cost_one_query_a_chunk(django_assert_num_queries):
    append(20)
    seen: list[tuple[int, CacheInvalidation]] = []

    def look(chunk: Chunk) -> None:
        with django_assert_num_queries(1):
            seen.extend((one.token, one.instances[0]) for one in chunk)
            assert len(chunk.instances) == 20

    assert caught_up(handler(look)) == 20
    assert [token for token, _ in seen] == ids() == [instance.stream_id for _, instance in seen]


def test_a_fact_that_was_deleted_meanwhile_has_rows_and_no_instances():
    append(3)
    gone = ids()[1]
    seen: list[tuple[int, int]] = []

    def look(chunk: Chunk) -> None:
        with session() as cursor:
            cursor.execute(
                "SET LOCAL streams.maintenance = on; DELETE FROM streams_cacheinvalidation WHERE stream_id = %s", [gone]
            )
        seen.extend((len(one.rows), len(one.instances)) for one in chunk)

    caught_up(handler(look))
    assert seen == [(1, 1), (1, 0), (1, 1)]


def test_an_effect_of_a_failing_handler_is_rolled_back_with_the_cursor():
    append(5)
    bad = ids()[3]
    with pytest.raises(HandlerFailed, match=rf"token {bad} of writer 'master'.*cannot take") as caught:
        caught_up(handler(poison(bad), attempts=2))
    assert isinstance(caught.value.__cause__, ValueError)
    assert effects() == ids()[:3]
    assert cursor_base() < bad
    assert caught_up(handler()) == 2
    assert effects() == ids()


def test_a_fact_that_fails_for_a_while_is_retried():
    append(3)
    left = {ids()[1]: 3}

    def fails_at_first(chunk: Chunk) -> None:
        take(chunk)
        for one in chunk:
            if left.get(one.token, 0):
                left[one.token] -= 1
                raise ValueError

    assert caught_up(handler(fails_at_first)) == 3
    assert effects() == ids()


def test_a_fact_that_cannot_be_taken_is_parked_with_its_trace_and_the_others_are_handled():
    append(40)
    bad = {ids()[0], ids()[17], ids()[39]}
    assert caught_up(handler(poison(*bad), on_failure=OnFailure.PARK, attempts=2)) == 37
    assert effects() == [number for number in ids() if number not in bad]
    parked = list(parked_facts("r"))
    assert {one.token for one in parked} == bad
    assert all("in function" in one.traceback and "ValueError: cannot take" in one.error for one in parked)
    assert {(one.attempts, one.instance_name, len(one.rows)) for one in parked} == {(2, "master", 1)}
    assert StoredCursor.objects.get().facts_parked == 3
    assert cursor_base() == ids()[-1]


@pytest.mark.parametrize(
    ("text", "kept_as_rows"),
    [
        ('{"x":"\\u0000"}', False),
        ('"\\ud800"', False),
        ('{"\\udc00":["\\u0000\\ud800"]}', False),
        ('"\\\\\\\\ud83d\\udc00"', False),
        ('{"x":["\\ud83d\\ude00",1e300]}', True),
    ],
)
@pytest.mark.parametrize("said", ["\0", "\ud800", "\udcff\0", "x"])
def test_whatever_a_fact_holds_and_an_error_says_is_parked(text, kept_as_rows, said, registered):
    """jsonb takes neither NUL nor half a pair: such a fact stopped its reader for ever."""
    seen = []

    def fail(chunk: Chunk) -> None:
        seen.extend(row[-1] for fact in chunk for row in fact.rows)
        raise ValueError(said)

    receipt = Receipt(room_id="!r:x", receipt_type="m.read", user_id="@u:x", event_id="$e", data=text)
    registry.get("receipts").append(receipt)
    made = Handler("receipts", "r", fail, begin=Begin.OLDEST, on_failure=OnFailure.PARK, attempts=1, retry_seconds=0.01)
    registered["r"] = {"receipts": made}
    wait_until(lambda: Reader("r", (made,)).catch_up() is not None and parked_facts("r").exists(), what="it is parked")
    assert retry_parked("r") == (0, 1)
    assert seen[0] == json.loads(text) and len(seen) >= 2
    found = parked_facts("r").get()
    assert found.error.startswith("ValueError: ") and isinstance(found.rows, list) is kept_as_rows


@pytest.fixture
def registered() -> Iterator[dict]:
    """Handlers declared in the test are forgotten after it."""
    before = {name: dict(of) for name, of in declared._handlers.items()}
    yield declared._handlers
    declared._handlers.clear()
    declared._handlers.update(before)


def parked_three(registered: dict, function) -> None:
    append(3)
    caught_up(handler(poison(*ids()), on_failure=OnFailure.PARK, attempts=1))
    registered["r"] = {"caches": handler(function)}


def test_parked_facts_are_taken_when_retried(registered):
    parked_three(registered, take)
    assert retry_parked("r", token=ids()[1]) == (1, 0)
    assert retry_parked("r") == (2, 0)
    assert sorted(effects()) == ids()
    assert not parked_facts().exists()


def test_a_parked_fact_that_fails_again_stays_with_its_new_trace_and_no_effect(registered):
    def fails(chunk: Chunk) -> None:
        take(chunk)
        raise KeyError

    parked_three(registered, fails)
    assert retry_parked("r", "caches") == (0, 3)
    assert {(one.attempts, one.error[:8]) for one in parked_facts("r")} == {(2, "KeyError")}
    assert effects() == []


def test_a_parked_fact_whose_retry_was_rolled_back_in_silence_stays_parked(registered):
    """The handler passes over an error that Django remembers: its effect is undone at the end of the block, without a word."""

    def careless(chunk: Chunk) -> None:
        take(chunk)
        try:
            with transaction.atomic(savepoint=False):
                raise ValueError
        except ValueError:  # that is the mistake
            pass

    parked_three(registered, careless)
    assert retry_parked("r") == (0, 3)
    assert parked_facts("r").count() == 3
    assert "passed over an error" in parked_facts("r").first().error


def test_parked_facts_can_be_dropped(registered):
    parked_three(registered, take)
    assert drop_parked("r", "caches", ids()[0]) == 1
    assert drop_parked("r") == 2
    assert effects() == []


def test_a_handler_that_passes_over_a_database_error_does_not_lose_its_effect_silently():
    append(1)

    def careless(chunk: Chunk) -> None:
        take(chunk)
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1/0")
        except Exception:  # noqa: BLE001 - that is the mistake
            pass

    with pytest.raises(HandlerFailed):
        caught_up(handler(careless, attempts=1))
    assert effects() == []


def test_a_handler_outside_of_a_transaction_is_called_without_one():
    append(4)
    seen: list[bool] = []

    def look(chunk: Chunk) -> None:
        seen.append(connection.in_atomic_block)
        take(chunk)

    assert caught_up(handler(look, atomic=False)) == 4
    assert seen == [False]
    assert effects() == ids()


def test_a_second_process_with_the_name_is_refused_and_told_who_holds_it():
    append()
    with running(handler()), pytest.raises(ReaderNameTaken, match=r"Reader 'r' is run by process \d+ on host"):
        Reader("r", [handler()]).catch_up()


def test_a_reader_whose_lock_connection_is_cut_goes_on_under_a_new_lease():
    append()
    with running(handler()) as runs:
        lease = StoredCursor.objects.get().lease
        assert cut("replsite reader r")
        append(3)
        wait_until(lambda: StoredCursor.objects.get().lease > lease)
        append(3)
        wait_until(lambda: effects() == ids())
        assert runs.error is None


def test_a_handler_whose_connection_is_cut_is_called_again():
    append(6)
    ended: list[int] = []

    def cut_once(chunk: Chunk) -> None:
        take(chunk)
        if not ended:
            ended.append(server_process())
            terminate(*ended)
            take(chunk)

    assert caught_up(handler(cut_once, attempts=1)) == 6
    assert effects() == ids()


def test_an_error_after_the_commit_repeats_nothing():
    append(3)
    calls: list[int] = []

    def hook_fails(chunk: Chunk) -> None:
        take(chunk)
        calls.append(len(chunk))
        if len(calls) == 1:
            transaction.on_commit(lambda: 1 / 0)

    caught_up(handler(hook_fails))
    assert effects() == ids()


@pytest.mark.parametrize("chunk_rows", [1, 100])
@pytest.mark.parametrize("on_failure", list(OnFailure))
def test_a_commit_hook_of_the_handler_that_fails_repeats_nothing(chunk_rows, on_failure, caplog):
    """The transaction is committed then: the facts are handled, and no one is parked or told that they are not."""
    append(3)
    seen: list[int] = []

    def fails() -> None:
        raise ValueError("of the hook")

    def function(chunk: Chunk) -> None:
        take(chunk)
        seen.extend(one.token for one in chunk)
        transaction.on_commit(fails)

    assert caught_up(handler(function, chunk_rows=chunk_rows, on_failure=on_failure, attempts=1)) == 3
    assert seen == effects() == ids()
    assert cursor_base() == ids()[-1]
    assert not parked_facts("r")
    assert any(record.msg["event"] == "reader.commit_hook_failed" for record in caplog.records)


def test_a_commit_that_fails_is_a_failure_of_the_handler():
    """A deferred constraint, for instance; nothing of it is stored, so the facts are handled one by one."""
    append(3)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE once (token bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    try:
        second = ids()[1]

        def function(chunk: Chunk) -> None:
            take(chunk)
            with connection.cursor() as cursor:
                for one in chunk:
                    cursor.execute(
                        "INSERT INTO once SELECT %s FROM generate_series(1, %s)", [one.token, 1 + (one.token == second)]
                    )

        assert caught_up(handler(function, on_failure=OnFailure.PARK, attempts=1)) == 2
        assert effects() == [number for number in ids() if number != second]
        assert [one.token for one in parked_facts("r")] == [second]
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE once")


@pytest.mark.parametrize("view", list(View))
def test_a_writer_that_holds_the_stream_back_holds_only_the_linear_view_back(run_manage, view):
    append()
    wait_for_linear(ids()[-1])
    with running(handler(view=view)):
        with transaction.atomic():
            held = append()[0]
            run_manage("append", "caches", "--count", "1", "--instance", "south")
            theirs = CacheInvalidation.objects.get(instance_name="south").stream_id
            if view is View.WRITER:
                wait_until(lambda: theirs in effects())
            assert held not in effects()
            assert (theirs in effects()) is (view is View.WRITER)
        wait_until(lambda: sorted(effects()) == ids())


def test_the_reader_shows_in_the_table_of_readers_with_what_it_handled():
    append(3)
    with running(handler()):
        wait_until(lambda: ReaderRow.objects.filter(name="r", kind="follower", closed_at=None).exists())
        wait_until(lambda: ReaderRow.objects.get(name="r").positions.get("caches", {}).get("master") == ids()[-1])
    assert ReaderRow.objects.get(name="r").close_reason == "stopped"


def test_a_reader_that_nobody_declared_is_named(registered):
    with pytest.raises(UnknownReader, match="No handler names reader 'nobody'"):
        Reader("nobody")


def test_two_handlers_of_one_reader_and_stream_are_refused(registered):
    handles("caches", reader="twice")(take)
    handles("caches", reader="twice")(take)  # the module imported again
    with pytest.raises(BadHandler, match="has a handler for stream 'caches' already"):
        handles("caches", reader="twice")(poison(1))


@pytest.mark.parametrize("options", [{"attempts": 0}, {"chunk_rows": 0}, {"retry_seconds": 0}, {"colour": "red"}])
def test_wrong_options_are_named(registered, options):
    with pytest.raises(BadHandler, match="reader 'wrong' for stream 'caches'"):
        handles("caches", reader="wrong", **options)(take)


def test_a_coroutine_function_is_refused(registered):
    async def late(chunk: Chunk) -> None: ...

    with pytest.raises(BadHandler, match="async_to_sync"):
        handles("caches", reader="wrong")(late)


def test_nothing_was_resynced_by_all_this():
    assert not ReaderResync.objects.exists()


@pytest.mark.parametrize("atomic", [True, False])
def test_in_a_restored_database_a_cursor_is_right_only_with_effects_that_were_restored_with_it(atomic):
    append(2)
    caught_up(handler(atomic=atomic))
    with session() as cursor:
        word = begin_epoch(cursor, "restored by the test")
    append(1)
    wait_for_linear(ids()[-1])
    if atomic:
        assert caught_up(handler()) == 1
        assert StoredCursor.objects.get().epoch == word
    else:
        with pytest.raises(EpochChanged, match=r"Reader r on stream caches.*resync reader"):
            caught_up(handler(atomic=False))
        resync_reader("r")
        assert caught_up(handler(atomic=False)) == 0


def test_who_begins_again_does_not_read_up_to_positions_of_before_a_restore(monkeypatch):
    """The connection came back to a database that lacks the newest facts: their IDs are given to others, later."""
    append(3)
    wait_for_linear(ids()[-1])
    source = TableSource(handler(chunk_rows=1), "default")
    try:
        source.first_token()
        first = source.next(VectorToken(0))
        assert first.target.covers(None, ids()[-1])
        assert not first.is_last
        kept = stored()["master"]
        monkeypatch.setattr(
            "streams.follow.table_source._present",
            lambda *_, may_read_ahead: ({"master": replace(kept, position=ids()[0])}, None),
        )
        source.first_token()
        assert not source.next(VectorToken(ids()[0])).cursor.covers(None, ids()[1])
    finally:
        source.close()


def test_a_stream_in_memory_is_refused():
    with pytest.raises(BadHandler, match="Stream 'typing' is kept in memory"):
        Reader("r", [Handler("typing", "r", take)])


def test_an_unknown_stream_is_named():
    with pytest.raises(UnknownStream, match="There is no stream 'clouds'"):
        Reader("r", [Handler("clouds", "r", take)])


def test_handlers_of_two_streams_run_side_by_side():
    append(3)
    seen: list[str] = []
    other = Handler("receipts", "r", lambda chunk: seen.append(chunk.stream), begin=Begin.OLDEST)
    with running(handler(), other) as runs:
        wait_until(lambda: effects() == ids())
        assert set(runs.reader.positions()) == {"caches", "receipts"}
    assert seen == []
    assert set(StoredCursor.objects.values_list("stream", flat=True)) == {"caches", "receipts"}


def test_a_handler_that_gives_up_stops_the_other_handlers_of_its_reader():
    append(1)

    def fail(chunk: Chunk) -> None:
        raise ValueError

    other = Handler("receipts", "r", take, begin=Begin.OLDEST)
    runs = Running(handler(fail, attempts=1), other)
    runs.thread.start()
    runs.thread.join(DEADLINE_SECONDS)
    assert not runs.thread.is_alive()
    assert isinstance(runs.error, HandlerFailed)
