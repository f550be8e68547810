"""Figures of Spark's stages, in words."""

from __future__ import annotations

from pipeline.spark.job_steps import spark_words


def test_stages_of_spark_are_told_in_words():
    stage = {"name": "rooms", "stages": 2, "tasks": 12, "failed": 1, "records": 2000, "skew": 3.2}
    stage |= {"shuffled_bytes": 3 * 1024 * 1024, "spilled_bytes": 2048}
    assert spark_words({"spark": [stage, {"name": "scan", "tasks": 1, "skew": None}]}) == [
        "rooms: 12 tasks, 1 failed and were repeated, 2,000 records read, 3.1 MB shuffled, 2.0 kB spilled to disk, "
        "the longest task took 3.2 times the median",
        "scan: 1 task",
    ]


def test_a_summary_of_another_service_may_be_anything():
    for summary in (None, [1], {"spark": "all"}, {"spark": [1, None]}, {}):
        assert spark_words(summary) == []
    assert spark_words({"spark": [{"tasks": "many", "skew": "\x1b[31m"}]}) == [": 0 tasks"]
