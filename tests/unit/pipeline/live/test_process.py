"""When the live pipeline begins anew after a failure, and when it gives up."""

from __future__ import annotations

import pytest
from django.db import OperationalError

from pipeline.errors import QueryFailed
from pipeline.live import process
from pipeline.live.process import _message_of, _Retry


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Time that passes by sleeping only; the pauses that were made."""

    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

        def sleep(self, seconds):
            self.now += seconds

    made = Clock()
    monkeypatch.setattr(process, "time", made)
    return made


def never():
    return False


def test_a_query_that_keeps_failing_ends_it():
    retry, error = _Retry(never), QueryFailed("no")
    assert all(retry.wait_after(error) for _ in range(process._ATTEMPTS - 1))
    with pytest.raises(QueryFailed, match="no"):
        retry.wait_after(error)


def test_a_database_that_is_away_is_waited_for():
    retry = _Retry(never)
    assert all(retry.wait_after(OperationalError("away")) for _ in range(50))


def test_pauses_grow_to_a_limit(clock):
    retry, pauses = _Retry(never), []
    for _ in range(8):
        before = clock.now
        retry.wait_after(OperationalError("away"))
        pauses.append(round(clock.now - before, 3))
    assert pauses[:5] == sorted(pauses[:5]) and pauses[0] < 1
    limit = process._LONGEST_RETRY_SECONDS
    assert all(limit <= pause < limit + 1 for pause in pauses[5:])


def test_what_went_well_makes_earlier_failures_forgotten(clock):
    retry = _Retry(never)
    for _ in range(3 * process._ATTEMPTS):
        assert retry.wait_after(QueryFailed("no"))
        retry.went_well()
    assert clock.now < 3 * process._ATTEMPTS


def test_who_wants_the_end_does_not_wait_for_the_pause(clock):
    ends = iter([False, True])
    assert not _Retry(lambda: next(ends)).wait_after(OperationalError("away"))
    assert clock.now < process._FIRST_RETRY_SECONDS


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (None, "it has ended"),
        ("", "RuntimeError"),
        ("plain words", "plain words"),
        ("[X] a\n  at java.lang.Thread.run(Thread.java:1)\nValueError: bad row\n\tat scala.Foo", "ValueError: bad row"),
    ],
)
def test_a_failure_is_told_without_the_java_behind_it(told, said):
    assert _message_of(None if told is None else RuntimeError(told)) == said
