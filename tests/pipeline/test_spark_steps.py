"""Ending a job that waits for Spark: its tasks end, others go on, and the session is as good as before."""

from __future__ import annotations

import threading
import time

import pytest

from pipeline.errors import SparkFailed
from pipeline.spark import cancellation as module
from pipeline.spark.cancellation import cancelled_steps
from pipeline.spark.run_tasks import run_tasks
from streams.jobs.errors import JobCancelled


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "_STEP_SECONDS", 0.1)


def work(spark, seconds: float) -> int:
    """A Spark job of one task that takes so long."""

    def sleep(batches):
        import time

        for batch in batches:
            time.sleep(seconds)
            yield batch

    return spark.range(0, 1, 1, 1).mapInArrow(sleep, "id bigint").count()


class Asked:
    """A step that is cancelled from its third call on."""

    calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls >= 3:
            raise JobCancelled("Cancelled by bob.")


def test_a_wish_to_end_ends_the_tasks_and_is_raised_in_place_of_sparks_error(spark):
    begun = time.monotonic()
    with pytest.raises(JobCancelled, match="bob"), cancelled_steps(Asked(), spark, "replsite job 1"):
        work(spark, 200.0)
    assert time.monotonic() - begun < 60
    assert work(spark, 0.0) == 1


def test_a_job_that_begins_after_the_wish_is_ended_as_well(spark):
    asked = Asked()
    with pytest.raises(JobCancelled), cancelled_steps(asked, spark, "replsite job 2"):
        while asked.calls < 3:
            time.sleep(0.05)
        work(spark, 200.0)


def test_a_wish_that_comes_at_the_end_is_heard_too(spark):
    asked = Asked()
    with pytest.raises(JobCancelled), cancelled_steps(asked, spark, "replsite job 3"):
        while asked.calls < 3:
            time.sleep(0.05)


def test_work_that_nobody_ends_is_left_alone(spark):
    with cancelled_steps(lambda: None, spark, "replsite job 4"):
        assert work(spark, 0.3) == 1
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None


def test_errors_of_the_work_stay_what_they_are(spark):
    with pytest.raises(ValueError, match="own"), cancelled_steps(lambda: None, spark, "replsite job 5"):
        raise ValueError("own")


def test_a_job_that_spark_gives_up_is_an_error_of_ours(spark):
    """As when its executors are lost again and again: Java's exception, which Python has no class for."""

    def sleep(number):
        import time

        time.sleep(200)
        return ""

    context = spark.sparkContext
    context.setJobGroup("given up", "", interruptOnCancel=True)
    over = threading.Event()

    def cancel():
        while not over.wait(0.2):
            context.cancelJobGroup("given up")

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        with pytest.raises(SparkFailed, match=r"could not finish: .*cancelled"):
            run_tasks(spark, 1, sleep)
    finally:
        over.set()
        thread.join()
        context.setLocalProperty("spark.jobGroup.id", None)
