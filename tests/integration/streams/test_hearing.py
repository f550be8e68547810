"""What a writing process hears of others is not lost by an error on the way: its linear position would pass their facts."""

from __future__ import annotations

import pytest

from streams.reading import watcher
from streams.reading.position_notifications import notify_position
from streams.writing.process import current_writer
from tests.support.waiting import wait_until
from tests.support.writing import append, other_writer

pytestmark = pytest.mark.django_db(transaction=True)


def test_after_an_error_the_table_says_what_the_poke_said(monkeypatch):
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
        cursor.execute(  # it enters the stream, as every writer does before it reserves an ID
            "INSERT INTO streams_streamposition (stream, instance_name, position) VALUES ('caches', 'late', 1)"
        )
        notify_position(cursor, "caches", "late", 1_000)
        wait_until(lambda: "late" in tracker.raw_positions, what="the writer that came late is known")

        def is_heard_again() -> bool:
            notify_position(cursor, "caches", "late", 1_000)
            return bool(tracker.raw_positions.get("late") == 1_000)

        wait_until(is_heard_again, what="its notifications count again")
    assert failed
