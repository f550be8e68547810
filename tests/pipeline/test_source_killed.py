"""A query into Parquet that is killed in the middle of a batch, and goes on elsewhere: every fact is there once."""

from __future__ import annotations

import psycopg2
import pytest

from pipeline.source.data_source import register
from streams import registry
from streams.catalog.models import CacheInvalidation
from streams.db.driver import dsn
from tests.pipeline.killed_query import KilledQuery
from tests.pipeline.query_driver import facts_to_parquet
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import as_instance, store_positions

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    pytest.mark.scenario,
]


@pytest.fixture
def query(tmp_path):
    query = KilledQuery(dsn(), tmp_path)
    yield query
    query.kill()


def append(count):
    return registry.get("caches").append(*(CacheInvalidation(cache_name="c", keys=["k"]) for _ in range(count)))


def test_a_query_that_is_killed_in_a_batch_loses_and_doubles_nothing(query, spark):
    with as_instance("first"):
        ids = append(25)
    store_positions()
    query.start()
    wait_until(lambda: len(query.numbers("commits")) >= 3, 4 * DEADLINE_SECONDS)
    with psycopg2.connect(dsn()) as blocking, blocking.cursor() as cursor:
        cursor.execute("LOCK TABLE streams_lowwatermark")  # executors look at it when they have read their rows
        ids += append(25)
        store_positions()
        wait_until(query.is_in_a_batch, 4 * DEADLINE_SECONDS)
        query.kill()
    blocking.close()
    with as_instance("joined"):
        ids += append(25)
    store_positions()
    register(spark)
    facts_to_parquet(spark, dsn(), query.folder).trigger(availableNow=True).start().awaitTermination(240)
    stored = spark.read.parquet(str(query.folder / "facts"))
    assert sorted(row["token"] for row in stored.collect()) == ids
