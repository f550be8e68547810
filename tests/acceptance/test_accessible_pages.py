"""Operators' pages have no serious or critical finding of axe, in the light, in the dark and on a phone; keys reach all."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone

from pipeline.models import Job
from streams import registry
from streams.db.sequences import move_forward
from streams.models import ParkedFact, Reader, Sample, StatusChange, StoredCursor, StreamPosition
from tests.support.accessibility import serious_findings
from tests.support.beating import beating
from tests.support.browsing import BROWSER, log_in
from tests.support.made_rooms import MadeRoom
from tests.support.stored_rooms import store_room
from tests.support.writing import held_open

playwright_api = pytest.importorskip("playwright.sync_api", reason="no playwright here")
pytest.importorskip("axe_playwright_python", reason="no axe-playwright-python here")
pytestmark = BROWSER
PAGES = {
    "live": "/admin/live/",
    "history": "/admin/history/?stream=caches",
    "a range of history": "/admin/history/?stream=caches&from=2026-01-01T00:00&until=2026-01-01T01:00",
    "what happened": "/admin/happened/",
    "facts": "/admin/facts/?stream=caches",
    "jobs": "/admin/pipeline/job/",
    "a job": "/admin/pipeline/job/7/change/",
    "queue a job": "/admin/pipeline/job/queue/",
    "arguments of a job": "/admin/pipeline/job/queue/?kind=archive",
    "cancel a job": "/admin/pipeline/job/7/cancel/",
    "a reader": "/admin/streams/reader/search/change/",
    "disconnect a reader": "/admin/actions/disconnect/?name=search",
    "end what holds a stream back": "/admin/actions/end/?name=caches",
    "end the session that an append waits for": "/admin/actions/end-blocker/?name=caches",
    "dead letters": "/admin/actions/parked/?name=mail",
    "retry dead letters": "/admin/actions/parked/retry/?name=mail",
    "resync a reader": "/admin/actions/resync/?name=mail",
    "resume a job": "/admin/pipeline/job/7/resume/",
    "status words": "/admin/words/",
    "not found": "/admin/nothing/",
    "API": "/api/",
    "API tokens": "/admin/replsite_api/apitoken/",
    "make an API token": "/admin/replsite_api/apitoken/make/",
    "rooms": "/admin/events/room/",
    "a room": "/admin/events/room/!made_3Aa.test/change/?user=@alice:a.test",
    "an event": "/admin/events/event/2/change/?user=@alice:a.test",
    "search events": "/admin/events/event/search/?room=!made:a.test",
}
#: What the theme does when it is loaded in the dark; the rest is the media query's.
_DARK = "document.documentElement.classList.add('dark')"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """An append that is open for a second blocks its stream."""
    monkeypatch.setenv("REPLSITE_BLOCKED_AFTER_SECONDS", "1")


@pytest.fixture
def troubled(transactional_db):
    """Something of every kind: a stream that is held back, readers that are behind and gone, history."""
    alive, dead = timezone.now(), timezone.now() - timedelta(minutes=5)
    with connection.cursor() as cursor:  # the positions that are put in by hand lie below it
        move_forward(cursor, registry.get("caches").declaration.sequence, 5)
        move_forward(cursor, registry.get("events").declaration.sequence, 50)
    for name in ("web-1", "web-3"):
        StreamPosition.objects.create(stream="caches", instance_name=name, position=5, last_fact_at=alive)
    for name, at in (("search", alive), ("sender", dead)):
        Reader.objects.create(key=name, name=name, kind="follower", heartbeat_at=at, positions={"caches": {"web-1": 1}})
    made = MadeRoom()
    made.state("m.room.power_levels", "", {"users": {"@alice:a.test": 100}})
    made.message()
    store_room(made.events, 2)
    Job.objects.create(pk=7, kind="archive", state="queued", queued_at=dead, arguments={})
    StoredCursor.objects.create(
        reader="mail", stream="caches", base=5, ended_at=alive, retry_asked_by="ann", retry_asked_at=dead
    )
    ParkedFact.objects.create(
        reader="mail", stream="caches", token=4, rows=[], error="no", traceback="a trace", attempts=1
    )
    for minutes in range(5):
        Sample.objects.create(step_seconds=15, stream="caches", reader="search", at=timezone.now() - timedelta(minutes=minutes),
                              position=5, waiting=minutes * 10, seconds=1, severity=0, word="current")  # fmt: skip
    StatusChange.objects.create(
        at=dead, stream="caches", reader="search", word="stuck", severity=3, sentence="Restart it."
    )
    with beating(), held_open():
        yield


@pytest.fixture
def page(new_page, boss, troubled):
    """A page of somebody who is logged in."""

    def make(**options):
        made = new_page(**options)
        log_in(made)
        playwright_api.expect(made.locator("#live-link")).to_have_text("Live")
        return made

    return make


def open_page(shown, name):
    shown.goto(PAGES[name])
    shown.wait_for_load_state("load")
    if name == "live":
        playwright_api.expect(shown.locator("#live-link")).to_have_text("Live")


@pytest.mark.scenario
@pytest.mark.parametrize("first", [0, 1])
def test_no_page_has_a_serious_finding_in_the_light_or_in_the_dark(page, first):
    """In halves: axe takes seconds of CPU for a page. The gate looks at those of the next test, which have most templates."""
    shown, found = page(), {}
    for name in list(PAGES)[first::2]:
        open_page(shown, name)
        found[name] = serious_findings(shown)
        shown.emulate_media(color_scheme="dark")
        shown.evaluate(_DARK)
        found[f"{name} in the dark"] = serious_findings(shown, colours_only=True)
        shown.emulate_media(color_scheme="light")
    assert {name: findings for name, findings in found.items() if findings} == {}


@pytest.mark.parametrize(
    "names", [("live", "a room"), pytest.param(("history", "dead letters", "rooms"), marks=pytest.mark.scenario)]
)
def test_no_page_has_a_serious_finding_on_a_phone(page, names):
    shown, found = page(viewport={"width": 390, "height": 844}), {}
    for name in names:
        open_page(shown, name)
        found[name] = serious_findings(shown)
        shown.evaluate(_DARK)
        found[f"{name} in the dark"] = serious_findings(shown, colours_only=True)
    assert {name: findings for name, findings in found.items() if findings} == {}


def test_keys_reach_the_tables_their_order_and_the_menu_of_a_row_and_commands_are_copied(page):
    shown = page(permissions=["clipboard-read", "clipboard-write"])
    skip = shown.get_by_role("link", name="Readers and connections", exact=True)
    skip.focus()
    playwright_api.expect(skip).to_be_visible()
    shown.keyboard.press("Enter")
    playwright_api.expect(shown.locator("#live-readers-title")).to_be_focused()
    shown.keyboard.press("Tab")
    playwright_api.expect(shown.get_by_role("region", name="Table of readers and connections")).to_be_focused()
    shown.keyboard.press("Tab")
    shown.keyboard.press("Enter")
    head = shown.locator("#live-readers th").first
    playwright_api.expect(head).to_have_attribute("aria-sort", "ascending")
    names = shown.locator("#live-readers .live-head th .live-text")
    playwright_api.expect(names).to_have_text(["mail", "search", "sender"])
    shown.keyboard.press("Enter")
    playwright_api.expect(names).to_have_text(["sender", "search", "mail"])
    more = shown.get_by_role("button", name="More about web-3")
    more.focus()
    shown.keyboard.press("Enter")
    menu = shown.get_by_role("group", name="About web-3")
    playwright_api.expect(menu.get_by_role("link").first).to_be_focused()
    playwright_api.expect(menu).to_contain_text("manage.py streams abort caches")
    shown.keyboard.press("Escape")
    playwright_api.expect(more).to_be_focused()
    playwright_api.expect(menu).to_have_count(0)
    shown.locator("#live-streams").get_by_role("button", name="Copy manage.py streams abort caches").first.click()
    assert shown.evaluate("navigator.clipboard.readText()") == "manage.py streams abort caches"
    shown.get_by_role("button", name="More about web-1").click()
    shown.locator(".live-menu").get_by_role("link", name="End what holds it back …").click()
    playwright_api.expect(shown).to_have_url(re.compile(r"/admin/actions/end/\?name=caches$"))


@pytest.mark.scenario
def test_who_listens_is_told_what_became_worse_and_not_every_figure(page):
    shown = page()
    # Viewers share a snapshot: the first one may be older than the scene, whose troubles are new then.
    playwright_api.expect(shown.locator("body")).to_contain_text("is blocked")
    shown.reload()
    playwright_api.expect(shown.locator("#live-link")).to_have_text("Live")
    said = shown.locator("#live-said")
    playwright_api.expect(said).to_have_text("")
    shown.wait_for_timeout(2_500)  # ages and figures go on meanwhile
    assert said.inner_text() == ""
    Reader.objects.filter(key="search").update(heartbeat_at=timezone.now() - timedelta(minutes=9))
    playwright_api.expect(said).to_contain_text("wrong: ")


def test_the_menu_offers_nothing_that_would_be_refused(page, transactional_db):
    User.objects.filter(username="boss").update(is_superuser=False)
    shown = page()
    for row, left in (("web-1", "History of the writer"), ("caches", "History of caches")):
        shown.get_by_role("button", name=f"More about {row}", exact=True).first.click()
        links = shown.locator(".live-menu a")
        playwright_api.expect(links.first).to_be_visible()
        assert left in links.all_inner_texts()
        assert [text for text in links.all_inner_texts() if not text.startswith("History of ")] == []
        shown.keyboard.press("Escape")
    assert shown.locator(".live-table th a").count() == 0, "names lead to pages that are refused"
