"""The admin's pages of rooms and events in a real Chromium, against a running site: seen, used, in the dark, on a phone."""

from __future__ import annotations

import pytest

from events.admin.links import event_url, room_url
from events.models import Event
from tests.oracle.answers import parsed
from tests.support.browsing import BROWSER, keep, log_in, luminance
from tests.support.made_rooms import ALICE, BOB, MadeRoom
from tests.support.stored_rooms import store_room

playwright_api = pytest.importorskip("playwright.sync_api", reason="no playwright here")
pytestmark = BROWSER
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


def store(room, first_position):
    events = parsed(room)
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
        playwright_api.expect(page.locator(".rp dd", has_text=room).first).to_be_visible()
        keep(page, f"room-{name}", full_page=True)
        keep(page, f"room-{name}-top", clip={**page.locator(".rp").bounding_box(), "height": 940})
        page.locator("#rp-last").scroll_into_view_if_needed()
        keep(page, f"room-{name}-last")
    rows = page.get_by_role("region", name="Table of the last events").locator("tbody tr")
    assert rows.count() == 50
    rows.filter(has_text=", rejected").locator("a").first.click()
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


@pytest.mark.scenario
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
            where = page.locator("#header-inner h1 > .truncate").last
            cut = "title => title.scrollWidth > title.clientWidth || title.scrollHeight > title.clientHeight + 1"
            assert name == "dark" or page.locator("#header-inner h1 > .truncate:visible").count() == 1
            assert not where.evaluate(cut), f"the title of the {kind} is cut"
            plate, text = colours(page, ".rp section")
            assert (plate < 0.2 and text > 0.7) if name == "dark" else (plate > 0.8 and text < 0.3 and fits(page))
        page.goto(room_url(forks))
        page.locator("#rp-last").scroll_into_view_if_needed()
        keep(page, f"last-{name}")


def talk(room_id, messages):
    """A room with a name, members, levels and messages."""
    made = MadeRoom(room_id=room_id)
    made.state("m.room.name", "", {"name": "The Lobby"})
    made.state("m.room.canonical_alias", "", {"alias": "#lobby:a.test"})
    made.topic("Everything that has no room of its own")
    made.state("m.room.power_levels", "", {"users": {ALICE: 100, BOB: 50}, "events": {"m.room.name": 75}})
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    made.member(BOB, "join")
    for number in range(messages):
        sender = (ALICE, BOB)[number % 2]
        body = f"message number {number}"
        made.send({"type": "m.room.message", "sender": sender, "content": {"msgtype": "m.text", "body": body}})
    store_room(made.events, 2)
    return made


@pytest.mark.scenario
def test_a_room_is_found_by_its_name_and_read_to_its_beginning(transactional_db, boss, new_page, site):
    made = talk("!lobby:a.test", 120)
    other = MadeRoom(room_id="!other:a.test")
    other.message(prev=["$gone"])
    store_room(other.events, 5_000)
    page = new_page(viewport={"width": 1280, "height": 1000})
    found = outside(page, site)
    log_in(page)
    page.goto("/admin/events/room/")
    keep(page, "rooms")
    page.fill("input[name=q]", "lobb")
    page.keyboard.press("Enter")
    playwright_api.expect(page.get_by_text("!other:a.test")).to_have_count(0)
    page.get_by_role("link", name="The Lobby").click()
    playwright_api.expect(page.get_by_role("heading", name="The Lobby", exact=True).last).to_be_visible()
    keep(page, "room-lobby", full_page=True)
    keep(page, "room-top", clip={**page.locator(".rp").bounding_box(), "height": 940})
    rows = page.locator("#rp-timeline-rows > tr")
    playwright_api.expect(rows).to_have_count(50)
    for count in (100, len(made.events)):
        page.locator("#rp-older").focus()
        page.keyboard.press("Enter")
        playwright_api.expect(rows).to_have_count(count)
    playwright_api.expect(page.locator("#rp-older")).to_have_count(0)
    playwright_api.expect(rows.last).to_contain_text("m.room.create")
    page.fill("#rp-timeline ~ form input[name=user]", BOB)
    page.fill("#rp-timeline ~ form input[name=type]", "m.room.message")
    page.get_by_role("button", name="Show").click()
    playwright_api.expect(page.locator(".rp-answer")).to_contain_text("joined to the room")
    playwright_api.expect(rows.first).to_contain_text("The user was joined at the event.")
    assert f"user={BOB.replace('@', '%40').replace(':', '%3A')}" in page.url
    keep(page, "room-as-bob", full_page=True)
    page.goto("/admin/events/event/search/")
    page.fill("input[name=sender]", BOB)
    page.get_by_role("button", name="Search").click()
    playwright_api.expect(page.locator(".rp-timeline tbody tr")).to_have_count(50)
    keep(page, "event-search", full_page=True)
    assert fits(page) and found() == ([], [])


@pytest.mark.scenario
def test_rooms_and_search_on_a_phone_and_in_the_dark(transactional_db, boss, new_page):
    talk("!lobby:a.test", 10)
    for name, options in (("dark", {"color_scheme": "dark"}), ("phone", PHONE)):
        page = new_page(**options)
        log_in(page)
        for kind, url in (
            ("rooms", "/admin/events/room/"),
            ("lobby", f"{room_url('!lobby:a.test')}?user={BOB}"),
            ("search", "/admin/events/event/search/?type=m.room.message"),
        ):
            page.goto(url)
            playwright_api.expect(page.get_by_text("The Lobby").last).to_be_visible()
            keep(page, f"{kind}-{name}", full_page=True)
            assert name == "dark" or fits(page), kind
            if kind == "lobby":
                assert page.locator("#header-inner h1").inner_text().splitlines()[-1] == "The Lobby"
