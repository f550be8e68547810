"""The live page in a real Chromium, against a running site.

With ``REPLSITE_SCREENSHOTS`` set to a folder, what the tests see is kept there as pictures; ``script/screenshot`` uses that.
"""

from __future__ import annotations

import subprocess

import pytest
from django.contrib.auth.models import User

from streams.models import Reader
from tests.support.browsing import BROWSER, keep, log_in, luminance

playwright_api = pytest.importorskip("playwright.sync_api", reason="no playwright here")
pytestmark = BROWSER
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


def asked_by(page, site) -> str:
    """What becomes of a WebSocket that this page asks for, with the cookies that the browser has."""
    return page.evaluate(
        """(address) => new Promise((done) => {
            const socket = new WebSocket(address);
            socket.onopen = () => done("open");
            socket.onclose = () => done("refused");
        })""",
        site.address.replace("http", "ws") + "/ws/live/",
    )


def test_a_page_of_a_foreign_origin_is_refused_though_the_operator_is_logged_in(live, site):
    page = live()
    assert asked_by(page, site) == "open"
    page.context.route("http://127.0.0.1:9/**", lambda route: route.fulfill(body="<p>evil", content_type="text/html"))
    page.goto("http://127.0.0.1:9/evil")
    assert page.evaluate("location.origin") == "http://127.0.0.1:9"
    assert asked_by(page, site) == "refused"


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


def test_a_link_that_swallows_everything_is_given_up_and_made_anew(new_page, boss):
    """A cable that is pulled ends no connection: nothing comes, and nobody says so."""
    page = new_page()
    page.clock.install()
    page.add_init_script("""
        window.swallows = false;
        window.links = 0;
        const send = WebSocket.prototype.send;
        WebSocket.prototype.send = function (text) { if (!window.swallows) send.call(this, text); };
        window.WebSocket = class extends WebSocket { constructor(...where) { super(...where); window.links += 1; } };
    """)
    log_in(page)
    says(page, "#live-link", "Live")
    page.evaluate("window.swallows = true")
    says(page, "#live-link", "Link lost, trying again")
    assert page.evaluate("window.links") == 1
    for _ in range(20):  # each link is waited for, and then made anew
        if page.inner_text("#live-link") == "Live, by polling":
            break
        page.clock.fast_forward(17_000)
        page.wait_for_timeout(100)
    says(page, "#live-link", "Live, by polling")
    page.evaluate("window.swallows = false")
    page.clock.fast_forward(50_000)
    says(page, "#live-link", "Live")
    assert page.evaluate("window.links") > 1


def test_without_websockets_the_page_polls(new_page, boss, run_manage):
    page = new_page()
    page.add_init_script("window.WebSocket = class extends EventTarget { constructor() { super(); "
                         "setTimeout(() => this.dispatchEvent(new CloseEvent('close', { code: 1006 }))); } };")  # fmt: skip
    log_in(page)
    says(page, "#live-link", "Live, by polling")
    run_manage("append", "caches", "--count", "4")
    playwright_api.expect(linear_position(page)).not_to_have_text("1")


def test_signed_out_page_says_so_and_leads_to_the_login(live, site):
    page = live()
    User.objects.update(is_staff=False)
    site.kill()
    site.start()
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


_COUNTED = """
    window.asked = window.answered = 0;
    window.WebSocket = class extends WebSocket {
        constructor(...where) {
            super(...where);
            this.addEventListener("message", () => { window.answered += 1; });
        }
        send(text) { window.asked += 1; super.send(text); }
    };
"""
_HIDE = """(hidden) => {
    Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_hidden_tab_does_not_ask(new_page, boss):
    hidden, shown = new_page(), new_page()
    for page in (hidden, shown):
        page.add_init_script(_COUNTED)
        log_in(page)
        says(page, "#live-link", "Live")
    hidden.evaluate(_HIDE, True)
    hidden.wait_for_function("window.answered >= window.asked")  # an answer was on its way
    asked, frozen = hidden.evaluate("[window.asked, document.querySelector('#live-as-of').innerText]")
    before = shown.evaluate("window.answered")
    shown.wait_for_function("(before) => window.answered >= before + 3", arg=before)  # a tab that is shown goes on
    assert hidden.evaluate("window.asked") == asked
    hidden.evaluate(_HIDE, False)
    playwright_api.expect(hidden.locator("#live-as-of")).not_to_have_text(frozen)
    assert hidden.evaluate("window.asked") > asked


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
