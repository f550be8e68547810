"""The admin's pages of rooms and events in a real Chromium, against a running site: seen, used, in the dark, on a phone."""

from __future__ import annotations

import pytest

from events.admin.links import event_url, room_url
from events.format.parsing import parse_line
from events.models import Event
from tests.support.browsing import BROWSER, keep, log_in, luminance
from tests.support.room_data import event_lines
from tests.support.stored_rooms import store_room

playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = BROWSER
playwright_api.expect.set_options(timeout=15_000)
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


def store(room, first_position):
    events = [parse_line(line) for line in event_lines(room)]
    store_room(events, first_position)
    return events[0].room_id


@pytest.fixture
def rooms(transactional_db):
    """Two real rooms: one with forks and soft-failed events, one with rejected ones."""
    return store("v12_power_fork", 2), store("v10_rejected", 1_000)


def colours(page, selector):
    """Luminance of background and text."""
    style = f"getComputedStyle(document.querySelector('{selector}'))"
    return [luminance(page, page.evaluate(f"{style}.{name}")) for name in ("backgroundColor", "color")]


def fits(page):
    return page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]


def outside(page, site):
    """What the page asks of other hosts, and what fails on it."""
    asked, errors = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    return lambda: ([url for url in asked if not url.startswith((site.address, "data:"))], errors)


def test_room_leads_to_its_events_and_they_explain_themselves(rooms, boss, new_page, site):
    page = new_page(viewport={"width": 1280, "height": 1100})
    found = outside(page, site)
    log_in(page)
    forks, rejected = rooms
    for name, room in (("forks", forks), ("rejected", rejected)):
        page.goto(room_url(room))
        playwright_api.expect(page.get_by_role("heading", name=room, exact=True)).to_be_visible()
        keep(page, f"room-{name}", full_page=True)
        keep(page, f"room-{name}-top", clip={**page.locator(".rp").bounding_box(), "height": 940})
        page.locator("svg[role=group]").scroll_into_view_if_needed()
        keep(page, f"room-{name}-graph")
    nodes = page.locator("svg[role=group] a")
    assert nodes.count() == 50
    page.get_by_role("link", name="rejected").first.click()
    playwright_api.expect(page.locator(".rp-word")).to_have_text("rejected")
    keep(page, "event-rejected", full_page=True)
    topic = Event.read.in_room(forks).accepted().state_events("m.room.power_levels").newest_first().first()
    page.goto(event_url(topic.stream_ordering))
    page.fill("input[name=user]", topic.sender)
    page.get_by_role("button", name="Explain").click()
    playwright_api.expect(page.locator(".rp-answer strong")).to_have_text("Shown.")
    page.get_by_text("Full state after the event").click()
    page.get_by_text("Redacted form").click()
    keep(page, "event-state", full_page=True)
    assert fits(page) and found() == ([], [])


def test_pages_are_readable_in_the_dark_and_on_a_phone(rooms, boss, new_page):
    forks, _ = rooms
    event = Event.read.in_room(forks).accepted().state_events("m.room.member").newest_first().first()
    for name, options in (("dark", {"color_scheme": "dark"}), ("phone", PHONE)):
        page = new_page(**options)
        log_in(page)
        for kind, url in (("room", room_url(forks)), ("event", event_url(event.stream_ordering))):
            page.goto(url)
            playwright_api.expect(page.locator(".rp h2").first).to_be_visible()
            keep(page, f"{kind}-{name}", full_page=True)
            plate, text = colours(page, ".rp section")
            assert (plate < 0.2 and text > 0.7) if name == "dark" else (plate > 0.8 and text < 0.3 and fits(page))
        page.goto(room_url(forks))
        page.locator("svg[role=group]").scroll_into_view_if_needed()
        keep(page, f"graph-{name}")
