"""A query into Parquet that is killed: it goes on elsewhere with every fact once, and until then the site tells of it."""

from __future__ import annotations

import psycopg2
import pytest
from django.core.management import call_command

from pipeline.source.data_source import register
from streams import registry
from streams.catalog.models import CacheInvalidation
from streams.db.driver import dsn
from streams.maintenance.trim import Keep, TrimRequest, plan_trim
from streams.models import Reader
from tests.pipeline.killed_query import KilledQuery
from tests.pipeline.query_driver import READER, facts_to_parquet
from tests.support.silent_queries import assert_told_everywhere, silent
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import as_instance, session, store_positions

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


def trimmable_upto() -> int:
    with session() as cursor:
        return plan_trim(cursor, TrimRequest(registry.get("caches"), Keep(facts=0))).limit


def test_one_that_was_killed_is_told_and_holds_trimming_until_it_is_forgotten(query, spark, admin_client):
    with as_instance("one"):
        ids = append(25)
        store_positions()
        query.start()
        wait_until(
            lambda: Reader.objects.filter(name=READER, positions__caches__one=ids[-1]).exists(), 4 * DEADLINE_SECONDS
        )
        query.kill()
        ids += append(300)
    store_positions()
    found = silent(READER)
    assert found.lag_facts == 300
    assert "No sign of life" in found.status.sentence and f"streams forget '{READER}'" in found.status.sentence
    assert_told_everywhere(READER, admin_client)
    assert trimmable_upto() == ids[24]
    register(spark)
    facts_to_parquet(spark, dsn(), query.folder, 400).trigger(availableNow=True).start().awaitTermination(240)
    stored = spark.read.parquet(str(query.folder / "facts"))
    assert sorted(row["token"] for row in stored.collect()) == ids
    assert Reader.objects.get(name=READER).positions["caches"]["one"] == ids[-1]
    with as_instance("one"):
        ids += append(5)
    store_positions()
    silent(READER)
    assert trimmable_upto() == ids[-6]
    call_command("streams", "forget", READER, "--yes")
    assert trimmable_upto() == ids[-1]
