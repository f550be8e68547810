"""The page of statistics in a real Chromium: plots and tables are seen, in the light, in the dark and on a phone."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from pipeline.models import BatchLedger, RoomDay, RoomStatistics, ServerStatistics
from tests.support.browsing import BROWSER, keep, log_in, luminance

playwright_api = pytest.importorskip("playwright.sync_api", reason="no playwright here")
pytestmark = BROWSER
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
LONG = "!aVeryLongRoomNameThatIsNotBrokenAnywhere" + "x" * 60 + ":example.org"


@pytest.fixture
def history(transactional_db):
    """Three months of a server."""
    now = timezone.now()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    BatchLedger.objects.create(query="statistics", batch_id=1, offsets={})
    ServerStatistics.objects.bulk_create(
        ServerStatistics(
            step_seconds=86400, at=midnight - timedelta(days=age), events=900 + 37 * (age * 7 % 23), messages=700 + age,
            state_events=90, rejected=age % 3, history=0, active_rooms=40, active_users=120 + age % 9, active_local_users=12,
            monthly_local_users=20, rooms=200 - age, joined=4_000 - age, joined_local=300, state_entries=9_000 - 10 * age,
            state_groups=800, state_deltas=2_500, state_bytes=10**7 - 10**4 * age, event_bytes=10**8, database_bytes=10**9,
        )
        for age in range(90)
    )  # fmt: skip
    for number, name in enumerate([LONG, *(f"!room{number}:example.org" for number in range(9))]):
        RoomStatistics.objects.create(
            room_id=name, events=5_000 - 500 * number, messages=10, joined=number, state_entries=40, last_event_at=now
        )
        for age in range(7):
            RoomDay.objects.create(day=(now - timedelta(days=age)).date(), room_id=name, events=50 - number, history=0)


SCREENS = {"light": {"viewport": {"width": 1280, "height": 1000}}, "dark": {"color_scheme": "dark"}, "phone": PHONE}


def test_page_is_readable(history, boss, new_page):
    for name, options in SCREENS.items():
        page = new_page(**options)
        errors = []
        page.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
        log_in(page)
        page.goto("/admin/statistics/")
        playwright_api.expect(page.locator('.plot[aria-label="Events per day"] canvas')).to_be_visible()
        playwright_api.expect(page.get_by_role("link", name=LONG).first).to_be_visible()
        keep(page, f"statistics-{name}", full_page=True)
        style = "getComputedStyle(document.querySelector('.history-plots figure'))"
        plate = luminance(page, page.evaluate(f"{style}.backgroundColor"))
        assert plate < 0.2 if name == "dark" else plate > 0.8
        assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
        page.get_by_role("link", name="Members", exact=True).click()
        playwright_api.expect(page.locator(".statistics-table tbody a").first).to_have_text("!room8:example.org")
        assert not errors
