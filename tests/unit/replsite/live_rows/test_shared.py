"""Sharing a snapshot among all who ask at once."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.db import OperationalError

from replsite import dashboard
from replsite.live_rows.shared import FRESH_SECONDS, SharedSnapshot
from tests.support.snapshots import a_snapshot
from tests.support.waiting import DEADLINE_SECONDS


def test_callers_at_once_share_one_snapshot():
    taken, gate = [], threading.Event()

    def take(history):
        gate.wait(DEADLINE_SECONDS)
        taken.append(history)
        return a_snapshot()

    shared = SharedSnapshot(take)
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(shared.get) for _ in range(8)]
        gate.set()
        assert len({id(future.result()) for future in asked}) == 1
    assert len(taken) == 1


def test_an_old_snapshot_is_taken_again_with_the_same_history():
    taken = []
    shared = SharedSnapshot(lambda history: taken.append(history) or a_snapshot())
    assert shared.get(0) is not shared.get(0)
    assert taken[0] is taken[1]


def test_no_old_snapshot_is_given_while_the_database_is_away():
    answers = [a_snapshot(), OperationalError("away"), a_snapshot()]

    def take(history):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    shared = SharedSnapshot(take)
    shared.get(0)
    with pytest.raises(OperationalError):
        shared.get(0)
    assert shared.get(0) == a_snapshot()


def test_a_page_asks_and_a_snapshot_ages_so_that_a_trouble_is_seen_within_two_seconds():
    """At the worst it comes just after a snapshot that the page gets when it is as old as may be, and the next time anew."""
    script = (Path(dashboard.__file__).parents[1] / "static/dashboard/live.js").read_text()
    ask_seconds = int(re.search(r"ASK_MS = (\d+)", script)[1]) / 1000
    assert FRESH_SECONDS + ask_seconds < 2
    assert "setTimeout(ask, failures ? pause : ASK_MS)" in script
