"""The admin's pages of jobs in a real Chromium: seen, queued and cancelled by hand, in the dark, on a phone."""

from __future__ import annotations

import pytest

from pipeline.models import Job, JobState
from tests.browsing import BROWSER, keep, log_in, luminance

playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = BROWSER
playwright_api.expect.set_options(timeout=30_000)
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True, "color_scheme": "dark"}
FIGURES = {"events": 1_204_000, "state groups": 90_210, "state rows": 1_500_400}


@pytest.fixture
def job(transactional_db):
    """One that is done, and tells figures."""
    after = {**FIGURES, "events": 204_000, "state rows": 400}
    return Job.objects.create(
        kind="purge history", state=JobState.DONE, asked_by="ann on desk", stage="", done=1_000_000, total=1_000_000,
        rate=12_345.0, unit="events", before=FIGURES, after=after, summary={"deleted": 1_000_000},
    )  # fmt: skip


def test_a_job_is_queued_and_cancelled_by_hand(job, boss, new_page, site):
    page = new_page(viewport={"width": 1280, "height": 1000})
    log_in(page)
    page.goto("/admin/pipeline/job/")
    page.get_by_role("link", name="Queue a job").click()
    page.select_option("#id_kind", "censor")
    page.fill("#id_arguments", '{"days": 7}')
    keep(page, "job-queue")
    page.get_by_role("button", name="Queue it").click()
    playwright_api.expect(page.get_by_text("is queued; manage.py runjobs carries it out")).to_be_visible()
    keep(page, "jobs")
    queued = Job.objects.get(kind="censor")
    page.goto(f"/admin/pipeline/job/{queued.pk}/change/")
    page.get_by_role("link", name="Cancel this job").click()
    page.get_by_role("button", name=f"Cancel job {queued.pk}").click()
    playwright_api.expect(page.get_by_text(f"Job {queued.pk}: cancelled.")).to_be_visible()
    queued.refresh_from_db()
    assert queued.state == JobState.CANCELLED


def test_the_figures_of_a_job_can_be_read_on_a_phone_in_the_dark(job, boss, new_page, site):
    page = new_page(**PHONE)
    log_in(page)
    page.goto(f"/admin/pipeline/job/{job.pk}/change/")
    cell = page.get_by_role("cell", name="-1,000,000", exact=True)
    playwright_api.expect(cell).to_be_visible()
    keep(page, "job-phone", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
    style = "[...document.querySelectorAll('td')].map(cell => getComputedStyle(cell).color)[0]"
    assert luminance(page, page.evaluate(style)) > luminance(
        page, page.evaluate("getComputedStyle(document.body).backgroundColor")
    )
