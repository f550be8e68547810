"""The live page in a real Chromium, against a running site.

With ``REPLSITE_SCREENSHOTS`` set to a folder, what the tests see is kept there as pictures; ``script/screenshot`` uses that.
"""

from __future__ import annotations

import subprocess
import time
from contextlib import suppress
from itertools import pairwise

import pytest
from django.contrib.auth.models import User

from streams.models import Reader
from tests.support.browsing import BROWSER, keep, log_in, luminance

playwright_api = pytest.importorskip("playwright.sync_api", reason="no playwright here")
pytestmark = BROWSER
DATA = "**/live/data/"
HOSTILE = "<b>bold</b><img src=x onerror=document.title='owned'>"


@pytest.fixture
def live(new_page, boss):
    """The live page of a logged-in operator, connected."""

    def make(**options) -> playwright_api.Page:
        page = new_page(**options)
        log_in(page)
        says(page, "#live-link", "Live")
        return page

    return make


def says(page, selector, text):
    playwright_api.expect(page.locator(selector)).to_have_text(text)


def linear_position(page):
    return page.locator('#live-streams tbody[data-key="caches"] .live-head td:nth-child(3) .live-text')


def test_append_of_another_process_shows_without_reload(live, run_manage):
    run_manage("append", "caches", "--count", "1")
    page = live()
    assert page.url.endswith("/admin/live/"), "the login leads there"
    playwright_api.expect(page.locator("#live-health-word")).to_have_text("well")
    page.evaluate("window.notReloaded = true")
    playwright_api.expect(linear_position(page)).not_to_have_text("1")
    before = int(linear_position(page).inner_text().replace(",", ""))
    assert run_manage("append", "caches", "--count", "5").returncode == 0
    playwright_api.expect(linear_position(page)).to_have_text(f"{before + 5:,}")
    assert page.evaluate("window.notReloaded")


def test_lost_link_greys_the_numbers_with_their_age_and_comes_back(live, site):
    page = live()
    site.kill()
    playwright_api.expect(page.locator("#live.live-stale")).to_be_visible()
    playwright_api.expect(page.locator("#live-link")).to_have_text("Link lost, trying again")
    playwright_api.expect(page.locator("#live-age")).to_contain_text("s ago")
    keep(page, "lost")
    site.start()
    says(page, "#live-link", "Live")
    playwright_api.expect(page.locator("#live.live-stale")).to_have_count(0)


@pytest.mark.scenario
def test_a_link_that_swallows_everything_is_given_up_and_tried_again(live):
    """A cable that is pulled ends no connection: nothing comes, and nobody says so."""
    page, swallowed = live(), []

    def swallow(route):
        swallowed.append(route)  # neither answered nor ended

    page.route(DATA, swallow)
    says(page, "#live-link", "Link lost, trying again")
    assert len(swallowed) == 1, "a question at a time"
    page.wait_for_event("request", lambda request: request.url.endswith("/live/data/"))
    page.unroute(DATA)
    for route in swallowed:
        with suppress(playwright_api.Error):  # the page has given it up
            route.abort()
    says(page, "#live-link", "Live")


@pytest.mark.scenario
def test_an_answer_that_is_none_is_said_and_asked_for_later_and_later(live):
    page, asked_at = live(), []

    def refuse(route):
        asked_at.append(time.monotonic())
        route.fulfill(status=502, content_type="text/html", body="<h1>Bad Gateway")

    page.route(DATA, refuse)
    says(page, "#live-link", "The server answers 502, trying again")
    playwright_api.expect(page.locator("#live.live-stale")).to_be_visible()
    playwright_api.expect(page.locator("#live-age")).to_contain_text("s ago")
    while len(asked_at) < 4:
        page.wait_for_event("response", lambda answer: answer.status == 502)
    pauses = [later - sooner for sooner, later in pairwise(asked_at)]
    assert pauses[0] > 1.4 and pauses[2] > pauses[0] * 1.5, pauses
    page.unroute(DATA)
    says(page, "#live-link", "Live")


def test_while_nothing_changes_only_the_time_is_sent(live):
    page, statuses = live(), []
    page.on("response", lambda answer: statuses.append(answer.status) if "/live/data/" in answer.url else None)
    moment = page.locator("#live-as-of")
    while 304 not in statuses:
        page.wait_for_event("response")
    shown = moment.inner_text()
    while statuses[-2:] != [304, 304]:
        page.wait_for_event("response")
    playwright_api.expect(moment).not_to_have_text(shown)
    says(page, "#live-link", "Live")


def test_who_is_signed_out_is_told_at_once_and_led_to_the_login(live):
    page = live()
    User.objects.update(is_staff=False)
    says(page, "#live-link", "You are signed out. Log in again")
    playwright_api.expect(page.locator("#live.live-stale")).to_be_visible()
    page.get_by_role("link", name="Log in again").click()
    assert "/admin/login/" in page.url


def test_writers_and_followers_of_other_processes_are_seen(live, site, start_manage):
    for name, stream in (("web-1", "events"), ("web-2", "caches"), ("web-3", "caches")):
        steady = ("--count", "100000", "--rate", "20", "--instance", name)
        start_manage("append", stream, *steady, stdout=subprocess.DEVNULL)
    for name in ("federation-sender", "search-index"):
        start_manage("follow", f"tcp://{site.replication}", "--name", name, stdout=subprocess.DEVNULL)
    page = live(viewport={"width": 1280, "height": 930})
    writer = page.locator('#live-streams tr[data-key="web-1"] td:nth-child(2) .live-text').first  # of events and caches
    playwright_api.expect(writer).to_have_text("writing")
    follower = page.locator("#live-readers tbody", has_text="follower").filter(has_text="federation-sender")
    playwright_api.expect(follower.locator(".live-head td:nth-child(2) .live-text")).to_have_text("current")
    page.wait_for_timeout(3000)
    keep(page, "live")


_HIDE = """(hidden) => {
    Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest.mark.scenario
def test_hidden_tab_does_not_ask_and_asks_at_once_when_it_is_shown(live):
    hidden, shown = live(), live()
    asked = []
    hidden.on("request", lambda request: asked.append(request.url))
    hidden.evaluate(_HIDE, True)
    hidden.wait_for_load_state("networkidle")  # an answer was on its way
    asked.clear()
    frozen = hidden.locator("#live-as-of").inner_text()
    for _ in range(3):  # a tab that is shown goes on
        shown.wait_for_event("response")
    hidden.evaluate("0")
    assert asked == []
    with hidden.expect_request(DATA, timeout=500):  # half of the pause between two questions
        hidden.evaluate(_HIDE, False)
    playwright_api.expect(hidden.locator("#live-as-of")).not_to_have_text(frozen)


def test_names_that_readers_choose_are_text(live):
    page = live()
    Reader.objects.create(key="evil", name=HOSTILE, kind="connection", positions={"caches": {"master": 1}})
    playwright_api.expect(page.locator("#live-readers tbody th .live-text").first).to_have_text(HOSTILE)
    page.reload()
    playwright_api.expect(page.locator("#live-readers tbody th .live-text").first).to_have_text(HOSTILE)
    assert page.title() != "owned"
    assert page.locator("#live img").count() == 0


def test_page_fits_a_phone_and_a_long_name_does_not_run_under_the_menu_of_its_row(live, run_manage):
    run_manage("append", "caches", "--count", "3")
    Reader.objects.create(key="long", name="n" * 90, kind="connection", positions={"caches": {"master": 1}})
    page = live(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    playwright_api.expect(linear_position(page)).not_to_have_text("1")
    row = page.locator('#live-readers tbody[data-key="long"] .live-head')
    playwright_api.expect(row.locator(".live-more")).to_be_visible()
    name, button = row.locator("th .live-text").bounding_box(), row.locator(".live-more").bounding_box()
    assert name["x"] + name["width"] <= button["x"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    keep(page, "phone", full_page=True)


def test_dark_mode_is_dark_and_readable(live):
    page = live(color_scheme="dark")
    colours = "(e) => getComputedStyle(e)"
    background = page.evaluate(f"({colours})(document.querySelector('.live-scroll')).backgroundColor")
    text = page.evaluate(f"({colours})(document.querySelector('.live-head .live-text')).color")
    assert luminance(page, background) < 0.2
    assert luminance(page, text) > 0.7
    keep(page, "dark")


def test_focus_selection_and_an_open_menu_outlive_ticks_and_groups_fold_by_keyboard(live, run_manage):
    run_manage("append", "caches", "--count", "1")
    page = live()
    row = page.locator('#live-streams tbody[data-key="caches"] .live-head')
    row.locator(".live-more").click()
    first = row.locator(".live-menu a").first
    playwright_api.expect(first).to_be_focused()
    page.evaluate("(name) => getSelection().selectAllChildren(name)", row.locator("th .live-text").element_handle())
    before = linear_position(page).inner_text()
    run_manage("append", "caches", "--count", "5")
    playwright_api.expect(linear_position(page)).not_to_have_text(before)
    playwright_api.expect(first).to_be_focused()
    assert page.evaluate("getSelection().toString()") == "caches"
    playwright_api.expect(row.locator(".live-more")).to_have_attribute("aria-expanded", "true")
    find, before = page.get_by_role("searchbox"), linear_position(page).inner_text()
    find.press_sequentially("cach")
    run_manage("append", "caches", "--count", "5")
    playwright_api.expect(linear_position(page)).not_to_have_text(before)
    playwright_api.expect(find).to_be_focused()
    playwright_api.expect(find).to_have_value("cach")
    button = page.locator('#live-streams tbody[data-key="caches"] .live-toggle')
    for key, is_expanded in (("Enter", "false"), ("Space", "true")):
        button.focus()
        page.keyboard.press(key)
        playwright_api.expect(button).to_have_attribute("aria-expanded", is_expanded)


def test_page_works_without_javascript(new_page, boss, run_manage):
    run_manage("append", "caches", "--count", "1")
    page = new_page(java_script_enabled=False)
    log_in(page)
    playwright_api.expect(page.locator('#live-streams tbody[data-key="caches"]')).to_be_visible()
    playwright_api.expect(page.locator("#live-health-sentence")).to_contain_text("All is well")


def test_no_outside_host_is_asked_and_nothing_fails(new_page, boss, site):
    page = new_page()
    asked, errors = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    log_in(page)
    says(page, "#live-link", "Live")
    assert {url for url in asked if not url.startswith((site.address, "data:"))} == set()
    assert errors == []
