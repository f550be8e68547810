"""Spark reads every stream of the catalog, with the columns that its declaration names, at once and in micro-batches."""

from __future__ import annotations

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pipeline.source.data_source import ReplsiteSource, register
from pipeline.source.stream_schemas import fact_columns
from streams import registry
from streams.db.driver import dsn
from streams.load_generator import generator
from tests.support.writing import as_instance, store_positions

pytestmark = [pytest.mark.django_db(transaction=True)]
WRITERS = ["one", "two", "three"]
STREAMS = sorted(stream.name for stream in registry.all_streams() if "/" not in stream.name)


def test_every_stream_can_be_read(spark):
    register(spark)
    streams = [stream for stream in registry.all_streams() if "/" not in stream.name]
    ids = {stream.name: generator(stream.name, 0).append(3) for stream in streams}
    store_positions()
    for stream in streams:
        facts = spark.read.format("replsite").options(dsn=dsn(), stream=stream.name).load()
        found = facts.orderBy("token").collect()
        tokens = {row["token"] for row in found}
        assert tokens >= set(ids[stream.name]), stream.name
        assert (
            tokens == set(ids[stream.name]) or stream.name == "caches"
        )  # events that set state invalidate cached values
        assert set(fact_columns(stream.declaration)) <= set(facts.columns)
        assert {row["fact_table"] for row in found} == {table.name for table in stream.declaration.tables}


def append(stream, writer, count):
    """Facts of a writer that stays in the vector."""
    with as_instance(writer):
        ids = generator(stream, WRITERS.index(writer)).append(
            count
        )  # of its own users: of some only the newest fact stays
    store_positions()
    return ids


def batches(reader, start, limit):
    """(tokens of a micro-batch, its end) until nothing is left: as Spark asks in a run of ``availableNow``, but without it."""
    reader.prepareForTriggerAvailableNow()
    while (end := reader.latestOffset(start, limit)) != start:
        parts = reader.partitions(start, end)
        rows = [row for part in parts for batch in reader.read(part) for row in batch.column("token").to_pylist()]
        yield rows, end
        start = end


@pytest.fixture
def follow(monkeypatch):
    """``follow(stream, …)``: its streaming reader. What it keeps for the next task is closed."""
    readers = []

    def begin(stream, **options):
        source = ReplsiteSource({"dsn": dsn(), "stream": stream, **options})
        readers.append(source.streamReader(source.schema()))
        return readers[-1]

    monkeypatch.setattr("pipeline.source.read_rows._kept", kept := [])
    yield begin
    for reader in readers:
        reader.stop()
    for _, connection in kept:
        connection.close()


@pytest.mark.parametrize("view", ["writer", "linear"])
@pytest.mark.parametrize("stream", STREAMS)
def test_every_stream_is_followed_in_bounded_batches_to_where_it_is(follow, stream, view):
    ids = append(stream, "one", 3) + append(stream, "two", 3)
    reader = follow(stream, view=view, rowsPerPartition=1)
    found = list(batches(reader, reader.initialOffset(), ReadMaxRows(2)))
    tokens = [token for rows, _ in found for token in rows]
    assert sorted(set(tokens)) == ids and tokens == sorted(tokens)
    assert all(len(set(rows)) == 1 for rows, _ in found if len(rows) > 2)
    assert len(found) > 1 and found[-1][1] == reader.reportLatestOffset()
    later = append(stream, "three", 2)  # joins between two runs
    assert sorted({token for rows, _ in batches(reader, found[-1][1], ReadAllAvailable()) for token in rows}) == later
