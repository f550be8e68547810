"""Plots as JSON and in words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from replsite.history.plots import Frame, Mark, plot, rates, with_plots

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
GAP = timedelta(seconds=30)
FRAME = Frame(NOW - timedelta(hours=1), NOW, GAP)


def at(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def lag(*points, **more):
    return plot("Lag", points, FRAME, **more)


def test_growth_is_told_per_second():
    assert rates([(at(30), 100), (at(15), 130), (at(0), 130)], GAP) == [(at(15), 2.0), (at(0), 0.0)]


def test_a_gap_and_a_position_that_went_back_are_no_growth():
    assert [value for _, value in rates([(at(900), 0), (at(15), 9_000), (at(0), 10)], GAP)] == [0.0]


def test_a_line_breaks_where_nothing_was_recorded():
    made = lag((at(900), 1), (at(885), 2), (at(15), 3), (at(0), 1))
    assert made["values"] == [1, 2, None, 3, 1]
    assert made["at"] == [at(s).timestamp() for s in (900, 885, 450, 15, 0)]


def test_points_outside_of_the_time_are_left_out():
    assert lag((at(3_700), 9), (at(0), 1), (at(-60), 9))["values"] == [1]


def test_the_words_say_what_the_plot_shows():
    assert lag((at(15), 40), (at(0), 3))["said"] == "Last 3; at most 40, at 2026-11-21 11:59 UTC."
    assert lag()["said"] == "Nothing was recorded in this time."


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [("whole", 1_234.0, "1,234"), ("whole", 0.5, "0.5"), ("rate", 0.25, "0.2/s"), ("size", 25_000_000.0, "25 MB"),
     ("age", 5_400.0, "1 h 30 min")],
)  # fmt: skip
def test_values_are_said_in_their_unit(unit, value, text):
    assert lag((at(0), value), unit=unit)["said"].startswith(f"Last {text};")


def test_marks_within_the_time_are_kept_and_an_outage_counts_as_long_as_it_lasts():
    marks = (
        Mark(at(60), "wrong", "w became stuck"),
        Mark(at(7_200), "fine", "long ago"),
        Mark(at(7_200), "wrong", "database away", until=at(3_000)),
    )
    made = lag((at(15), 1), marks=marks)
    assert [(mark["text"], mark["until"]) for mark in made["marks"]] == [
        ("w became stuck", None),
        ("database away", at(3_000).timestamp()),
    ]


def test_sections_name_their_plots_by_number():
    made = with_plots([("mailer", [lag(about="mailer")]), ("", iter([plot("Position", (), FRAME)]))])
    assert [[(number, p["title"]) for number, p in section["plots"]] for section in made["sections"]] == [
        [(0, "Lag of mailer")],
        [(1, "Position")],
    ]
    assert [p["heading"] for p in made["plots"]] == ["Lag", "Position"]
