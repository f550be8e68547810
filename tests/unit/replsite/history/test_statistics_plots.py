"""Rows of statistics as points: zeros where nothing came in, gaps where nothing is known."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from replsite.history.statistics_plots import GROUPS, PERIODS, Group, Series, Steps, begin_of_step, pictures

NOW = datetime(2026, 5, 10, 15, 20, tzinfo=UTC)
TODAY = datetime(2026, 5, 10, tzinfo=UTC)
COUNTS = Group("counts", (Series("events", "Events"),), are_counts=True)
FIGURES = Group("figures", (Series("rooms", "Rooms"),))


def drawn(group, *rows, step=86_400):
    begin = TODAY - timedelta(days=90)
    return dict(pictures(group, Steps(step, rows), begin, NOW))


def lines(svg):
    """Number of points of each line; a line of one point is drawn with two."""
    return [len(points.split()) for points in re.findall(r'points="([^"]*)"', svg)]


def test_a_day_without_a_row_is_a_zero_and_the_present_one_is_there():
    svg = drawn(COUNTS, (TODAY - timedelta(days=5), {"events": 7}))["Events per day"]
    assert lines(svg) == [6]
    assert "Now 0; at most 7, at 2026-05-05 00:00 UTC." in svg


def test_hours_are_named_so():
    svg = drawn(COUNTS, (TODAY, {"events": 7}), step=3_600)["Events per hour"]
    assert lines(svg) == [16]


def test_a_figure_that_was_not_taken_breaks_the_line():
    days = (9, 8, 4, 0)
    rows = [(TODAY - timedelta(days=age), {"rooms": age + 1}) for age in days]
    rows.insert(2, (TODAY - timedelta(days=7), {"rooms": None}))
    assert lines(drawn(FIGURES, *rows)["Rooms"]) == [2, 2, 2]


@pytest.mark.parametrize("group", [COUNTS, FIGURES])
def test_without_rows_nothing_was_recorded(group):
    (svg,) = drawn(group).values()
    assert "Nothing was recorded" in svg and not lines(svg)


def test_a_row_of_the_future_does_not_hang_the_page():
    svg = drawn(COUNTS, (TODAY + timedelta(days=9), {"events": 7}))["Events per day"]
    assert len(lines(svg)) == 1


def test_sizes_are_said_as_sizes():
    (group,) = [group for group in GROUPS if any(series.column == "state_bytes" for series in group.series)]
    row = dict.fromkeys((series.column for series in group.series), 25_000_000)
    assert "Now 25 MB" in drawn(group, (TODAY, row))["Database on disk"]


@pytest.mark.parametrize(("step", "begin"), [(3_600, NOW.replace(minute=0)), (86_400, TODAY)])
def test_steps_begin_at_the_hour_and_at_midnight_of_utc(step, begin):
    assert begin_of_step(NOW, step) == begin


def test_no_period_has_more_points_than_a_plot_has_room_for():
    assert all(period.days * 86_400 / period.step_seconds < 1_200 for period in PERIODS.values())
