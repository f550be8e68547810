"""Spark reads the streams of a recorded foreign server like our own."""

from __future__ import annotations

import json

import pytest

from pipeline.source.data_source import register
from streams.db.driver import dsn
from streams.replication.protocol.cursors import Reset
from streams.replication.protocol.ordering import FollowedRow
from streams.replication.recording.recorder import Batch, Recorder

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.spark]


@pytest.fixture
def record():
    recorder = Recorder("main", "foreign.example", "tcp://there", "default")
    recorder.open()
    yield recorder
    recorder.close()


@pytest.fixture
def source(spark):
    register(spark)

    def load(stream: str = "main/events", streaming: bool = False, **options):
        reader = spark.readStream if streaming else spark.read
        return reader.format("replsite").options(dsn=dsn(), stream=stream, **options).load()

    return load


def facts(writer: str, *tokens: int, stream: str = "events") -> list[FollowedRow]:
    return [FollowedRow(stream, writer, token, ["ev", [token]]) for token in tokens]


def test_rows_of_all_writers_and_lives(record, source):
    record.store(Batch(rows=[*facts("master", 2, 5, 5), *facts("worker", 4)]))
    record.store(Batch(rows=facts("master", 3, stream="typing")))
    record.store(Batch(resets=[Reset("typing", "master", 0)], rows=facts("master", 1, stream="typing")))
    rows = source().orderBy("token", "writer").collect()
    assert [(row["writer"], row["token"]) for row in rows] == [
        ("master", 2),
        ("worker", 4),
        ("master", 5),
        ("master", 5),
    ]
    assert json.loads(rows[0]["row"]) == ["ev", [2]]
    typing = source("main/typing").collect()
    assert {(row["writer"], row["token"]) for row in typing} == {("master", 3), ("master~2", 1)}


def test_micro_batches_go_on_where_the_last_one_ended(record, source, spark, tmp_path):
    def run() -> None:
        query = (
            source(streaming=True, maxRows="2")
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    record.store(Batch(rows=[*facts("master", 2, 5, 6, 9), *facts("worker", 4)]))
    run()
    record.store(Batch(rows=facts("worker", 10, 11)))
    run()
    found = [row["token"] for row in spark.read.parquet(str(tmp_path / "out")).orderBy("token").collect()]
    assert found == [2, 4, 5, 6, 9, 10, 11]


@pytest.mark.parametrize("stream", ["main/", "/events", "ma'in/events", "main/ev'ents", "a/b/c"])
def test_names_that_cannot_be_recorded_are_refused(source, stream):
    with pytest.raises(Exception, match="record"):
        source(stream).collect()
