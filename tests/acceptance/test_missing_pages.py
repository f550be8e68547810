"""What is missing, on the live page in a browser: readers that failed or that nobody runs, parked facts, expected writers."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.utils import timezone

from streams.catalog.models import CacheInvalidation
from streams.models import ParkedFact, StoredCursor, StreamPosition
from tests.support.browsing import BROWSER, Site, keep, log_in
from tests.support.writing import append, ids, wait_for_linear

playwright_api = pytest.importorskip("playwright.sync_api", reason="no playwright here")
pytestmark = BROWSER
ERROR = "Reader 'billing': the handler failed 5 times on one fact (stream 'caches', token 4): ValueError: <b>no such order</b>"


@pytest.fixture
def site(start_manage, free_port, monkeypatch) -> Site:
    """A site that expects a writer."""
    monkeypatch.setenv("REPLSITE_EXPECTED_WRITERS", json.dumps({"caches": ["web-{n}"]}))
    return Site(start_manage, free_port)


@pytest.fixture
def troubled(boss) -> None:
    """Facts that nobody reads, and readers that ought to."""
    append(30)
    wait_for_linear(ids()[-1])
    long_ago = timezone.now() - timedelta(minutes=40)
    CacheInvalidation.objects.writable().update(received_at=long_ago)
    ended = {"stream": "caches", "ended_at": long_ago, "seen_at": long_ago, "host": "app-2", "process_id": 812}
    StoredCursor.objects.create(reader="billing", base=4, error=ERROR, **ended)
    StoredCursor.objects.create(reader="search", base=10, **ended)
    StoredCursor.objects.create(reader="mail", base=ids()[-1], **ended)
    for token in (7, 8):
        ParkedFact.objects.create(reader="mail", stream="caches", token=token, rows=[], attempts=5, traceback="",
                                  error="SMTPRecipientsRefused: no such mailbox", instance_name="master")  # fmt: skip
    StreamPosition.objects.filter(stream="caches").update(last_advance_at=long_ago)


def word_of(page, reader):
    return page.locator(f'#live-readers tbody[data-key="reader {reader}"] tr').first.locator(".live-status .live-text")


def open_page(new_page, **options):
    page = new_page(**options)
    log_in(page)
    playwright_api.expect(page.locator("#live-link")).to_have_text("Live")
    return page


@pytest.mark.scenario
def test_what_is_missing_is_shown_and_a_reader_is_forgotten_from_the_menu(troubled, new_page):
    page = open_page(new_page, viewport={"width": 1360, "height": 1000})
    playwright_api.expect(page.locator("#live-health-word")).to_have_text("wrong")
    for reader, word in (("billing", "failed"), ("search", "left behind"), ("mail", "parking")):
        playwright_api.expect(word_of(page, reader)).to_have_text(word)
    playwright_api.expect(page.locator("#live-readers")).to_contain_text("ValueError: <b>no such order</b>")
    playwright_api.expect(page.locator("#live-readers")).to_contain_text("2 parked")
    playwright_api.expect(page.locator("#live-streams")).to_contain_text("web-{n}")
    playwright_api.expect(page.locator("#live-streams")).to_contain_text("missing")
    page.mouse.move(0, 0)
    keep(page, "missing", full_page=True)
    page.locator('#live-readers tbody[data-key="reader search"] .live-more').first.click()
    menu = page.locator(".live-menu")
    playwright_api.expect(menu).to_contain_text("manage.py streams forget search")
    menu.get_by_text("Forget it …").click()
    playwright_api.expect(page.locator("body")).to_contain_text("caches at 10")
    keep(page, "forget")
    page.get_by_role("button", name="Forget it").click()
    playwright_api.expect(page.locator("body")).to_contain_text("search is forgotten")
    playwright_api.expect(page.locator('#live-readers tbody[data-key="reader search"]')).to_have_count(0)
    assert sorted(StoredCursor.objects.values_list("reader", flat=True)) == ["billing", "mail"]


@pytest.mark.scenario
def test_on_a_phone_and_in_the_dark_nothing_is_wider_than_the_screen(troubled, new_page):
    for name, options in (
        ("missing-phone", {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}),
        ("missing-dark", {"viewport": {"width": 1360, "height": 1000}, "color_scheme": "dark"}),
    ):
        page = open_page(new_page, **options)
        playwright_api.expect(word_of(page, "billing")).to_have_text("failed")
        keep(page, name, full_page=True)
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, name
        page.goto("/admin/actions/forget/?name=billing")
        playwright_api.expect(page.locator("body")).to_contain_text("no such order")
        keep(page, f"{name}-forget")
