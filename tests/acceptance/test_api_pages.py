"""The pages of the HTTP API in a real Chromium: a token is made, used and revoked by hand; the operations are read by keys."""

from __future__ import annotations

import json
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from replsite.api.models import ApiToken
from tests.support.browsing import BROWSER, keep, log_in

playwright_api = pytest.importorskip("playwright.sync_api", reason="no playwright here")
pytestmark = BROWSER
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True, "color_scheme": "dark"}


def user_of(site, token: str) -> str:
    with urlopen(Request(f"{site.address}/api/v1/token", headers={"Authorization": f"Bearer {token}"})) as answer:
        return json.load(answer)["user"]


def test_a_token_is_made_used_and_revoked_by_hand(boss, new_page, site):
    page = new_page(viewport={"width": 1280, "height": 900})
    log_in(page)
    page.goto("/admin/replsite_api/apitoken/")
    page.get_by_role("link", name="Make a token").click()
    page.get_by_label("name").fill("nightly <b>purge</b>")
    page.get_by_label("days").fill("7")
    keep(page, "api-make")
    page.get_by_role("button", name="Make it").click()
    text = page.locator(".api-token").inner_text()
    keep(page, "api-made")
    assert user_of(site, text) == "boss"
    page.get_by_role("link", name="All tokens").click()
    playwright_api.expect(page.get_by_text("nightly <b>purge</b>").first).to_be_visible()
    assert text not in page.content()
    keep(page, "api-tokens")
    page.goto(f"/admin/replsite_api/apitoken/{ApiToken.objects.get().pk}/change/")
    page.get_by_role("link", name="Revoke it").click()
    page.get_by_role("button", name="Revoke it").click()
    playwright_api.expect(page.get_by_text("It is revoked")).to_be_visible()
    with pytest.raises(HTTPError, match="401"):
        user_of(site, text)


@pytest.mark.scenario
def test_the_operations_are_read_by_keys_and_fit_a_phone(boss, new_page, site):
    for name, options in (("wide", {"viewport": {"width": 1280, "height": 900}}), ("phone", PHONE)):
        page = new_page(**options)
        log_in(page)
        page.goto("/api/")
        playwright_api.expect(page.locator("main.api h2")).to_be_visible()
        summary = page.locator("summary", has_text="/api/v1/rooms/{room_id}/purge_history")
        summary.focus()
        page.keyboard.press("Enter")
        playwright_api.expect(page.get_by_text("a time, or an age such as 30d")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
        keep(page, f"api-page-{name}", full_page=True)
        page.goto("/admin/replsite_api/apitoken/make/")
        assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
        keep(page, f"api-make-{name}")
