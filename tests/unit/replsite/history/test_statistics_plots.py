"""Rows of statistics as points: zeros where nothing came in, gaps where nothing is known."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from replsite.history.plots import described, plot_json
from replsite.history.statistics_plots import GROUPS, PERIODS, Group, Series, Steps, begin_of_step, plots_of

NOW = datetime(2026, 5, 10, 15, 20, tzinfo=UTC)
TODAY = datetime(2026, 5, 10, tzinfo=UTC)
COUNTS = Group("counts", (Series("events", "Events"),), are_counts=True)
FIGURES = Group("figures", (Series("rooms", "Rooms"),))


def drawn(group, *rows, step=86_400):
    begin = TODAY - timedelta(days=90)
    return {plot.title: plot for plot in plots_of(group, Steps(step, rows), begin, NOW)}


def lines(plot):
    """Number of points of each line."""
    found = [[]]
    for value in plot_json(plot)["values"]:
        found[-1].append(value) if value is not None else found.append([])
    return [len(line) for line in found if line]


def test_a_day_without_a_row_is_a_zero_and_the_present_one_is_there():
    plot = drawn(COUNTS, (TODAY - timedelta(days=5), {"events": 7}))["Events per day"]
    assert lines(plot) == [6]
    assert described(plot) == "Last 0; at most 7, at 2026-05-05 00:00 UTC."


def test_hours_are_named_so():
    plot = drawn(COUNTS, (TODAY, {"events": 7}), step=3_600)["Events per hour"]
    assert lines(plot) == [16]


def test_a_figure_that_was_not_taken_breaks_the_line():
    days = (9, 8, 4, 0)
    rows = [(TODAY - timedelta(days=age), {"rooms": age + 1}) for age in days]
    rows.insert(2, (TODAY - timedelta(days=7), {"rooms": None}))
    assert lines(drawn(FIGURES, *rows)["Rooms"]) == [2, 1, 1]


@pytest.mark.parametrize("group", [COUNTS, FIGURES])
def test_without_rows_nothing_was_recorded(group):
    (plot,) = drawn(group).values()
    assert "Nothing was recorded" in described(plot) and not lines(plot)


def test_a_row_of_the_future_does_not_hang_the_page():
    assert lines(drawn(COUNTS, (TODAY + timedelta(days=9), {"events": 7}))["Events per day"]) == []


def test_sizes_are_said_as_sizes():
    (group,) = [group for group in GROUPS if any(series.column == "state_bytes" for series in group.series)]
    row = dict.fromkeys((series.column for series in group.series), 25_000_000)
    assert described(drawn(group, (TODAY, row))["Database on disk"]).startswith("Last 25 MB")


@pytest.mark.parametrize(("step", "begin"), [(3_600, NOW.replace(minute=0)), (86_400, TODAY)])
def test_steps_begin_at_the_hour_and_at_midnight_of_utc(step, begin):
    assert begin_of_step(NOW, step) == begin


def test_no_period_has_more_points_than_a_plot_has_room_for():
    assert all(period.days * 86_400 / period.step_seconds < 1_200 for period in PERIODS.values())
