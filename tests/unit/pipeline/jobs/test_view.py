"""Figures of jobs, side by side."""

from __future__ import annotations

from pipeline.jobs.view import Figure, figures_of, spark_words


def test_numbers_tell_their_change():
    assert figures_of({"rows": 1200, "same": 3}, {"rows": 200, "same": 3}) == [
        Figure("rows", "1,200", "200", "-1,000"),
        Figure("same", "3", "3", "0"),
    ]


def test_what_is_there_once_stands_alone():
    assert figures_of({"old": 1}, {"new": 2}) == [Figure("old", "1", "", ""), Figure("new", "", "2", "")]
    assert figures_of(None, None) == []


def test_other_values_are_shown_as_they_are():
    assert figures_of({"well": True, "cut": "$a"}, {"well": False, "cut": {"x": [1]}}) == [
        Figure("well", "true", "false", ""),
        Figure("cut", "$a", '{"x": [1]}', ""),
    ]


def test_what_is_long_or_not_printable_is_bounded():
    (figure,) = figures_of({"a\x1b[31m": "x" * 1000}, None)
    assert "\x1b" not in figure.name
    assert len(figure.before) == 201
    assert len(figures_of({str(n): n for n in range(1000)}, None)) == 200


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
