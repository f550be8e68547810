"""The rate that is shown for a job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from streams.jobs.rate import rate_of

BEGAN = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_a_running_job_shows_the_rate_of_its_stage():
    assert rate_of(500, 20.0, BEGAN, None) == 20.0
    assert rate_of(0, None, BEGAN, None) is None


def test_a_job_that_is_over_shows_its_amount_over_its_whole_time():
    """It showed the rate of its last stage: 125,431/s for 24 s of work, because that stage took 10 ms."""
    assert rate_of(1_254, 125_431.0, BEGAN, BEGAN + timedelta(seconds=24)) == 52.25


def test_a_job_that_did_nothing_or_took_no_time_has_no_rate():
    assert rate_of(0, 7.0, BEGAN, BEGAN + timedelta(seconds=24)) is None
    assert rate_of(9, 7.0, BEGAN, BEGAN) is None
