"""The Spark source ``replsite`` against real tables: complete facts only, each exactly once."""

from __future__ import annotations

import json

import pytest

from pipeline.source import register
from streams import registry
from streams.database import dsn
from streams.models import CacheInvalidation, Reader

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("own_writer")]


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
    from streams import writers

    writers.retire_all()
    writers.use_instance(as_writer)
    ids = append(stream, count, name)
    assert writers.current_writer().name == as_writer
    writers.retire_all()
    return ids


def test_the_batch_reader_gives_every_complete_fact(source, caches):
    ids = write("one", caches, 30)
    rows = source().orderBy("token").collect()
    assert [row["token"] for row in rows] == ids
    assert (rows[3]["writer"], rows[3]["cache_name"], rows[3]["keys"]) == ("one", "c", ["3"])


def test_facts_above_the_stored_position_are_not_read(source, caches, rows):
    write("one", caches, 5)
    rows("UPDATE streams_streamposition SET position = position - 2 RETURNING 1")
    assert source().count() == 3


def test_a_stream_of_two_tables_comes_with_both(source, rows):
    rows("INSERT INTO streams_streamposition (stream, instance_name, position) VALUES ('events', 'w', 9) RETURNING 1")
    rows(
        "INSERT INTO events_event (stream_ordering, instance_name, event_id, room_id, type, sender, topological_ordering, "
        "origin_server_ts) VALUES (5, 'w', '$e', '!r', 't', '@u', 1, 1) RETURNING 1"
    )
    rows(
        "INSERT INTO events_currentstatedelta (stream_ordering, instance_name, room_id, type, state_key, event_id) "
        "VALUES (5, 'w', '!r', 't', '', '$e') RETURNING 1"
    )
    found = {row["fact_table"]: row["event_id"] for row in source("events").collect()}
    assert found == {"events_event": "$e", "events_currentstatedelta": "$e"}


def test_backward_tokens_are_positive(source, rows):
    rows(
        "INSERT INTO streams_streamposition (stream, instance_name, position) VALUES ('backfill', 'w', -9) RETURNING 1"
    )
    rows(
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


def test_parquet_through_a_checkpoint_holds_every_fact_once(source, caches, spark, tmp_path):
    ids = []
    for writer in ("one", "two", "one"):
        ids += write(writer, caches, 12)
        sink = source(streaming=True, maxRows=7).writeStream.format("parquet")
        query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query.start(str(tmp_path / "out")).awaitTermination(120)
    stored = spark.read.parquet(str(tmp_path / "out"))
    assert sorted(row["token"] for row in stored.collect()) == sorted(ids)
