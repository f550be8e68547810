"""An hour of the live page in moments: as many ticks as an hour has, in the browser, and nothing grows.

The suite takes sixty ticks, with limits for as many; ``python -m tests.support.large hour`` takes 3,600.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import zlib

import pytest

from replsite.dashboard.fragments import changes, render
from replsite.dashboard.page import live_page_data
from replsite.snapshot.take import take_snapshot
from replsite.status.trends import History
from tests.support import crowd
from tests.support.browsing import BROWSER, log_in

TICKS = int(os.environ.get("REPLSITE_TEST_TICKS", "60"))
WARM = 40
STEPS = 8
#: A link that answers each question with the next of the messages that the test has put there.
_LINK = """
window.shown = 0;
window.WebSocket = class extends EventTarget {
    static OPEN = 1;
    readyState = 1;
    constructor() { super(); setTimeout(() => this.dispatchEvent(new Event("open"))); }
    send() {
        const answer = () => {
            if (!window.messages || window.shown >= window.until) return setTimeout(answer, 20);
            const packed = window.messages[window.shown++ % window.messages.length];
            const data = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0)).buffer;
            this.dispatchEvent(new MessageEvent("message", { data }));
        };
        setTimeout(answer);
    }
    close() {}
};
"""


def pages(steps: int = STEPS) -> list:
    """The page of a crowd that moves on."""
    history, found = History(), []
    for _ in range(steps):
        found.append(render(live_page_data(take_snapshot(history)), frozenset()))
        crowd.move()
    return found


@pytest.fixture
def a_crowd(transactional_db):
    with crowd.living():
        yield


class TestInTheBrowser:
    pytestmark = BROWSER

    def test_an_hour_of_ticks_leaves_no_memory_nodes_or_listeners_behind(self, a_crowd, boss, new_page, capsys):
        seen = pages()
        told = [changes(before, now) for before, now in zip([seen[-1], *seen[:-1]], seen, strict=True)]  # in a circle
        page = new_page()
        page.add_init_script(_LINK)
        log_in(page)
        wire = page.context.new_cdp_session(page)
        wire.send("Performance.enable")
        page.evaluate(
            "(messages) => { window.until = 1; window.messages = messages; }", [packed(changes(None, seen[-1]))]
        )
        page.wait_for_function("window.shown >= 1")
        # Style, layout and paint of 65,000 nodes take nine tenths of a tick's time. They hold no node and no listener.
        page.evaluate("() => { document.documentElement.style.display = 'none'; }")
        page.evaluate("(messages) => { window.messages = messages; }", [packed(one) for one in told])
        before, after = after_ticks(page, wire, WARM), after_ticks(page, wire, WARM + TICKS)
        grown = {name: after[name] - before[name] for name in before}
        with capsys.disabled():
            sys.stdout.write(f"\n{TICKS} ticks in the browser: grown by {grown}\n")
        assert grown["Nodes"] <= 30, grown  # a node left by every second tick is noticed, whatever the number of ticks
        assert grown["JSEventListeners"] <= 2, grown
        assert grown["JSHeapUsedSize"] < 1_500_000, grown


def packed(message) -> str:
    return base64.b64encode(zlib.compress(json.dumps({"number": 1, **message}).encode())).decode()


def after_ticks(page, wire, number: int) -> dict[str, float]:
    """What the page holds when it has shown so many ticks and everything that can go has gone."""
    page.evaluate("(number) => { window.until = number; }", number)
    page.wait_for_function("(number) => window.shown >= number", arg=number, timeout=900_000)
    for _ in range(3):
        wire.send("HeapProfiler.collectGarbage")
    metrics = {one["name"]: one["value"] for one in wire.send("Performance.getMetrics")["metrics"]}
    return {name: metrics[name] for name in ("Nodes", "JSEventListeners", "JSHeapUsedSize")}
