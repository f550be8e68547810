"""Appending in one message: what is refused before anything is reserved, which facts get which IDs, and messages whose answer
is lost."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import DatabaseError, InterfaceError, connection, transaction
from django.test.utils import CaptureQueriesContext

from streams import registry
from streams.catalog.models import CacheInvalidation
from streams.errors import BadCount, ForeignFact
from streams.holds.look import holders
from streams.management.commands.append import _Run
from streams.models import Reader
from streams.writing import append as appends
from tests.support.cutting_proxy import Cut, CuttingProxy
from tests.support.queries import sent
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import (
    append,
    fact,
    ids,
    in_thread,
    linear,
    session,
    stream,
    wait_for_linear,
    waiting_sessions,
)

pytestmark = pytest.mark.django_db(transaction=True)


class Oops(Exception):
    """Raised by a test inside a transaction."""


def pending() -> bool:
    """True while an append to the stream is open."""
    with session() as cursor:
        return bool(holders(cursor, ["caches"]))


def sequence() -> int:
    with session() as cursor:
        return int(stream().sequence_value(cursor))


# --- a session that ends ------------------------------------------------------------------------------------------


def test_a_session_that_ends_right_after_the_commit_is_no_error_of_the_caller():
    """The fact is stored. What is left to do is a hint, which everybody can do without."""
    connection.close()  # nothing is known of the next session

    def end_afterwards(execute, statement, *rest):
        found = execute(statement, *rest)
        if "INSERT INTO" in statement:
            with session() as other:
                other.execute("SELECT pg_terminate_backend(%s, 5000)", [connection.connection.info.backend_pid])
        return found

    with connection.execute_wrapper(end_afterwards):
        (token,) = stream().append(fact())
    connection.close()
    assert ids() == [token]


def test_a_patient_load_goes_on_after_a_session_that_ended_right_after_the_commit():
    """Its next statement raises ``InterfaceError``, which Django does not count among its ``DatabaseError``."""
    connection.close()
    ended: list[int] = []

    def end_once(execute, statement, *rest):
        found = execute(statement, *rest)
        if "INSERT INTO" in statement and not ended:
            ended.append(connection.connection.info.backend_pid)
            with session() as other:
                other.execute("SELECT pg_terminate_backend(%s, 5000)", ended)
        return found

    load = _Run("caches", count=3, batch=1, rate=0, is_patient=True)
    with connection.execute_wrapper(end_once):
        load._work(0, threading.Event())
    assert (load._error, load.done, len(ids())) == (None, 3, 3)
    assert ended


# --- what is refused ----------------------------------------------------------------------------------------------


def test_nothing_to_append_is_refused():
    with pytest.raises(BadCount, match="append\\(\\) was given 0 facts"):
        stream().append()


def test_the_same_object_twice_is_refused_before_anything_is_reserved():
    append()
    before, twice = sequence(), fact()
    with pytest.raises(ForeignFact, match="same object twice"):
        stream().append(twice, fact(), twice)
    assert sequence() == before


def test_a_fact_with_an_id_is_refused_before_anything_is_reserved():
    append()
    before, numbered = sequence(), fact()
    numbered.stream_id = 5
    with pytest.raises(ForeignFact, match="has ID 5 already"):
        stream().append(numbered)
    assert sequence() == before


def test_an_appended_fact_is_refused():
    one = fact()
    stream().append(one)
    with pytest.raises(ForeignFact, match="Make a new object"):
        stream().append(one)
    with pytest.raises(ForeignFact, match="Make a new object"):
        stream().append(CacheInvalidation.objects.get())


@pytest.mark.parametrize("stranger", [Reader(key="x"), "a text", None])
def test_what_is_no_fact_of_the_stream_is_refused(stranger):
    with pytest.raises(ForeignFact, match="holds no facts of stream 'caches'"):
        stream().append(fact(), stranger)
    assert not ids()


# --- which facts get which IDs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 7, appends.MOST_FACTS, appends.MOST_FACTS + 1])
@pytest.mark.parametrize("inside", [False, True])
def test_ids_ascend_in_the_order_of_facts(count, inside):
    facts = [fact(f"c{number}") for number in range(count)]
    if inside:
        with transaction.atomic():
            taken = stream().append(*facts)
    else:
        taken = stream().append(*facts)
    assert taken == sorted(set(taken)) == [one.stream_id for one in facts]
    names = CacheInvalidation.objects.order_by("stream_id").values_list("cache_name", flat=True)
    assert list(names) == [f"c{number}" for number in range(count)]
    wait_for_linear(taken[-1])


def test_appended_objects_know_what_they_became():
    one = fact()
    stream().append(one)
    assert (one.instance_name, one._state.adding, one._state.db) == ("master", False, "default")


def test_values_come_back():
    rows = [
        CacheInvalidation(cache_name="a%s'\"\\", keys=["x", None, "{}"], invalidation_ts=7),
        CacheInvalidation(cache_name="b", keys=[], invalidation_ts=2**62),
        CacheInvalidation(cache_name="c", keys=None, invalidation_ts=0),
    ]
    stream().append(*rows)
    found = CacheInvalidation.objects.order_by("stream_id").values_list("cache_name", "keys", "invalidation_ts")
    assert list(found) == [(row.cache_name, row.keys, row.invalidation_ts) for row in rows]


def test_facts_of_which_only_some_leave_a_column_out():
    stream().append(fact("a"), CacheInvalidation(cache_name="b", keys=["k"], invalidation_ts=1))
    first, second = CacheInvalidation.objects.order_by("stream_id")
    assert first.invalidation_ts > 1_500_000_000_000
    assert second.invalidation_ts == 1


@pytest.mark.parametrize(("inside", "trips"), [(False, 1), (True, 1)])
def test_an_append_is_one_round_trip(inside, trips):
    append()
    with CaptureQueriesContext(connection) as queries:
        if inside:
            with transaction.atomic():
                append()
        else:
            append()
    messages = [sql for sql in sent(queries) if sql not in ("BEGIN", "COMMIT")]
    assert len(messages) == trips, messages


def test_an_append_that_failed_can_be_repeated_with_the_same_object():
    one = CacheInvalidation(cache_name=None)
    with pytest.raises(DatabaseError):
        stream().append(one)
    one.cache_name = "now it has one"
    assert stream().append(one) == ids()
    assert not pending()


def test_a_transaction_begun_by_hand_ends_by_hand():
    append()
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
    before = linear()
    taken = append()
    assert not connection.in_atomic_block
    assert linear() == before, "nobody has committed it"
    with connection.cursor() as cursor:
        cursor.execute("COMMIT")
    wait_for_linear(taken[0])


def test_frozen_snapshots_by_default_take_the_way_in_steps():
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_isolation = 'repeatable read'")
    try:
        taken = append(2)
        wait_for_linear(taken[-1])
    finally:
        connection.close()


# --- answers that are lost ----------------------------------------------------------------------------------------


@pytest.fixture
def beside() -> Iterator[CuttingProxy]:
    """A proxy to the server; nobody is sent through it yet. What was appended before is announced."""
    wait_for_linear(append()[0])
    given = connection.get_connection_params()
    with CuttingProxy(given["host"], int(given["port"]), at=b"INSERT INTO") as proxy:
        yield proxy


def through(proxy: CuttingProxy) -> dict[str, Any]:
    return {**connection.get_connection_params(), "host": "127.0.0.1", "port": proxy.port}


@pytest.fixture
def proxy(beside: CuttingProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[CuttingProxy]:
    """This thread's Django connection goes through the proxy; the writer's own does not."""
    connection.close()
    given = through(beside)
    monkeypatch.setattr(connection, "get_connection_params", lambda: given)
    yield beside
    connection.close()


def lost_append(proxy: CuttingProxy, cut: Cut, count: int = 1) -> None:
    proxy.cut = cut
    with pytest.raises((DatabaseError, InterfaceError)):
        append(count)
    proxy.cut = Cut.NOTHING
    connection.close()


@pytest.mark.parametrize("count", [1, 3])
def test_an_answer_that_is_lost_is_found_in_the_table(proxy, count):
    before = ids()
    lost_append(proxy, Cut.ANSWER, count)
    wait_until(lambda: not pending())
    found = ids()
    assert len(found) == len(before) + count
    wait_for_linear(found[-1])


def test_a_message_that_never_arrived_leaves_nothing(proxy):
    before = ids()
    lost_append(proxy, Cut.QUESTION)
    wait_until(lambda: not pending())
    assert ids() == before
    wait_for_linear(append()[0])


def test_facts_of_a_doubtful_message_are_counted_once(proxy):
    lost_append(proxy, Cut.ANSWER, 2)
    wait_until(lambda: facts_written() == 3)
    assert len(ids()) == 3


def facts_written() -> int:
    """As the looker stores it."""
    linear()
    with session() as cursor:
        cursor.execute("SELECT facts_written FROM streams_streamposition WHERE instance_name = 'master'")
        return int(cursor.fetchone()[0])


@pytest.fixture
def slow_insert() -> Iterator[None]:
    """An insert into the table waits for advisory lock 1."""
    with session() as cursor:
        cursor.execute(
            """
            CREATE FUNCTION wait_for_test() RETURNS trigger LANGUAGE plpgsql AS
                'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END';
            CREATE TRIGGER wait_for_test BEFORE INSERT ON streams_cacheinvalidation
                FOR EACH ROW EXECUTE FUNCTION wait_for_test();
            """
        )
        yield
        cursor.execute("DROP TRIGGER wait_for_test ON streams_cacheinvalidation; DROP FUNCTION wait_for_test")


@pytest.mark.usefixtures("slow_insert")
def test_while_the_message_is_at_work_the_position_waits(beside):
    before = linear()
    with session() as blocker:
        blocker.execute("BEGIN; SELECT pg_advisory_xact_lock(1)")
        lost = blocked_append(beside, blocker)
        lost.join()
        blocker.execute("SELECT pg_sleep(0.1)")
        assert linear() == before
        assert pending()
        blocker.execute("COMMIT")
    wait_until(lambda: not pending())
    wait_for_linear(ids()[-1])
    assert len(ids()) == 2


def blocked_append(proxy: CuttingProxy, blocker: Any) -> threading.Thread:
    """An append of another thread through the proxy, cut while the server is at work on it."""
    given = through(proxy)
    cut = threading.Event()

    def work() -> None:
        connection.get_connection_params = lambda: given  # type: ignore[method-assign]
        with contextlib.suppress(DatabaseError, InterfaceError):  # as any caller would see it
            append()
        cut.set()

    thread = in_thread(work)
    wait_until(waiting_sessions)
    proxy.drop_all()
    assert cut.wait(DEADLINE_SECONDS)
    return thread


def test_an_end_by_the_administrator_leaves_a_doubt_that_is_settled():
    append()
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = 100")
    try:
        with session() as blocker:
            blocker.execute("BEGIN; LOCK TABLE streams_cacheinvalidation IN EXCLUSIVE MODE")
            with pytest.raises(DatabaseError, match="timeout"):
                append()
            blocker.execute("COMMIT")
        wait_until(lambda: not pending())
    finally:
        connection.close()
    wait_for_linear(append()[0])


def test_other_streams_take_the_same_way():
    """Every declared stream of one table takes the message; what it inserts is what the steps insert."""
    for stream_ in registry.all_streams():
        if stream_.sample is None:
            continue
        model = stream_.models[0]
        message = appends._message([model(**stream_.sample(0, 0))], connection)
        assert message is None or stream_.append(model(**stream_.sample(1, 0)))


# --- the second append of a transaction ---------------------------------------------------------------------------


# --- texts that look like parts of an array -----------------------------------------------------------------------


def test_any_text_comes_back_of_several_facts():
    texts = [
        "NULL",
        "null",
        "",
        "{}",
        "{",
        "}",
        ",",
        '"',
        "\\",
        '\\"',
        '","',
        " ",
        "\n\t",
        "a'b",
        "%s",
        "%%",
        "\u00fc\U0001f600",
    ]
    with connection.cursor() as cursor:
        cursor.execute("SET array_nulls = off")  # NULL is a text then
    try:
        for given in (texts, texts[:2], ["plain", "plainer"], [*texts, None]):
            keys = [[one] * n for n, one in enumerate(given)]
            taken = stream().append(
                *(
                    CacheInvalidation(cache_name=one or "", keys=None if one is None else key, invalidation_ts=-n)
                    for n, (one, key) in enumerate(zip(given, keys, strict=True))
                )
            )
            rows = CacheInvalidation.objects.filter(stream_id__in=taken).order_by("stream_id")
            assert [(row.cache_name, row.keys, row.invalidation_ts) for row in rows] == [
                (one or "", None if one is None else key, -n)
                for n, (one, key) in enumerate(zip(given, keys, strict=True))
            ]
    finally:
        connection.close()


# --- what is prepared ---------------------------------------------------------------------------------------------


def executed(work: Any) -> str:
    with CaptureQueriesContext(connection) as queries:
        work()
    return " ".join(query["sql"] for query in queries)


@pytest.mark.parametrize("count", [1, 10, 100])
@pytest.mark.parametrize("inside", [True, False])
def test_an_append_is_planned_once_a_connection_and_not_for_the_first_ones(inside, count):
    """To prepare takes two more messages, which a connection of one request does not earn back."""
    connection.close()
    append()  # holds the name
    messages = []
    for _ in range(5):
        with transaction.atomic() if inside else contextlib.nullcontext():
            messages.append(executed(lambda: append(count)))
    for first in messages[: 2 if count > 1 else 1]:
        assert "PREPARE" not in first
        assert "INSERT" in first
    assert "PREPARE" not in messages[4]
    assert "INSERT" not in messages[4]
    assert messages[4].count("EXECUTE") == 2, "the writer's name, and the INSERT, which holds by itself"
    assert linear() == ids()[-1]


@pytest.mark.parametrize("inside", [True, False])
def test_the_plan_of_several_facts_is_that_of_any_number(inside):
    connection.close()
    sent = []
    for count in (2, 10, 200, 1_000, 3):
        with transaction.atomic() if inside else contextlib.nullcontext():
            sent.append(executed(lambda count=count: append(count)))
    assert ["INSERT" in one for one in sent] == [True, True, True, False, False], "the third call prepares"
    assert ids() == sorted(ids()) and len(ids()) == 1_215


def test_values_come_back_as_they_were_given_also_prepared():
    given = [["a", "b'%"], [], None, ["\u00e9\U0001f600", ""]]
    for _ in range(4):
        taken = [
            stream().append(CacheInvalidation(cache_name="c%s", keys=keys, invalidation_ts=n))[0]
            for n, keys in enumerate(given)
        ]
        rows = CacheInvalidation.objects.filter(stream_id__in=taken).order_by("stream_id")
        assert [(row.cache_name, row.keys, row.invalidation_ts) for row in rows] == [
            ("c%s", keys, n) for n, keys in enumerate(given)
        ]
