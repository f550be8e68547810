"""A query of the live pipeline: what its sources share, and what not."""

from __future__ import annotations

import pytest

from pipeline.live.query import LiveQuery, Place
from pipeline.live.statistics_table import StatisticsTable
from streams.db.driver import dsn

pytestmark = pytest.mark.django_db(transaction=True)


def shared_map(spark, facts) -> int:
    """Identity of the map that Spark's threads write into while they plan and run what reads these facts."""
    provider = facts._jdf.queryExecution().logical().collectLeaves().head().source().get()
    of_class = spark.sparkContext._gateway.new_array(spark._jvm.Class, 0)
    method = provider.getClass().getDeclaredMethod("source", of_class)
    method.setAccessible(True)
    registered = method.invoke(provider, spark.sparkContext._gateway.new_array(spark._jvm.Object, 0))
    return spark._jvm.System.identityHashCode(registered.dataSourceCls().envVars())


def test_every_source_has_a_registration_of_its_own(spark, tmp_path):
    """Queries that begin at once spoiled a shared one, and every task failed from then on."""
    place = Place(dsn(), "default", tmp_path)
    queries = [LiveQuery(StatisticsTable("default"), place), LiveQuery(StatisticsTable("default"), place)]
    maps = [shared_map(spark, query._facts(spark, stream)) for query in queries for stream in query.table.streams]
    assert len(maps) > 2 and len(set(maps)) == len(maps)
