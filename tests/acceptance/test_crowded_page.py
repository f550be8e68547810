"""Twenty writers of twelve streams and fifty readers on one page: an answer makes no row anew; easy to search."""

from __future__ import annotations

import pytest

from tests.support import crowd
from tests.support.browsing import BROWSER, keep, log_in

playwright_api = pytest.importorskip("playwright.sync_api", reason="no playwright here")
pytestmark = BROWSER
#: Times how long the page is at work with each answer, from when it is unpacked until it is laid out; and how long the answer is.
_MEASURE = """() => {
    window.ticks = [];
    const json = Response.prototype.json;
    Response.prototype.json = async function () {
        const found = await json.call(this), began = performance.now();
        setTimeout(() => { // the page has shown it
            document.body.offsetHeight; // what it changed is laid out
            window.ticks.push([Number(this.headers.get("Content-Length")), performance.now() - began]);
        });
        return found;
    };
}"""
#: Counts the elements that answers put into the tables.
_COUNT = """() => {
    window.added = 0;
    new MutationObserver((changes) => {
        for (const change of changes) window.added += [...change.addedNodes].filter((node) => node.nodeType === 1).length;
    }).observe(document.querySelector("#live"), { childList: true, subtree: true });
}"""
#: Times the browser alone: it reads the same tables as HTML, and lays them out in place of those that are shown.
_REDRAW = """() => {
    const tables = document.querySelector("#live"), html = tables.innerHTML, other = tables.cloneNode(false);
    const began = performance.now();
    other.innerHTML = html;
    tables.replaceWith(other);
    document.body.offsetHeight;
    const ended = performance.now();
    other.replaceWith(tables);
    document.body.offsetHeight;
    return ended - began;
}"""


@pytest.fixture
def crowded(transactional_db, boss, new_page):
    """The live page of a crowd, its answers measured from the beginning."""
    with crowd.living():
        page = new_page(viewport={"width": 1440, "height": 900})
        page.add_init_script(f"({_MEASURE})()")
        log_in(page)
        playwright_api.expect(page.locator("#live-link")).to_have_text("Live")
        yield page


def ticks(page, number):
    """So many of the next answers: (length, milliseconds of work, milliseconds of a redraw beside it)."""
    found = []
    for _ in range(number):
        had = page.evaluate("window.ticks.length")
        crowd.move()
        page.wait_for_function("(had) => window.ticks.length > had", arg=had)
        found.append((*page.evaluate("(had) => window.ticks[had]", had), page.evaluate(_REDRAW)))
    return found


@pytest.mark.speed
def test_an_answer_costs_less_than_a_page_made_anew(crowded, record_property):
    found = ticks(crowded, 6)
    work, redraw = min(work for _, work, _ in found), min(redraw for _, _, redraw in found)
    record_property("best_tick_ms", round(work))
    record_property("best_redraw_ms", round(redraw))
    record_property("longest_answer_bytes", max(length for length, _, _ in found))
    assert work < redraw, found  # the best of a few: other tests may be at work


@pytest.mark.scenario
def test_a_crowd_is_shown_moved_on_in_place_and_found_in(crowded):
    page = crowded
    assert page.locator("#live-streams > tbody").count() >= crowd.STREAMS
    assert page.locator("#live-readers > tbody").count() == crowd.READERS
    assert page.locator("#live-streams tr").count() > crowd.STREAMS * crowd.WRITERS
    page.evaluate(_COUNT)
    ticks(page, 2)
    rows = page.locator("#live-streams tr, #live-readers tr").count()
    assert page.evaluate("window.added") < rows, "less than an element a row, of which a page made anew has a dozen"
    keep(page, "crowd")
    page.get_by_role("searchbox").fill("follower-07")
    playwright_api.expect(page.locator("#live-readers > tbody:visible")).to_have_count(1)
    page.get_by_role("searchbox").fill("web-9")
    playwright_api.expect(page.locator("#live-readers > tbody:visible")).to_have_count(0)
    playwright_api.expect(page.locator("#live-streams > tbody:visible")).to_have_count(crowd.STREAMS)
    page.get_by_role("searchbox").fill("")
    page.get_by_role("button", name="Unsent").click()
    first = page.locator("#live-readers > tbody").first.locator(".live-head td").nth(5)
    playwright_api.expect(first).to_contain_text("5.0 kB")
    playwright_api.expect(page.get_by_role("columnheader", name="Unsent")).to_have_attribute("aria-sort", "descending")
