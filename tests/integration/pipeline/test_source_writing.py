"""Tasks of a Spark write stage rows and the driver appends them: repeated, late and killed ones lose and double nothing.

The tasks' code is called as Spark calls it, without Spark.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys

import psycopg2
import pyarrow as pa
import pytest
from django.db import connection
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from pipeline.errors import FactsNotAppended
from pipeline.models import SourceWrite
from pipeline.source.options import WriteOptions
from pipeline.source.staging import PREFIX
from pipeline.source.write import fact_writer
from streams.catalog.models import CacheInvalidation, Receipt
from streams.db.driver import dsn
from tests.support.session import PROJECT
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import linear, waiting_sessions

pytestmark = pytest.mark.django_db(transaction=True)
TEXT = StringType()
CACHES = StructType([StructField("cache_name", TEXT), StructField("keys", ArrayType(TEXT))])


def options(stream="caches", **more):
    return WriteOptions(dsn(), stream, **more)


def batch(*names):
    keys = pa.array([[name] for name in names], pa.list_(pa.string()))
    return pa.RecordBatch.from_pydict({"cache_name": pa.array(names, pa.string()), "keys": keys})


def stored():
    return list(CacheInvalidation.objects.order_by("stream_id").values_list("cache_name", flat=True))


def staging_tables():
    with connection.cursor() as cursor:
        cursor.execute("SELECT relname FROM pg_class WHERE relkind = 'r' AND starts_with(relname::text, %s)", [PREFIX])
        return [row[0] for row in cursor.fetchall()]


@pytest.fixture
def writer():
    made = fact_writer(options(), CACHES, overwrite=False)
    yield made
    made.abort([])
    assert staging_tables() == []


def test_what_the_tasks_staged_is_appended_in_the_name_of_the_writer(writer):
    first, second = writer.write(iter([batch("a"), batch("b")])), writer.write(iter([batch("c")]))
    assert stored() == []
    writer.commit([first, second])
    assert stored() == ["a", "b", "c"]
    last = CacheInvalidation.objects.latest("stream_id")
    done = SourceWrite.objects.get()
    assert (last.instance_name, last.stream_id) == (done.writer, done.last_id) == ("spark", linear())


def test_a_task_that_was_repeated_counts_once(writer):
    writer.write(iter([batch("a", "b")]))
    again = writer.write(iter([batch("a", "b")]))
    writer.commit([again])
    assert stored() == ["a", "b"]


def test_a_task_that_dies_stages_nothing(writer):
    def dying():
        yield batch("a")
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        writer.write(dying())
    writer.commit([writer.write(iter([batch("a")]))])
    assert stored() == ["a"]


def test_a_task_that_comes_late_finds_no_table(writer):
    writer.commit([writer.write(iter([batch("a")]))])
    with pytest.raises(psycopg2.errors.UndefinedTable):
        writer.write(iter([batch("late")]))
    assert stored() == ["a"]


def test_a_job_with_a_task_that_told_nothing_appends_nothing(writer):
    with pytest.raises(FactsNotAppended, match="1 tasks did not report"):
        writer.commit([writer.write(iter([batch("a")])), None])
    assert stored() == []


def test_what_was_lost_in_a_crash_of_postgresql_is_noticed(writer):
    staged = writer.write(iter([batch("a", "b")]))
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {writer.staging}")  # as recovery does with tables that are UNLOGGED
    with pytest.raises(FactsNotAppended, match="2 of 2 staged rows are gone"):
        writer.commit([staged])
    assert stored() == []


COMMIT = "import pickle, sys; writer, staged = pickle.load(sys.stdin.buffer); writer.commit([staged])"


def test_a_driver_that_is_killed_leaves_the_work_to_the_next(writer):
    """Spark pickles the writer, and calls ``commit`` in a process without Django."""
    staged = writer.write(iter([batch("a", "b")]))
    with psycopg2.connect(dsn()) as blocking, blocking.cursor() as cursor:
        cursor.execute("LOCK TABLE streams_cacheinvalidation IN SHARE MODE")  # the insert waits
        environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
        command = [sys.executable, "-c", COMMIT]
        process = subprocess.Popen(command, cwd=PROJECT, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdin.write(pickle.dumps((writer, staged)))
        process.stdin.close()
        wait_until(waiting_sessions)
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE_SECONDS)
        process.stderr.close()
    blocking.close()
    assert stored() == []
    writer.commit([staged])
    assert stored() == ["a", "b"]


def test_json_travels_in_one_form_and_must_be_json():
    names = ("room_id", "receipt_type", "user_id", "event_id", "data")
    schema = StructType([StructField(name, TEXT) for name in names])
    writer = fact_writer(options("receipts"), schema, overwrite=False)
    row = ["!r", "m.read", "@u", "$e"]
    staged = writer.write(
        iter([pa.RecordBatch.from_arrays([pa.array([v]) for v in [*row, '{ "ü": 1 }']], list(names))])
    )
    with pytest.raises(FactsNotAppended, match="column data must be JSON text"):
        writer.write(iter([pa.RecordBatch.from_arrays([pa.array([v]) for v in [*row, "{"]], list(names))]))
    writer.commit([staged])
    assert Receipt.objects.get().data == '{"\\u00fc":1}'


def test_null_where_none_may_be_is_named(writer):
    rows = pa.RecordBatch.from_pydict(
        {"cache_name": pa.array([None], pa.string()), "keys": pa.nulls(1, pa.list_(pa.string()))}
    )
    with pytest.raises(FactsNotAppended, match="column cache_name must not be null"):
        writer.write(iter([rows]))


@pytest.mark.parametrize(
    ("stream", "columns", "overwrite", "said"),
    [
        ("caches", CACHES.fields, True, r"mode\('append'\)"),
        ("events", [StructField("event_id", TEXT)], False, "manage.py import_events"),
        ("caches", CACHES.fields[1:], False, "needs cache_name"),
        ("caches", [*CACHES.fields, StructField("token", LongType())], False, "drop token"),
        ("caches", [StructField("cache_name", LongType())], False, "no column cache_name bigint"),
        ("nonsense", CACHES.fields, False, "no stream 'nonsense'"),
    ],
)
def test_what_cannot_be_appended_is_refused_before_anything_is_made(stream, columns, overwrite, said):
    with pytest.raises(ValueError, match=said):
        fact_writer(options(stream), StructType(list(columns)), overwrite=overwrite)
    assert staging_tables() == []


def test_a_name_that_no_writer_can_have_is_refused(writer):
    with pytest.raises(ValueError, match="'no good name' cannot be an instance name"):
        fact_writer(options(writer="no good name"), CACHES, overwrite=False)


def test_why_nothing_was_appended_is_said(writer):
    staged = writer.write(iter([batch("a")]))
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE streams_cacheinvalidation ADD CONSTRAINT no_a CHECK (cache_name <> 'a')")
    try:
        with pytest.raises(FactsNotAppended, match=r"Stream caches: .*violates check constraint \"no_a\""):
            writer.commit([staged])
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE streams_cacheinvalidation DROP CONSTRAINT no_a")
    assert stored() == []
    writer.commit([staged])
    assert stored() == ["a"]
