"""What Spark tasks have staged is appended once, as a whole, in order, and readers get it as any other fact."""

from __future__ import annotations

import threading
import time

import pytest
from django.db import connection, connections

from pipeline.errors import FactsNotAppended
from pipeline.models import SourceWrite
from pipeline.source.append_staged import Appended, StagedWrite, append_staged
from pipeline.source.staging import staging_name, sweep
from streams import registry
from streams.catalog.models import CacheInvalidation, Presence
from streams.db.driver import dsn
from tests.support.waiting import DEADLINE_SECONDS, wait_until

pytestmark = pytest.mark.django_db(transaction=True)
COLUMNS = ("cache_name", "keys")


@pytest.fixture
def staging():
    """``staging(attempt=[rows])``: a staging table of the stream ``caches`` with these attempts, dropped afterwards."""
    made = []

    def make(columns="cache_name text, keys text[]", now=None, **attempts):
        name = staging_name(f"{len(made)}", time.time() if now is None else now)
        made.append(name)
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE UNLOGGED TABLE {name} (attempt bigint, place bigint, {columns})")
            for attempt, rows in attempts.items():
                for place, row in enumerate(rows):
                    values = [int(attempt[1:]), place, *row]
                    cursor.execute(f"INSERT INTO {name} VALUES ({', '.join(['%s'] * len(values))})", values)
        return name

    yield make
    with connection.cursor() as cursor:
        for name in made:
            cursor.execute(f"DROP TABLE IF EXISTS {name}")


def facts(*names):
    return [(name, ["k"]) for name in names]


def write(table, *attempts, write_id="w", columns=COLUMNS, stream="caches"):
    return StagedWrite(registry.get(stream).declaration, "spark", write_id, table, columns, attempts)


def stored():
    return list(CacheInvalidation.objects.order_by("stream_id").values_list("cache_name", flat=True))


def is_there(table):
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [table])
        return cursor.fetchone()[0]


def test_facts_are_appended_in_the_order_of_attempts_and_places(staging):
    table = staging(a7=facts("c", "d"), a3=facts("a", "b"))
    appended = append_staged(write(table, (3, 2), (7, 2)), dsn())
    assert stored() == ["a", "b", "c", "d"]
    assert appended == Appended(
        4, *CacheInvalidation.objects.order_by("stream_id").values_list("stream_id", flat=True)[::3]
    )
    assert not is_there(table)


def test_attempts_that_are_not_named_add_nothing(staging):
    table = staging(a1=facts("mine"), a2=facts("of a task that was repeated"))
    append_staged(write(table, (1, 1)), dsn())
    assert stored() == ["mine"]


def test_a_write_that_was_done_is_not_done_again(staging):
    first = append_staged(write(staging(a1=facts("a", "b")), (1, 2)), dsn())
    again = append_staged(write(staging(a9=facts("a", "b")), (9, 2)), dsn())
    assert (again.done_before, again.facts, again.first) == (True, 2, first.first)
    assert stored() == ["a", "b"]


def test_a_write_id_of_another_stream_is_refused(staging):
    append_staged(write(staging(a1=facts("a")), (1, 1)), dsn())
    with pytest.raises(FactsNotAppended, match="'w' was used for stream caches"):
        append_staged(write("nothing", stream="receipts"), dsn())


def test_rows_that_are_gone_leave_everything_as_it_was(staging):
    table = staging(a1=facts("a"))
    with pytest.raises(FactsNotAppended, match="2 of 3 staged rows are gone"):
        append_staged(write(table, (1, 1), (2, 2)), dsn())
    assert (stored(), SourceWrite.objects.count()) == ([], 0)


def test_a_staging_table_that_is_gone_leaves_everything_as_it_was():
    with pytest.raises(FactsNotAppended, match="1 of 1 staged rows are gone from pipeline_facts_0_gone"):
        append_staged(write("pipeline_facts_0_gone", (1, 1)), dsn())


def test_a_write_of_nothing_reserves_nothing(staging):
    before = registry.get("caches").sequence_value(connection.cursor())
    assert append_staged(write(staging(), (1, 0)), dsn()) == Appended(0)
    assert registry.get("caches").sequence_value(connection.cursor()) == before
    assert SourceWrite.objects.get().facts == 0


def test_attempts_of_any_size_and_none_are_appended_in_order(staging):
    table = staging(a1=facts("a", "b", "c"), a2=facts(), a3=facts("d", "e"))
    append_staged(write(table, (1, 3), (2, 0), (3, 2)), dsn())
    assert stored() == ["a", "b", "c", "d", "e"]


def test_readers_hear_of_the_facts_once_they_are_committed(staging):
    stream = registry.get("caches")
    appended = append_staged(write(staging(a1=facts("a", "b")), (1, 2)), dsn())
    assert stream.wait_for(appended.last, timeout_seconds=30).position_of(None) >= appended.last


def test_a_fact_that_the_database_refuses_leaves_everything_as_it_was(staging):
    table = staging(a1=[("fine", ["k"]), (None, ["k"])])
    with pytest.raises(FactsNotAppended, match="cache_name"):
        append_staged(write(table, (1, 2)), dsn())
    assert (stored(), SourceWrite.objects.count()) == ([], 0)


def test_only_the_newest_fact_stays_where_a_table_keeps_only_that(staging):
    table = staging("user_id text, state text", a1=[("@a", "online"), ("@b", "online"), ("@a", "offline")])
    append_staged(write(table, (1, 3), columns=("user_id", "state"), stream="presence"), dsn())
    assert sorted(Presence.objects.values_list("user_id", "state")) == [("@a", "offline"), ("@b", "online")]


def test_what_others_left_is_swept_after_a_day(staging):
    old, fresh = staging(now=time.time() - 90_000), staging()
    assert sweep(dsn()) == [old]
    assert is_there(fresh)


def test_a_table_that_cannot_be_dropped_does_not_make_a_write_fail_that_was_done(staging):
    """Who is told that nothing was appended writes again, and every fact is there twice."""
    kept, mine, old = staging(now=1), staging(a1=facts("a")), staging(now=2)
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE VIEW of_kept AS SELECT * FROM {kept}; CREATE VIEW of_mine AS SELECT * FROM {mine}")
    try:
        assert append_staged(write(mine, (1, 1)), dsn()).facts == 1
        assert sweep(dsn()) == [old]
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP VIEW of_kept, of_mine")


def test_a_table_that_a_task_writes_to_is_not_swept(staging):
    old = staging(now=1)
    written, done = threading.Event(), threading.Event()

    def late_task():
        with connections["default"].cursor() as cursor:
            cursor.execute(f"BEGIN; INSERT INTO {old} (attempt, place) VALUES (1, 1)")
            written.set()
            done.wait(DEADLINE_SECONDS)
            cursor.execute("COMMIT")
        connections.close_all()

    task = threading.Thread(target=late_task)
    task.start()
    try:
        assert written.wait(DEADLINE_SECONDS)
        assert sweep(dsn()) == []
    finally:
        done.set()
        task.join(DEADLINE_SECONDS)
    wait_until(lambda: sweep(dsn()) == [old])
