"""Computes the rate that is shown for a job (pure)."""

from __future__ import annotations

from datetime import datetime


def rate_of(done: int, stage_rate: float | None, began_at: datetime | None, ended_at: datetime | None) -> float | None:
    """Returns the rate per second to show beside the amount ``done``, or None if the rate is unknown.

    For a running job, this is ``stage_rate``, the rate of the present stage. For a job that is over, ``stage_rate`` is
    the rate of the last stage, which may have taken only a moment. So the result is ``done`` divided by the whole time
    of the job.
    """
    if ended_at is None or began_at is None:
        return stage_rate
    seconds = (ended_at - began_at).total_seconds()
    return done / seconds if done and seconds > 0 else None
