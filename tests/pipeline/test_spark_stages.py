"""Spark's stages as a job sees them: names on Spark's page, progress that never falls, figures in the summary."""

from __future__ import annotations

import io

import pytest

from pipeline.models import Job
from pipeline.spark.job_steps import spark_steps, spark_words
from pipeline.spark.run_tasks import run_tasks
from pipeline.spark.stages import FinishedTasks
from streams.jobs.folders import any_folder
from streams.jobs.run import run_job
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("spark")


def shuffled(spark, rows):
    """A Spark job with a shuffle: the sums of two groups."""
    numbers = spark.range(0, rows, 1, 3)
    return numbers.selectExpr("id % 2 AS odd", "id").repartition(4, "odd").groupBy("odd").sum("id").collect()


def test_tasks_of_ended_stages_count_and_those_of_earlier_jobs_do_not(spark):
    context = spark.sparkContext
    context.setJobGroup("stages", "stages")
    try:
        run_tasks(spark, 2, str)
        finished = FinishedTasks(spark)
        seen = [finished()]
        for _ in range(3):
            run_tasks(spark, 2, str)
            seen.append(finished())
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
    assert seen == sorted(seen) and seen[0] == 0
    # Spark counts a task some moments after it has ended.
    wait_until(lambda: finished() >= 6, what="all tasks to be counted")
    assert finished() == 6


@pytest.mark.django_db(transaction=True)
def test_stages_of_a_job_have_its_names_in_spark_and_figures_in_its_summary(spark):
    descriptions = []
    property_of_thread = lambda: spark.sparkContext.getLocalProperty("spark.job.description")  # noqa: E731

    def work(run):
        with spark_steps(run, spark):
            with run.stage("first", None, "tasks"):
                descriptions.append(property_of_thread())
                run_tasks(spark, 3, str)
            with run.watch("second", None, "tasks", FinishedTasks(spark)):
                descriptions.append(property_of_thread())
                assert len(shuffled(spark, 1_000)) == 2
            descriptions.append(property_of_thread())
        descriptions.append(property_of_thread())
        return {"rows": 1_000}

    with any_folder():
        told = run_job("import_events", {"sources": ["x"]}, stream=io.StringIO(), work=work)
    job = Job.objects.get()
    title = f"replsite job {job.pk}, import_events"
    assert descriptions == [f"{title}: first", f"{title}: second", title, None]
    assert told == {"rows": 1_000}
    first, second = job.summary["spark"]
    assert (first["name"], first["stages"], first["tasks"], first["failed"]) == ("first", 1, 3, 0)
    assert second["name"] == "second" and second["stages"] >= 2 and second["tasks"] >= 4
    assert second["records"] >= 1_000 and second["shuffled_bytes"] > 0 and second["spilled_bytes"] == 0
    words = spark_words(job.summary)
    assert words[0].startswith("first: 3 tasks") and "shuffled" in words[1]
