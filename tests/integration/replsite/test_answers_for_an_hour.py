"""The answers to the live page's questions for as many steps as an hour has: what the server holds does not grow.

The second tier takes a minute of steps; ``python -m tests.support.large hour`` takes 3,600.
"""

from __future__ import annotations

import os
import pickle
import sys
import tracemalloc

import pytest

from replsite.dashboard.shared_answers import SharedAnswers
from replsite.live_rows.reading import read_snapshot
from replsite.live_rows.shared import SharedSnapshot
from replsite.status.trends import History
from tests.support import crowd

pytestmark = pytest.mark.memory
STEPS = int(os.environ.get("REPLSITE_TEST_TICKS", "60"))
WARM = 40


def test_an_hour_of_answers_leaves_no_memory_behind_in_the_server(snapshots_of_a_crowd, capsys):
    """For viewers with two kinds of rights, and for some who come once."""
    turn = 0

    def take(_: History):
        nonlocal turn
        turn += 1
        # A snapshot of its own, as every look makes one.
        return pickle.loads(snapshots_of_a_crowd[turn % len(snapshots_of_a_crowd)])

    shared = SharedSnapshot(take)
    answers, held = SharedAnswers(shared), []
    tracemalloc.start()
    try:
        for done in range(WARM + STEPS):
            shared.get(fresh_seconds=0)
            tags = {answers.of(rights).etag for rights in (frozenset(), frozenset({"events.view_room"}))}
            assert tags
            answers.of(frozenset({f"once.{done}"}))
            if done in (WARM, WARM + STEPS - 1):
                held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    with capsys.disabled():
        sys.stdout.write(f"\n{STEPS} steps in the server: from {held[0]:,} to {held[1]:,} bytes\n")
    assert abs(held[1] - held[0]) < min(20_000 * STEPS, 3_000_000), "less than one page of a crowd"


@pytest.fixture
def snapshots_of_a_crowd(transactional_db):
    """Of a crowd that moves on."""
    history, found = History(), []
    with crowd.living(writers=3, readers=5):
        for _ in range(3):
            found.append(pickle.dumps(read_snapshot(history)))
            crowd.move()
    return found
