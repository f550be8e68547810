"""The Spark source on a trimmed stream, without Spark: it begins above the mark, and never passes over a hole in silence."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition

from pipeline.source.data_source import ReplsiteSource
from pipeline.source.offsets import Bound, PartitionRange
from streams.db import driver
from streams.errors import ResyncNeeded
from streams.maintenance.trim import Keep, TrimRequest, trim
from tests.support.writing import append, session, stream, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)


def source(**options: str) -> ReplsiteSource:
    return ReplsiteSource({"dsn": driver.dsn(), "stream": "caches", **options})


def piece(after: int, upto: int) -> InputPartition:
    return InputPartition(PartitionRange((Bound(("master",), after, upto),)))


def tokens(reader: Any, partition: InputPartition) -> list[int]:
    return [token for batch in reader.read(partition) for token in batch.column("token").to_pylist()]


@pytest.fixture
def facts() -> list[int]:
    """Facts of which the first four were trimmed."""
    wanted = append(6)
    wait_for_linear(wanted[-1])
    with session() as cursor:
        list(trim(cursor, TrimRequest(stream(), Keep(facts=2), settle_seconds=0)))
    return wanted


def test_a_query_without_checkpoint_begins_above_the_mark(facts):
    reader: Any = source().streamReader(source().schema())
    try:
        start = reader.initialOffset()
        assert start["master"] == facts[3]
        (partition,) = reader.partitions(start, {"master": facts[-1]})
        assert tokens(reader, partition) == facts[4:]
    finally:
        reader.stop()


def test_a_query_below_the_mark_fails_by_name(facts):
    with pytest.raises(ResyncNeeded, match=f"its facts up to {facts[3]} were trimmed"):
        tokens(source().streamReader(source().schema()), piece(facts[1], facts[-1]))


def test_a_query_at_the_mark_goes_on(facts):
    assert tokens(source().streamReader(source().schema()), piece(facts[3], facts[-1])) == facts[4:]


def test_a_batch_reads_what_is_there(facts):
    assert tokens(source().reader(source().schema()), piece(0, facts[-1])) == facts[4:]
