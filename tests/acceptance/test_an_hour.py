"""An hour of the live page in moments: as many ticks as an hour has, in the browser, and nothing grows.

The second tier takes 64 ticks of a few writers and readers, with limits for as many, and those of a crowd;
``python -m tests.support.large hour`` takes 3,600.
"""

from __future__ import annotations

import gzip
import os
import sys

import pytest

from replsite.dashboard.shared_answers import SharedAnswers
from replsite.live_rows.reading import read_snapshot
from replsite.live_rows.shared import SharedSnapshot
from tests.support import crowd
from tests.support.browsing import BROWSER, log_in

TICKS = int(os.environ.get("REPLSITE_TEST_TICKS", "64"))
WARM = 40
#: Divides both, so that the same page is shown at both looks.
STEPS = 8
#: A server that answers each question with the next of the pages that the test has put there, at once.
_SERVER = """
window.shown = 0;
const pause = window.setTimeout;
window.setTimeout = (call, milliseconds) => pause(call, milliseconds === 1000 ? 0 : milliseconds);
window.fetch = () => new Promise((done) => {
    const answer = () => {
        if (!window.pages || window.shown >= window.until) return pause(answer, 20);
        const headers = { "As-Of": new Date().toISOString(), "ETag": String(window.shown) };
        done(new Response(window.pages[window.shown++ % window.pages.length], { headers }));
    };
    pause(answer);
});
"""


def pages(steps: int = STEPS) -> list[str]:
    """The page of a crowd that moves on."""
    shared, found = SharedSnapshot(read_snapshot), []
    answers = SharedAnswers(shared)
    for _ in range(steps):
        shared.get(fresh_seconds=0)
        found.append(gzip.decompress(answers.of(frozenset()).packed).decode())
        crowd.move()
    return found


@pytest.fixture(
    params=[
        pytest.param((4, 10), id="some"),
        pytest.param((crowd.WRITERS, crowd.READERS), id="crowd"),
    ]
)
def a_crowd(request, transactional_db):
    with crowd.living(*request.param):
        yield


class TestInTheBrowser:
    pytestmark = [*BROWSER, pytest.mark.scenario]

    def test_an_hour_of_ticks_leaves_no_memory_nodes_or_listeners_behind(self, a_crowd, boss, new_page, capsys):
        told = pages()
        page = new_page()
        page.add_init_script(_SERVER)
        log_in(page)
        wire = page.context.new_cdp_session(page)
        wire.send("Performance.enable")
        page.evaluate("(pages) => { window.until = 1; window.pages = pages; }", told)
        page.wait_for_function("window.shown >= 1")
        # Style, layout and paint of 65,000 nodes take nine tenths of a tick's time. They hold no node and no listener.
        page.evaluate("() => { document.documentElement.style.display = 'none'; }")
        before, after = after_ticks(page, wire, WARM), after_ticks(page, wire, WARM + TICKS)
        grown = {name: after[name] - before[name] for name in before}
        with capsys.disabled():
            sys.stdout.write(f"\n{TICKS} ticks in the browser: grown by {grown}\n")
        assert grown["Nodes"] <= 30, grown  # a node left by every second tick is noticed, whatever the number of ticks
        assert grown["JSEventListeners"] <= 2, grown
        assert grown["JSHeapUsedSize"] < 1_500_000, grown


def after_ticks(page, wire, number: int) -> dict[str, float]:
    """What the page holds when it has shown so many ticks and everything that can go has gone."""
    page.evaluate("(number) => { window.until = number; }", number)
    page.wait_for_function("(number) => window.shown >= number", arg=number, timeout=900_000)
    for _ in range(3):
        wire.send("HeapProfiler.collectGarbage")
    metrics = {one["name"]: one["value"] for one in wire.send("Performance.getMetrics")["metrics"]}
    return {name: metrics[name] for name in ("Nodes", "JSEventListeners", "JSHeapUsedSize")}
