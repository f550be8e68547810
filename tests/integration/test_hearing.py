"""What a writing process hears of others is not lost by an error on the way: its linear position would pass their facts."""

from __future__ import annotations

import pytest

from streams.reading import watcher
from streams.reading.position_notifications import notify_position
from streams.writing.process import current_writer
from tests.support.waiting import wait_until
from tests.support.writing import append, other_writer

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_poke_that_met_an_error_is_taken_over_again(monkeypatch):
    append()
    tracker = current_writer().trackers["caches"]
    real, failed = watcher.before_shown, []

    def fail_once(found, using=None):
        if any("late" in stored for stored in found.values()) and not failed:
            failed.append(found)
            raise RuntimeError("canceling statement due to statement timeout")
        real(found, using)

    monkeypatch.setattr(watcher, "before_shown", fail_once)
    with other_writer("late") as cursor:
        notify_position(cursor, "caches", "late", 1_000)
        wait_until(lambda: tracker.raw_positions.get("late") == 1_000, 10, "the writer that came late is known")
    assert failed
