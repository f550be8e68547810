"""Plots as SVG."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replsite.history.svg import HEIGHT, WIDTH, Mark, Plot, Point, nice_ceiling, plot_svg, rates

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
GAP = timedelta(seconds=30)


def at(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def plot(*points: Point, title: str = "Lag", hours: int = 1) -> Plot:
    return Plot(title, points, NOW - timedelta(hours=hours), NOW, GAP, lambda value: f"{value:g} facts")


def lines(svg: str) -> list[str]:
    return re.findall(r'<polyline[^>]* points="([^"]*)"', svg)


def test_growth_is_told_per_second():
    found = rates([Point(at(30), 100), Point(at(15), 130), Point(at(0), 130)], GAP)
    assert [(point.at, point.value) for point in found] == [(at(15), 2.0), (at(0), 0.0)]


def test_a_gap_and_a_position_that_went_back_are_no_growth():
    assert [p.value for p in rates([Point(at(900), 0), Point(at(15), 9_000), Point(at(0), 10)], GAP)] == [0.0]


def test_a_line_breaks_where_nothing_was_recorded():
    svg = plot_svg(plot(Point(at(900), 1), Point(at(885), 2), Point(at(15), 3), Point(at(0), 1)))
    assert len(lines(svg)) == 2


def test_the_picture_says_in_words_what_it_shows():
    svg = plot_svg(plot(Point(at(15), 40), Point(at(0), 3), title="Lag of <b>x</b>"))
    root = ElementTree.fromstring(svg)
    assert root.find("title").text == "Lag of <b>x</b>"
    assert root.find("desc").text == "Now 3 facts; at most 40 facts, at 2026-11-21 11:59 UTC."
    assert root.get("role") == "img"


def test_a_picture_of_nothing_says_so():
    svg = plot_svg(plot())
    assert "Nothing was recorded" in svg
    assert lines(svg) == []


def test_a_single_point_can_be_seen():
    assert len(lines(plot_svg(plot(Point(at(0), 3))))[0].split()) == 2


@pytest.mark.parametrize(("hours", "shown"), [(1, "11:00"), (24, "12:00"), (720, "22 Oct"), (26_304, "Nov 2023")])
def test_the_axis_tells_times_of_the_day_or_dates(hours, shown):
    assert shown in plot_svg(plot(hours=hours))


@given(st.floats(min_value=0, max_value=1e15))
def test_the_scale_is_round_and_high_enough(value):
    top = nice_ceiling(value)
    assert top >= value * (1 - 1e-9)
    assert top <= max(value * 2.6, 1.0)


@given(st.lists(st.floats(min_value=0, max_value=1e15), max_size=30))
def test_lines_stay_inside_of_the_picture(values):
    points = [Point(at(15 * (len(values) - place)), value) for place, value in enumerate(values)]
    for line in lines(plot_svg(plot(*points))):
        for x, y in (pair.split(",") for pair in line.split()):
            assert 0 <= float(x) <= WIDTH + 1
            assert 0 <= float(y) <= HEIGHT


def test_axis_may_begin_above_zero():
    svg = plot_svg(replace(plot(Point(at(15), 1_000_000), Point(at(0), 1_000_010)), low=1_000_000.0))
    assert "1e+06 facts" in svg
    (line,) = lines(svg)
    heights = [float(point.split(",")[1]) for point in line.split()]
    assert max(heights) - min(heights) > 0.9 * (HEIGHT - 32)


def test_marks_within_the_time_are_lines_that_tell_what_happened():
    marks = (Mark(at(60), "wrong", "<b> became stuck"), Mark(at(7_200), "fine", "long ago"))
    svg = plot_svg(replace(plot(Point(at(15), 1)), marks=marks))
    assert '<g class="plot-mark plot-wrong"><title>&lt;b&gt; became stuck</title>' in svg
    assert "long ago" not in svg
    ElementTree.fromstring(svg)
