"""The Spark source ``replsite`` against real tables: complete facts only, each exactly once."""

from __future__ import annotations

import json

import pytest

from pipeline.source.data_source import register
from streams import registry
from streams.catalog.models import CacheInvalidation
from streams.db.driver import dsn
from streams.models import Reader
from tests.support.silent_queries import silent
from tests.support.waiting import wait_until
from tests.support.writing import as_instance, give_out, store_positions

pytestmark = [pytest.mark.django_db(transaction=True)]


@pytest.fixture
def caches():
    return registry.get("caches")


@pytest.fixture
def source(spark):
    register(spark)

    def load(stream="caches", streaming=False, **options):
        reader = spark.readStream if streaming else spark.read
        return reader.format("replsite").options(dsn=dsn(), stream=stream, **options).load()

    return load


def append(stream, count, name="c"):
    return stream.append(*(CacheInvalidation(cache_name=name, keys=[str(n)]) for n in range(count)))


def write(as_writer, stream, count, name="c"):
    """Append in the name of another writer, which stays in the table of positions."""
    with as_instance(as_writer):
        ids = append(stream, count, name)
    store_positions()
    return ids


def test_the_batch_reader_gives_every_complete_fact(source, caches):
    ids = write("one", caches, 30)
    rows = source().orderBy("token").collect()
    assert [row["token"] for row in rows] == ids
    assert (rows[3]["writer"], rows[3]["cache_name"], rows[3]["keys"]) == ("one", "c", ["3"])


def test_facts_above_the_stored_position_are_not_read(positions_by_hand, source, caches, rows):
    with as_instance("one"):
        ids = append(caches, 5)
    rows(
        f"INSERT INTO streams_streamposition (stream, instance_name, position) VALUES ('caches', 'one', {ids[2]}) RETURNING 1"
    )
    assert source().count() == 3


def test_a_stream_of_two_tables_comes_with_both(source, rows):
    give_out(9, "events")
    rows("INSERT INTO streams_streamposition (stream, instance_name, position) VALUES ('events', 'w', 9) RETURNING 1")
    rows(
        "SET LOCAL streams.maintenance = on; "
        "INSERT INTO events_event (stream_ordering, instance_name, event_id, room_id, type, sender, topological_ordering, "
        "origin_server_ts) VALUES (5, 'w', '$e', '!r', 't', '@u', 1, 1) RETURNING 1"
    )
    rows(
        "SET LOCAL streams.maintenance = on; "
        "INSERT INTO events_currentstatedelta (stream_ordering, instance_name, room_id, type, state_key, event_id) "
        "VALUES (5, 'w', '!r', 't', '', '$e') RETURNING 1"
    )
    found = {row["fact_table"]: row["event_id"] for row in source("events").collect()}
    assert found == {"events_event": "$e", "events_currentstatedelta": "$e"}


def test_backward_tokens_are_positive(source, rows):
    give_out(9, "backfill")
    rows(
        "INSERT INTO streams_streamposition (stream, instance_name, position) VALUES ('backfill', 'w', -9) RETURNING 1"
    )
    rows(
        "SET LOCAL streams.maintenance = on; "
        "INSERT INTO events_event (stream_ordering, instance_name, event_id, room_id, type, sender, topological_ordering, "
        "origin_server_ts) SELECT -n, 'w', '$' || n, '!r', 't', '@u', 1, 1 FROM generate_series(2, 12) n RETURNING 1"
    )
    assert sorted(row["token"] for row in source("backfill").collect()) == list(range(2, 10))


def collect_batches(frame, checkpoint):
    """Run what is available to the end; the tokens of each micro-batch."""
    batches = []

    def keep(batch, _):
        batches.append(sorted(row["token"] for row in batch.collect()))

    query = frame.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(keep)
    query.trigger(availableNow=True).start().awaitTermination(120)
    return batches


def test_micro_batches_are_bounded_and_give_every_fact_once(source, caches, tmp_path):
    ids = write("one", caches, 25) + write("two", caches, 25)
    batches = collect_batches(source(streaming=True, maxRows=10), tmp_path / "checkpoint")
    assert sorted(token for batch in batches for token in batch) == sorted(ids)
    assert max(map(len, batches)) <= 10


def test_a_writer_that_joins_between_runs_is_read_from_its_first_fact(source, caches, tmp_path):
    write("one", caches, 5)
    collect_batches(source(streaming=True), tmp_path / "checkpoint")
    late = write("two", caches, 7)
    batches = collect_batches(source(streaming=True), tmp_path / "checkpoint")
    assert [token for batch in batches for token in batch] == late


def test_a_query_without_checkpoint_begins_where_it_is_told(source, caches, tmp_path):
    ids = write("one", caches, 10)
    frame = source(streaming=True, startingOffsets=json.dumps({"one": ids[5]}))
    assert [token for batch in collect_batches(frame, tmp_path / "c") for token in batch] == ids[6:]


def test_a_named_reader_shows_what_it_has_handled(source, caches, tmp_path):
    ids = write("one", caches, 4)
    frame = source(streaming=True, readerName="notebook")
    collect_batches(frame, tmp_path / "checkpoint")
    collect_batches(frame, tmp_path / "checkpoint")
    reader = Reader.objects.get(name="notebook")
    assert (reader.kind, reader.positions["caches"]["one"]) == ("spark", ids[-1])


@pytest.mark.parametrize("end", ["stopped", "failed"])
def test_a_query_that_ended_is_told_with_its_lag(end, source, caches, tmp_path):
    def handle(batch, _):
        if any(row["cache_name"] == "bad" for row in batch.collect()):
            raise ValueError("a bad fact")

    ids = write("one", caches, 4)
    frame = source(streaming=True, readerName="notebook")
    query = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).foreachBatch(handle).start()
    try:
        wait_until(lambda: Reader.objects.filter(name="notebook", positions__caches__one=ids[-1]).exists())
        if end == "failed":
            write("one", caches, 1, "bad")
            wait_until(lambda: not query.isActive)
    finally:
        query.stop()
    write("one", caches, 300)
    found = silent("notebook")
    assert found.lag_facts == 300 + (end == "failed")
    assert "No sign of life" in found.status.sentence and "streams forget notebook" in found.status.sentence


def test_parquet_through_a_checkpoint_holds_every_fact_once(source, caches, spark, tmp_path):
    ids = []
    for writer in ("one", "two", "one"):
        ids += write(writer, caches, 12)
        sink = source(streaming=True, maxRows=7).writeStream.format("parquet")
        query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query.start(str(tmp_path / "out")).awaitTermination(120)
    stored = spark.read.parquet(str(tmp_path / "out"))
    assert sorted(row["token"] for row in stored.collect()) == sorted(ids)


def test_the_linear_view_gives_no_fact_above_an_open_one(source, caches, rows):
    ids = write("one", caches, 5) + write("two", caches, 5)
    rows(
        "UPDATE streams_streamposition SET state = 'active', position = %s WHERE instance_name = 'one' RETURNING 1",
        ids[2],
    )
    assert sorted(row["token"] for row in source(view="linear").collect()) == ids[:3]
    assert sorted(row["token"] for row in source(view="writer").collect()) == ids[:3] + ids[5:]


def test_micro_batches_of_the_linear_view_follow_each_other(source, caches, tmp_path):
    ids = [one for writer in ("one", "two", "one") for one in write(writer, caches, 5)]
    frame = source(streaming=True, view="linear", maxRows=4)
    assert [token for batch in collect_batches(frame, tmp_path / "c") for token in batch] == ids


def test_partitions_are_of_equal_counts(source, caches):
    ids = write("one", caches, 10) + write("two", caches, 11)
    parts = source(rowsPerPartition=5).rdd.mapPartitions(lambda part: [[row["token"] for row in part]]).collect()
    assert [len(part) for part in parts] == [5, 5, 5, 5, 1]
    assert [token for part in parts for token in part] == ids


def test_filters_reach_postgresql_and_mean_the_same(source, caches):
    ids = write("one", caches, 6, "c") + write("two", caches, 6, "it's \\ odd")
    facts = source()
    found = facts.where(
        f"token > {ids[3]} AND writer = 'two' AND cache_name IN ('it\\'s \\\\ odd', 'x') AND keys IS NOT NULL"
    )
    assert sorted(row["token"] for row in found.collect()) == ids[6:]
    plan = found._jdf.queryExecution().executedPlan().toString()
    assert "Filter (" not in plan, plan
    assert facts.where("fact_table = 'other' OR token = 0").count() == 0
    assert facts.where("received_at_ms > 0").count() == 12


def test_columns_that_are_asked_for_are_the_only_ones(spark, caches):
    ids = write("one", caches, 3)
    register(spark)
    facts = (
        spark.read.format("replsite")
        .options(dsn=dsn(), stream="caches")
        .schema("keys array<string>, token bigint")
        .load()
    )
    assert [tuple(row) for row in facts.collect()] == [([str(n)], token) for n, token in enumerate(ids)]


def test_an_empty_stream_is_empty(source):
    assert source().count() == 0


def test_a_stream_in_memory_that_began_anew_is_read_from_its_beginning(source, rows, tmp_path):
    def live(generation, upto):
        rows("DELETE FROM streams_typing RETURNING 1")
        rows("DELETE FROM streams_streamposition RETURNING 1")
        rows(
            "INSERT INTO streams_streamposition (stream, instance_name, position, generation) "
            "VALUES ('typing', 'w', %s, %s) RETURNING 1",
            upto,
            generation,
        )
        rows(
            "SET LOCAL streams.maintenance = on; "
            "INSERT INTO streams_typing (stream_id, instance_name, room_id, user_ids) "
            "SELECT n, 'w', '!r', '{}' FROM generate_series(1, %s) n RETURNING 1",
            upto,
        )

    frame = source("typing", streaming=True)
    live(1, 9)
    assert collect_batches(frame, tmp_path / "c") == [list(range(1, 10))]
    live(2, 4)
    assert collect_batches(frame, tmp_path / "c") == [[1, 2, 3, 4]]


def test_a_fact_of_more_rows_than_a_batch_may_have_comes_as_a_whole(source, rows, tmp_path):
    give_out(3, "to_device")
    rows(
        "INSERT INTO streams_streamposition (stream, instance_name, position) VALUES ('to_device', 'w', 3) RETURNING 1"
    )
    rows(
        "SET LOCAL streams.maintenance = on; "
        "INSERT INTO streams_todevicemessage (stream_id, instance_name, entity) "
        "SELECT 2 + n / 5, 'w', '@u' || n FROM generate_series(0, 9) n RETURNING 1"
    )
    frame = source("to_device", streaming=True, maxRows=3)
    assert collect_batches(frame, tmp_path / "c") == [[2] * 5, [3] * 5]


def test_facts_that_spark_writes_are_appended_and_read_again(source, caches, spark):
    write("one", caches, 3)
    copied = source().where("token > 0").select("cache_name", "keys").repartition(2)
    save = copied.write.format("replsite").options(dsn=dsn(), stream="caches", writeId="copy").mode("append").save
    save()
    save()  # as after a failure of which nobody knows what it left
    store_positions()
    found = source().groupBy("writer").count().collect()
    assert {row["writer"]: row["count"] for row in found} == {"one": 3, "spark": 3}


def test_a_write_of_which_a_task_fails_appends_nothing(source, caches, spark):
    bad = spark.range(10).selectExpr("if(id = 7, null, 'c') AS cache_name", "array('k') AS keys").repartition(2)
    with pytest.raises(Exception, match="column cache_name must not be null"):
        bad.write.format("replsite").options(dsn=dsn(), stream="caches").mode("append").save()
    assert CacheInvalidation.objects.count() == 0
