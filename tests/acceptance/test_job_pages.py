"""The admin's pages of jobs in a real Chromium: seen, queued and cancelled by hand, in the dark, on a phone."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from django.contrib.admin.models import LogEntry

from events.sending.send import create_room
from pipeline.archive.format import read_manifest, write_manifest
from pipeline.models import Job, JobState
from streams.jobs.run import run_job
from tests.support.accessibility import serious_findings
from tests.support.browsing import BROWSER, keep, log_in, luminance

playwright_api = pytest.importorskip("playwright.sync_api", reason="no playwright here")
pytest.importorskip("axe_playwright_python", reason="no axe-playwright-python here")
pytestmark = BROWSER
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


@pytest.mark.scenario
def test_a_purge_is_tried_confirmed_and_cancelled_by_hand(job, boss, new_page, site, run_manage):
    page = new_page(viewport={"width": 1280, "height": 1000})
    log_in(page)
    page.goto("/admin/pipeline/job/")
    page.get_by_role("link", name="Queue a job").click()
    page.get_by_role("link", name="purge orphans").click()
    keep(page, "job-queue")
    page.get_by_role("button", name="Queue it").click()
    playwright_api.expect(page.get_by_text("It is a dry run and changes nothing")).to_be_visible()
    dry = Job.objects.get(kind="purge orphans")
    assert dry.arguments["dry_run"] is True
    assert run_manage("runjobs", "--once").returncode == 0
    page.goto(f"/admin/pipeline/job/{dry.pk}/change/")
    page.get_by_role("link", name="Carry it out").click()
    playwright_api.expect(page.get_by_role("heading", name="Carry out purge orphans?")).to_be_visible()
    playwright_api.expect(page.get_by_role("heading", name=f"What dry run {dry.pk} has shown")).to_be_visible()
    keep(page, "job-confirm")
    page.get_by_role("button", name="Carry out purge orphans").click()
    playwright_api.expect(page.get_by_text("is queued; manage.py runjobs carries it out")).to_be_visible()
    queued = Job.objects.get(confirmed_from=dry.pk)
    assert (queued.state, queued.arguments["dry_run"]) == (JobState.QUEUED, False)
    page.get_by_role("link", name="Cancel this job").click()
    page.get_by_role("button", name=f"Cancel job {queued.pk}").click()
    playwright_api.expect(page.get_by_text(f"Job {queued.pk}: cancelled.")).to_be_visible()
    queued.refresh_from_db()
    assert queued.state == JobState.CANCELLED
    assert LogEntry.objects.filter(user=boss).count() == 4, "logged in, queued, confirmed, cancelled"


#: What is typed into without a frame around it.
_FRAMELESS = """[...document.querySelectorAll('main input:not([type=hidden]), main select, main textarea')]
    .filter((one) => one.offsetHeight < 16 || (one.type !== 'checkbox' && parseFloat(getComputedStyle(one).borderTopWidth) < 1))
    .map((one) => one.name)"""


@pytest.mark.scenario
def test_the_form_of_a_job_says_what_it_is_for_and_its_fields_are_seen(boss, new_page, site):
    for options in ({"viewport": {"width": 1280, "height": 1000}}, PHONE):
        page = new_page(**options)
        log_in(page)
        for kind in ("resync", "export", "purge history"):
            page.goto(f"/admin/pipeline/job/queue/?kind={kind.replace(' ', '+')}")
            playwright_api.expect(page.get_by_role("heading", name=f"Queue {kind}", exact=True)).to_be_visible()
            assert page.locator("main input:not([type=hidden])").count()
            assert page.evaluate(_FRAMELESS) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
        keep(page, f"job-form-{'phone' if options is PHONE else 'wide'}", full_page=True)


@pytest.mark.scenario
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


@pytest.mark.scenario
def test_a_job_with_long_names_and_the_list_of_jobs_fit_a_phone(job, boss, new_page, site):
    path = "/srv/rooms/" + "a_folder_with_a_long_name/" * 5 + "events.jsonl.gz"
    Job.objects.update(arguments={"sources": [path]})
    page = new_page(**PHONE)
    log_in(page)
    page.goto(f"/admin/pipeline/job/{job.pk}/change/")
    playwright_api.expect(page.get_by_role("cell", name="-1,000,000", exact=True)).to_be_visible()
    assert page.evaluate("document.scrollingElement.scrollWidth") <= PHONE["viewport"]["width"]
    page.goto("/admin/pipeline/job/")
    button = page.get_by_role("link", name="Queue a job")
    playwright_api.expect(button).to_be_visible()
    assert button.evaluate("(link) => link.getClientRects().length") == 1, "on one line"
    label = page.locator("#result_list td[data-label=progress]").first
    assert label.evaluate("(cell) => cell.scrollHeight <= cell.clientHeight"), "nothing of a card is cut"
    title = page.locator("#header-inner h1")
    assert title.inner_text().strip() == "Jobs", "where one is, and not the way there"
    assert title.evaluate("(line) => line.scrollWidth <= line.clientWidth")


@pytest.fixture
def written(transactional_db):
    """The archive of a room with a long name, one of a room that is gone, an unfinished one, and an export."""
    room = create_room("@ann:site")
    room.set_state("@ann:site", "m.room.name", {"name": "The kitchen of the house at the end of the road"})
    top = Path(os.environ["REPLSITE_DATA_DIR"])
    archive = Path(run_job("archive", {"room": room.room_id, "folder": "."}, stream=StringIO())["folder"])
    gone = archive.with_name("gone-example-org-5aed758959a6-3")
    gone.mkdir()
    write_manifest(gone, replace(read_manifest(archive), room_id="!gone:example.org"))
    unfinished = archive.with_name("other-example-org-5aed758959a6-4.partial")
    unfinished.mkdir()
    export = top / "pipeline" / "exports" / "nightly"
    (export / "events").mkdir(parents=True)
    (export / "events" / "part.parquet").write_bytes(b"x" * 123_456)
    told = {"made_at_ms": 1_795_312_800_000, "rooms": None, "tables": {"events": {"rows": 12_345}}}
    (export / "export.json").write_text(json.dumps(told))
    yield [archive, gone, unfinished, export]
    for path in (archive, gone, unfinished, export):
        shutil.rmtree(path)


@pytest.mark.scenario
def test_the_list_of_archives_is_read_on_a_phone_in_the_dark(written, boss, new_page, site):
    for options in ({"viewport": {"width": 1360, "height": 700}}, PHONE):
        page = new_page(**options)
        log_in(page)
        page.goto("/admin/archives/")
        for path in written:
            playwright_api.expect(page.get_by_role("link", name=f"Remove … {path.name}", exact=True)).to_be_visible()
        playwright_api.expect(page.get_by_text("not in the database any more")).to_have_count(1)
        keep(page, f"archives-{'phone' if options is PHONE else 'wide'}", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
        assert serious_findings(page) == []
