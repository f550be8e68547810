"""The Spark source as Spark meets it before it reads anything."""

from __future__ import annotations

import pytest

from pipeline.source.data_source import ReplsiteSource, _beyond


@pytest.mark.parametrize(("options", "said"), [({}, "dsn and stream"), ({"dsn": "x"}, "option stream")])
def test_missing_options_are_named(options, said):
    with pytest.raises(ValueError, match=said):
        ReplsiteSource(options).schema()


def test_an_unknown_stream_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="'nonsense'; known streams: events, backfill, presence"):
        ReplsiteSource({"dsn": "x", "stream": "nonsense"}).schema()


def test_a_column_that_the_stream_has_not_is_refused_with_those_it_has():
    from pyspark.sql.types import IntegerType, StructField, StructType

    schema = StructType([StructField("token", IntegerType())])
    with pytest.raises(ValueError, match=r"no column token int; it has .*token bigint, writer string"):
        ReplsiteSource({"dsn": "x", "stream": "caches"}).reader(schema)


def test_a_batch_ends_below_the_first_row_that_is_too_much():
    assert _beyond([(1, 10), (5, 14), (11, 20)], 10) == 20


def test_a_batch_that_the_limit_does_not_reach_ends_at_its_target():
    assert _beyond([(1, 10), (5, 14)], 10) is None
    assert _beyond([(1, 10)], None) is None


def test_a_fact_of_more_rows_than_a_batch_may_have_goes_alone():
    assert _beyond([(1, 10), (3, 10)], 2) == 11
