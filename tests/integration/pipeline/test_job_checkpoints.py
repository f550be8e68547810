"""A job that writes much says when PostgreSQL makes checkpoints too often meanwhile, and what to do."""

from __future__ import annotations

import io

import pytest
from django.db import connection

from streams.jobs import checkpoints
from streams.jobs.checkpoints import checkpoint_words, watched_checkpoints
from streams.jobs.run import run_job


@pytest.mark.parametrize(
    ("requested", "seconds", "said"), [(0, 10.0, False), (2, 10.0, False), (3, 89.0, True), (3, 90.0, False)]
)
def test_few_or_rare_checkpoints_are_no_reason_to_say_something(requested, seconds, said):
    assert bool(checkpoint_words(requested, seconds, "1GB")) == said


def test_statistics_that_were_reset_meanwhile_are_no_reason_either():
    assert checkpoint_words(-4, 10.0, "1GB") == ""


@pytest.mark.django_db(transaction=True)
def test_a_job_says_how_many_there_were_and_what_to_do(monkeypatch):
    """On the version of PostgreSQL that the tests run on; the counters moved to another view in version 17."""
    monkeypatch.setattr(checkpoints, "_SECONDS_BETWEEN", float("inf"))  # however long they take

    def work(run):
        with watched_checkpoints(run), connection.cursor() as cursor:
            for _ in range(5):  # the last one may not be counted yet when it has ended
                cursor.execute("CHECKPOINT")
        return {}

    stream = io.StringIO()
    run_job("check streams", {}, stream=stream, work=work)
    with connection.cursor() as cursor:
        cursor.execute("SHOW max_wal_size")
        (size,) = cursor.fetchone()
    assert "PostgreSQL was asked for" in stream.getvalue() and f"max_wal_size is {size}" in stream.getvalue()
    assert "ALTER SYSTEM SET max_wal_size" in stream.getvalue()
