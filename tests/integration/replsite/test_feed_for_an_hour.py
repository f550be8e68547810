"""The live page's feed with as many ticks as an hour has: what it holds does not grow.

The suite takes a few hundred ticks; ``python -m tests.support.large hour`` takes 3,600.
"""

from __future__ import annotations

import json
import os
import sys
import tracemalloc

import pytest

from replsite.dashboard.page import live_page_data
from replsite.dashboard.tick_feed import LiveFeed, Tick
from replsite.snapshot.take import take_snapshot
from replsite.status.trends import History
from tests.support import crowd

TICKS = int(os.environ.get("REPLSITE_TEST_TICKS", "150"))
WARM = 40
RIGHTS = frozenset()


def pages(steps: int = 3) -> list:
    """The page of a crowd that moves on."""
    history, found = History(), []
    for _ in range(steps):
        found.append(live_page_data(take_snapshot(history)))
        crowd.move()
    return found


async def test_an_hour_of_ticks_leaves_no_memory_behind_in_the_server(pages_of_a_crowd, capsys):
    """Two viewers, one that has the last page and one that never says what it has."""
    live = LiveFeed(lambda: None, tick_seconds=0.0)
    turn = 0

    def read():
        nonlocal turn
        turn += 1
        tick = Tick(
            0, json.loads(pages_of_a_crowd[turn % len(pages_of_a_crowd)])
        )  # a page of its own, as every tick has
        tick.fragments(RIGHTS)
        return tick

    live._read = read
    number, held = 0, []
    tracemalloc.start()
    try:
        for done in range(WARM + TICKS):
            tick = await live.after(number)
            assert live.message(number, tick, RIGHTS)
            assert live.message(0, tick, RIGHTS)
            number = tick.number
            if done in (WARM, WARM + TICKS - 1):
                held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    with capsys.disabled():
        sys.stdout.write(f"\n{TICKS} ticks in the server: from {held[0]:,} to {held[1]:,} bytes\n")
    assert abs(held[1] - held[0]) < 3_000_000, "less than one page of a crowd"


@pytest.fixture
def pages_of_a_crowd(transactional_db):
    """As JSON, so that each tick makes objects of its own."""
    with crowd.living(writers=3, readers=5):
        return [json.dumps(page) for page in pages()]
