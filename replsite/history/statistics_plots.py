"""Defines the plots of the statistics page (pure): their columns, their titles, and how rows become points.

A step is an hour or a day. A plot shows either a *count*, of what happened during each step, or a *figure*, as measured at
the end of each step. If a step has no row, nothing happened in it, so a count is 0. A figure of such a step is unknown, so
the line of the plot breaks there. Before the first row there are no points.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from replsite.history.plots import Plot, Point

__all__ = ["GROUPS", "PERIODS", "Group", "Period", "Series", "Steps", "begin_of_step", "plots_of"]

HOUR_SECONDS, DAY_SECONDS = 3_600, 86_400
#: The line of a plot breaks between points that are more than this number of steps apart.
_GAP_STEPS = 2.5


@dataclass(frozen=True, slots=True)
class Period:
    """A length of history that the page offers."""

    title: str
    step_seconds: int
    days: int

    @property
    def step(self) -> str:
        """The step in words: hour or day."""
        return "hour" if self.step_seconds == HOUR_SECONDS else "day"


PERIODS = {
    "week": Period("Last 7 days", HOUR_SECONDS, 7),
    "quarter": Period("Last 90 days", DAY_SECONDS, 90),
    "years": Period("Last 3 years", DAY_SECONDS, 3 * 366),
}


@dataclass(frozen=True, slots=True)
class Series:
    """A column of ``pipeline.models.ServerStatistics`` to plot."""

    column: str
    title: str
    unit: str = "whole"


@dataclass(frozen=True, slots=True)
class Group:
    """Plots with one heading. If ``are_counts``, each plot shows what happened during a step, else a value at its end.

    If ``of_days``, each plot has one point a day, even for a period whose step is an hour.
    """

    title: str
    series: tuple[Series, ...]
    are_counts: bool = False
    of_days: bool = False


GROUPS = (
    Group(
        "What came in",
        (
            Series("events", "Events"),
            Series("messages", "Messages"),
            Series("state_events", "State events"),
            Series("rejected", "Rejected events"),
            Series("history", "Events of history"),
        ),
        are_counts=True,
    ),
    Group(
        "Who was active",
        (
            Series("active_users", "Users that sent something"),
            Series("active_local_users", "Users of this server among them"),
            Series("active_rooms", "Rooms with new events"),
        ),
        are_counts=True,
        of_days=True,
    ),
    Group(
        "What is there",
        (
            Series("rooms", "Rooms"),
            Series("joined", "Members of all rooms"),
            Series("joined_local", "Members of this server"),
            Series("monthly_local_users", "Users of this server active in 30 days"),
            Series("state_entries", "Entries of the current state"),
            Series("state_groups", "State groups (estimated)"),
            Series("state_deltas", "Rows of state groups (estimated)"),
            Series("state_bytes", "State groups on disk", "size"),
            Series("event_bytes", "Events on disk", "size"),
            Series("database_bytes", "Database on disk", "size"),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Steps:
    """Stored statistics in steps of one length, an hour or a day. ``rows`` are sorted by time.

    Each of ``rows`` is (time at which the step begins, ``{column of ServerStatistics: value}``).
    """

    step_seconds: int
    rows: Sequence[tuple[datetime, Mapping[str, Any]]]


def begin_of_step(moment: datetime, step_seconds: int) -> datetime:
    """Returns the beginning of the hour or day (UTC) that contains the moment."""
    return moment - timedelta(seconds=moment.timestamp() % step_seconds)


def plots_of(group: Group, steps: Steps, begin: datetime, now: datetime) -> Iterator[Plot]:
    """Yields the plots of a group, from ``begin`` until ``now``."""
    word = "hour" if steps.step_seconds == HOUR_SECONDS else "day"
    gap = timedelta(seconds=steps.step_seconds * _GAP_STEPS)
    for series in group.series:
        points = _counts(series, steps, now) if group.are_counts else _figures(series, steps)
        title = f"{series.title} per {word}" if group.are_counts else series.title
        yield Plot(title, points, begin, now, gap, series.unit)


def _figures(series: Series, steps: Steps) -> list[Point]:
    return [Point(at, float(row[series.column])) for at, row in steps.rows if row[series.column] is not None]


def _counts(series: Series, steps: Steps, now: datetime) -> list[Point]:
    if not steps.rows:
        return []
    known = {at: float(row[series.column]) for at, row in steps.rows}
    first = steps.rows[0][0]
    number = max(0, int((now - first).total_seconds() // steps.step_seconds)) + 1
    moments = [first + timedelta(seconds=steps.step_seconds * n) for n in range(number)]
    return [Point(at, known.get(at, 0.0)) for at in moments]
