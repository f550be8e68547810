"""What a writing process hears of others is not lost by an error on the way: its linear position would pass their facts."""

from __future__ import annotations

import pytest

from streams.reading import cache_feed
from streams.reading.position_notifications import notify_position
from streams.writing.process import current_writer
from tests.support.waiting import wait_until
from tests.support.writing import append, other_writer

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_poke_that_met_an_error_is_taken_over_again(monkeypatch):
    append()
    tracker = current_writer().trackers["caches"]
    real, failed = cache_feed.before_advance, []

    def fail_once(streams=None, cursor=None, using=None, notifications=()):
        if any(one.writer == "late" for one in notifications) and not failed:
            failed.append(notifications)
            raise RuntimeError("canceling statement due to statement timeout")
        real(streams, cursor, using, notifications)

    monkeypatch.setattr(cache_feed, "before_advance", fail_once)
    with other_writer("late") as cursor:
        notify_position(cursor, "caches", "late", 1_000)
        wait_until(lambda: tracker.raw_positions.get("late") == 1_000, 10, "the writer that came late is known")
    assert failed
