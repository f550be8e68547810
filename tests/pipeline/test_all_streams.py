"""Spark reads every stream of the catalog, with the columns that its declaration names."""

from __future__ import annotations

import pytest

from pipeline.schemas import fact_columns
from pipeline.source import register
from streams import registry, writers
from streams.database import dsn
from streams.load import generator

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("own_writer")]


def test_every_stream_can_be_read(spark):
    register(spark)
    streams = [stream for stream in registry.all_streams() if "/" not in stream.name]
    ids = {stream.name: generator(stream.name, 0).append(3) for stream in streams}
    assert writers.current_writer().retire(20.0)
    for stream in streams:
        facts = spark.read.format("replsite").options(dsn=dsn(), stream=stream.name).load()
        found = facts.orderBy("token").collect()
        assert sorted({row["token"] for row in found}) == ids[stream.name], stream.name
        assert set(fact_columns(stream.declaration)) <= set(facts.columns)
        assert {row["fact_table"] for row in found} == {table.name for table in stream.declaration.tables}
