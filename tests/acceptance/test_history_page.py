"""The plots of history in a real browser: drawn, with tooltips by pointer and keys, marks, any range, light and dark."""

from __future__ import annotations

import re
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from django.utils import timezone

from streams.models import Sample, StatusChange
from tests.support.browsing import BROWSER, keep, log_in

playwright_api = pytest.importorskip("playwright.sync_api", reason="no playwright here")
pytestmark = BROWSER
HOSTILE = "<img src=x onerror=document.title='x'>"
PAGE = "/admin/history/?stream=caches"
#: The pixels of a canvas that are about as blue as a line.
BLUE = """(holder) => {
    const canvas = holder.querySelector("canvas"), context = canvas.getContext("2d");
    const data = context.getImageData(0, 0, canvas.width, canvas.height).data;
    let found = 0;
    for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 200 && data[i + 2] > data[i] + 60) found++;
    return found;
}"""


def sample(at, waiting, reader="mailer", **more):
    row = {"step_seconds": 15, "position": 100, "seconds": 1, "severity": 0, "word": "current"} | more
    return Sample(stream="caches", reader=reader, at=at, waiting=waiting, **row)


@pytest.fixture
def recorded(transactional_db):
    """Half an hour of a reader with a gap, one point alone, and of everything that is marked."""
    now = timezone.now().replace(microsecond=0)
    steps = [*range(8, 60), *range(80, 120)]
    Sample.objects.bulk_create(sample(now - timedelta(seconds=15 * step), 5 + step % 7) for step in steps)
    Sample.objects.bulk_create(
        sample(now - timedelta(seconds=15 * step), 40, "", position=10 * (300 - step)) for step in steps
    )
    Sample.objects.create(
        step_seconds=15, stream="caches", reader="lonely", at=now - timedelta(minutes=9), position=7, waiting=3,
        seconds=0, severity=0, word="current",
    )  # fmt: skip
    for minutes, about, word in (
        (10, {"reader": "mailer", "stream": "caches"}, HOSTILE),
        (12, {"writer": "web-1", "stream": "caches"}, "retired"),
        (14, {}, "version 1.1"),
        (20, {}, "database away"),
        (16, {}, "database back"),
    ):
        StatusChange.objects.create(
            at=now - timedelta(minutes=minutes), was="x", word=word, severity=2, sentence="Why.", **about
        )


@pytest.fixture
def shown(new_page, boss, recorded):
    def show(address=PAGE, **options):
        page = new_page(**options)
        log_in(page)
        page.goto(address)
        playwright_api.expect(page.locator(".plot .uplot").first).to_be_visible()
        return page

    return show


def plot_of(page, name):
    return page.locator(f'.plot[aria-label="{name}"]')


def test_plots_are_drawn_with_words_below_and_a_single_point_can_be_seen(shown):
    page = shown()
    assert page.locator(".plot .uplot").count() == 4 + 2 * 3
    assert plot_of(page, "Lag in facts of mailer").evaluate(BLUE) > 300
    assert 8 < plot_of(page, "Lag in facts of lonely").evaluate(BLUE) < 300
    assert "at most 11" in page.locator("figure", has=plot_of(page, "Lag in facts of mailer")).inner_text()
    keep(page, "history-light", full_page=True)


@pytest.mark.scenario
def test_the_pointer_shows_values_and_marks_as_text(shown):
    page = shown(viewport={"width": 1360, "height": 1000})
    plot = plot_of(page, "Lag in facts of mailer")
    plot.scroll_into_view_if_needed()
    area, tip = plot.locator(".u-over"), plot.locator(".plot-tip")
    box = area.bounding_box()

    def point(minutes):
        page.mouse.move(box["x"] + box["width"] * (60 - minutes) / 60, box["y"] + 40)
        playwright_api.expect(tip).to_be_visible()
        return tip.inner_text()

    assert "UTC: " in point(6)
    assert HOSTILE in point(10)
    assert "version 1.1" in point(14)
    keep(page, "history-tip")
    assert "database away" in point(18)
    assert page.title().startswith("History of caches")
    page.mouse.move(0, 0)
    playwright_api.expect(tip).to_be_hidden()


@pytest.mark.scenario
def test_keys_move_along_the_line(shown):
    page = shown()
    plot = plot_of(page, "Lag in facts of mailer")
    tip = plot.locator(".plot-tip")
    plot.focus()
    page.keyboard.press("End")
    playwright_api.expect(tip).to_contain_text("UTC: 6")
    last = tip.inner_text()
    page.keyboard.press("ArrowLeft")
    playwright_api.expect(tip).not_to_have_text(last)
    page.keyboard.press("Home")
    playwright_api.expect(tip).to_contain_text("UTC: ")
    page.keyboard.press("Escape")
    playwright_api.expect(tip).to_be_hidden()


@pytest.mark.scenario
def test_a_drag_and_the_form_show_a_range_that_can_be_shared(shown):
    page = shown(viewport={"width": 1360, "height": 1000})
    box = plot_of(page, "Position").locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 50, steps=4)
    with page.expect_navigation():
        page.mouse.up()
    asked = parse_qs(urlsplit(page.url).query)
    assert set(asked) == {"stream", "from", "until"}
    assert page.get_by_label("From (UTC)").input_value()[:16] == asked["from"][0][:16]
    page.get_by_label("From (UTC)").fill("2026-01-01T10:00:00")
    page.get_by_role("button", name="Show").click()
    playwright_api.expect(page).to_have_url(re.compile("from=2026-01-01T10"))
    playwright_api.expect(page.locator(".plot .uplot").first).to_be_visible()
    page.get_by_role("link", name="Last day").click()
    playwright_api.expect(page).to_have_url(re.compile("span=day$"))


@pytest.mark.parametrize(("name", "options"), [
    ("history-dark", {"color_scheme": "dark", "viewport": {"width": 1360, "height": 1000}}),
    ("history-phone", {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}),
])  # fmt: skip
def test_it_fits_in_the_dark_and_on_a_phone(shown, name, options):
    page = shown(**options)
    keep(page, name, full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    widths = page.locator(".plot").evaluate_all(
        "all => all.map((one) => [one.clientWidth, one.querySelector('canvas').clientWidth])"
    )
    assert all(0 < canvas <= room for room, canvas in widths)


@pytest.mark.scenario
def test_what_happened_is_listed_and_filtered_by_keys_alone(new_page, boss):
    page = new_page(viewport={"width": 1360, "height": 900})
    log_in(page)
    page.goto("/admin/happened/")
    playwright_api.expect(page.locator(".happened tbody tr")).to_have_count(1)
    playwright_api.expect(page.locator(".happened")).to_contain_text("Logged in from 127.0.0.1.")
    keep(page, "happened")
    page.get_by_role("textbox", name="Who").focus()
    page.keyboard.type("nobody")
    page.keyboard.press("Enter")
    playwright_api.expect(page.locator(".live-nothing")).to_have_text("Nothing else was found.")
    with page.expect_download() as download:
        page.get_by_role("link", name="Show all").click()
        page.get_by_role("link", name="As CSV").click()
    assert download.value.suggested_filename == "what-happened.csv"
    for name, options in (
        ("happened-dark", {"color_scheme": "dark"}),
        ("happened-phone", {"viewport": {"width": 390, "height": 844}, "is_mobile": True}),
    ):
        other = new_page(**options)
        log_in(other)
        other.goto("/admin/happened/")
        assert other.evaluate("document.documentElement.scrollWidth <= innerWidth")
        keep(other, name)
