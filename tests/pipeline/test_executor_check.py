"""Executors that cannot do our work are told before a job begins it: no database, no code, no cores."""

from __future__ import annotations

import socket
import threading

import pytest

from pipeline.errors import ClusterUnfit
from pipeline.spark import cluster_check
from pipeline.spark.cluster_check import check_executors
from streams.db.driver import dsn
from tests.support.waiting import DEADLINE_SECONDS, wait_until

pytestmark = pytest.mark.django_db


@pytest.mark.scenario
def test_executors_with_everything_are_fit(spark):
    check_executors(spark, dsn(), 60.0)


def test_a_database_that_executors_cannot_reach_is_told_with_their_host(spark):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        away = f"host=127.0.0.1 port={probe.getsockname()[1]} dbname=x password=hidden"
        with pytest.raises(ClusterUnfit, match=rf"{socket.gethostname()}: .*refused.*reach the database") as told:
            check_executors(spark, away, 60.0)
    assert "hidden" not in str(told.value)


def test_executors_whose_python_lacks_a_package_are_told_with_its_name(spark, monkeypatch):
    def lacking(dsn):
        def each(batches):
            import pyarrow

            for batch in batches:
                missing = ['{"orjson": "No module named \'orjson\'"}'] * batch.num_rows
                yield pyarrow.RecordBatch.from_pydict({"host": ["node7"] * batch.num_rows, "missing": missing})

        return each

    monkeypatch.setattr(cluster_check, "_answers", lacking)
    with pytest.raises(ClusterUnfit, match=r"1 of the hosts .* node7: No module named 'orjson'.*requirements\.txt"):
        check_executors(spark, "", 60.0)


def test_code_that_does_not_run_is_told_in_one_line(spark, monkeypatch):
    def broken(dsn):
        def each(batches):
            import no_such_module

            yield from no_such_module.each(batches)

        return each

    monkeypatch.setattr(cluster_check, "_answers", broken)
    with pytest.raises(
        ClusterUnfit, match="cannot run our code: ModuleNotFoundError: No module named 'no_such_module'"
    ):
        check_executors(spark, "", 60.0)


def test_a_cluster_without_free_cores_is_given_up_in_time(spark, tmp_path):
    cores, busy, free = spark.sparkContext.defaultParallelism, tmp_path / "busy", tmp_path / "free"
    busy.mkdir()

    def occupy(batches):
        import time

        for batch in batches:
            for number in batch.column(0).to_pylist():
                (busy / str(number)).touch()
            while not free.exists():
                time.sleep(0.05)
            yield batch

    count = spark.range(0, cores, 1, cores).mapInArrow(occupy, "id bigint").count
    thread = threading.Thread(target=count)
    thread.start()
    try:
        wait_until(lambda: len(list(busy.iterdir())) == cores)
        with pytest.raises(ClusterUnfit, match=r"No executor .* took a task for 1 s.*spark\.cores\.max"):
            check_executors(spark, "", 1.0)
    finally:
        free.touch()
        thread.join(DEADLINE_SECONDS)
    check_executors(spark, "", 60.0)
