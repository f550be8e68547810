"""An operator who has only the page finds and mends a trouble.

A blocked stream, a dead consumer, dead letters, a room that disagrees with itself, a full disk, and a purge asked for by the
name of a room.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import time
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.utils import timezone

from events.integrity.repair import check_room
from events.models import CurrentState, Event, Room
from pipeline.models import Job, JobState
from streams.catalog.models import CacheInvalidation
from streams.follow import Handler, OnFailure
from streams.jobs.run import queue_job, run_job
from streams.models import ParkedFact, StoredCursor
from streams.runtime.amounts import byte_size
from tests.support.browsing import BROWSER, keep, log_in
from tests.support.effects import running
from tests.support.made_rooms import ALICE, MadeRoom
from tests.support.persisted_rooms import incoming, persist
from tests.support.writing import append, held_open, ids, wait_for_linear

playwright_api = pytest.importorskip("playwright.sync_api", reason="no playwright here")
pytestmark = BROWSER
#: Pages that an operator opens from the first look until the trouble is gone.
MOST_PAGES = 12
PHONE = {"width": 390, "height": 844}


@pytest.fixture
def opened():
    """Addresses of the pages that were opened."""
    return []


@pytest.fixture
def page(new_page, boss, opened):
    """``page(**options)``: the live page of an operator, connected."""

    def make(**options):
        made = new_page(**{"viewport": {"width": 1360, "height": 1000}, **options})
        made.on("framenavigated", lambda frame: opened.append(frame.url))
        log_in(made)
        playwright_api.expect(made.locator("#live-link")).to_have_text("Live")
        return made

    return make


@pytest.fixture
def few_pages(opened, record_property):
    """Fails a test whose trouble took too many pages to mend. Records the seconds; they have no limit."""
    began = time.monotonic()
    yield
    record_property("mended_seconds", round(time.monotonic() - began, 1))
    assert len(opened) <= MOST_PAGES


def health(page):
    return page.locator("#live-health-word")


def test_a_blocked_stream_is_freed(page, site, monkeypatch, few_pages):
    with held_open():
        before = ids()
        shown = page()
        playwright_api.expect(health(shown)).to_have_text("wrong")
        playwright_api.expect(shown.locator("#live-health-sentence")).to_contain_text("Stream caches is blocked")
        keep(shown, "day-blocked")
        shown.locator("#live-health-sentence").get_by_role("link", name="End what holds it back").click()
        playwright_api.expect(shown.get_by_text("transaction", exact=False).first).to_be_visible()
        keep(shown, "day-blocked-asks")
        shown.get_by_role("button", name="End them").click()
        playwright_api.expect(shown.get_by_text("ended; what they had written is rolled back")).to_be_visible()
        playwright_api.expect(health(shown)).not_to_have_text("wrong")
    assert ids() == before


@pytest.fixture
def old_facts():
    """Facts that were appended long ago: the time."""
    append(30)
    wait_for_linear(ids()[-1])
    long_ago = timezone.now() - timedelta(minutes=40)
    CacheInvalidation.objects.writable().update(received_at=long_ago)
    return long_ago


def leave_behind(long_ago):
    """A consumer whose process ended long ago, with facts that it has not handled. From now on the site is wrong."""
    StoredCursor.objects.create(
        reader="search", stream="caches", base=10, ended_at=long_ago, seen_at=long_ago, host="app-2", process_id=812
    )


@pytest.fixture
def left_behind(old_facts):
    """One that is there already."""
    leave_behind(old_facts)


def test_the_first_answer_after_a_trouble_makes_the_page_red(old_facts, page):
    """A page asks once a second, and an answer is made of what the database has, or had ``FRESH_SECONDS`` ago."""
    shown, answers = page(), []
    playwright_api.expect(health(shown)).to_have_text("well")
    shown.on("response", lambda answer: answers.append(answer) if answer.url.endswith("/live/data/") else None)
    leave_behind(old_facts)
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (since,) = cursor.fetchone()
    playwright_api.expect(health(shown)).to_have_text("wrong")
    words = []
    while not words:
        shown.wait_for_event("response")
        word = "well"
        for answer in answers:
            if answer.status == 200:  # 304: nothing changed
                word = re.search('data-word="([a-z]+)"', answer.json()["state"])[1]
            if datetime.fromisoformat(answer.headers["as-of"]) > since:
                words.append(word)
    assert set(words) == {"wrong"}


@pytest.mark.speed
def test_the_page_is_red_within_two_seconds(old_facts, page, record_property):
    shown, seconds = page(), []
    for _ in range(5):
        playwright_api.expect(health(shown)).to_have_text("well")
        began = time.monotonic()
        leave_behind(old_facts)
        shown.wait_for_function("document.querySelector('#live-health-word').textContent === 'wrong'")
        seconds.append(round(time.monotonic() - began, 2))
        StoredCursor.objects.all().delete()
    record_property("red_seconds", seconds)
    assert statistics.median(seconds) < 2, seconds


@pytest.mark.parametrize("way", ["Forget it", "Resync it"])
def test_a_dead_consumer_is_forgotten_or_passes_over_what_it_missed(left_behind, page, few_pages, way):
    shown = page()
    playwright_api.expect(health(shown)).to_have_text("wrong")
    playwright_api.expect(shown.locator("#live-health-sentence")).to_contain_text("search on caches is left behind")
    keep(shown, "day-left-behind")
    shown.locator("#live-health-sentence").get_by_role("link", name=way).click()
    playwright_api.expect(shown.get_by_text("caches at 10")).to_be_visible()
    shown.get_by_role("button").filter(has_text="Forget it" if way == "Forget it" else "Pass over them").click()
    playwright_api.expect(health(shown)).to_have_text("well")
    found = list(StoredCursor.objects.values_list("base", flat=True))
    assert found == ([] if way == "Forget it" else [ids()[-1]])


@pytest.fixture
def dead_letters():
    """Two dead letters of a reader whose handlers the site does not have."""
    append(9)
    wait_for_linear(ids()[-1])
    now = timezone.now()
    StoredCursor.objects.create(reader="mail", stream="caches", base=ids()[-1], ended_at=now, seen_at=now)
    for token in (7, 8):
        ParkedFact.objects.create(
            reader="mail", stream="caches", token=token, rows=[["cache", ["@a:b"], 0]], attempts=5, instance_name="master",
            error="SMTPRecipientsRefused: <b>no such mailbox</b>", traceback="Traceback (most recent call last):\n  mail.py",
        )  # fmt: skip


def test_dead_letters_are_found_and_retried_by_the_process_of_their_reader(dead_letters, page, few_pages):
    sent, refused = [], {8}

    def send(chunk):
        for fact in chunk:
            if fact.token in refused:
                raise ValueError("still no such mailbox")
            sent.append(fact.token)

    shown = page()
    retries = shown.locator("#parked-retries")
    playwright_api.expect(health(shown)).to_have_text("look")
    shown.locator("#live-health-sentence").get_by_role("link", name="Retry its dead letters").click()
    playwright_api.expect(
        shown.get_by_text("The process does not run: they are retried when it starts")
    ).to_be_visible()
    keep(shown, "day-retry-asks")
    shown.get_by_role("button", name="Retry").click()
    playwright_api.expect(retries).to_contain_text("boss asked at")
    playwright_api.expect(retries).to_contain_text("they are retried when it starts (manage.py runhandlers mail)")
    keep(shown, "day-retry-waits")
    with running(Handler("caches", "mail", send, on_failure=OnFailure.PARK), name="mail"):
        playwright_api.expect(retries).to_contain_text("Result: 1 handled, 1 failed again, 1 left.")
        playwright_api.expect(shown.get_by_text("ValueError: still no such mailbox").first).to_be_visible()
        playwright_api.expect(shown.get_by_role("link", name="Retry … caches 7")).to_have_count(0)
        keep(shown, "day-retried")
        refused.clear()  # its cause is mended
        shown.get_by_role("link", name="Retry … caches 8").click()
        playwright_api.expect(shown.get_by_text("The process runs, and begins within seconds.")).to_be_visible()
        shown.get_by_role("button", name="Retry").click()
        playwright_api.expect(retries).to_contain_text("Result: 1 handled, 0 failed again, 0 left.")
        playwright_api.expect(shown.get_by_text("No fact of this reader is put aside.")).to_be_visible()
        shown.get_by_role("link", name="Back to the live page").click()
        playwright_api.expect(health(shown)).to_have_text("well")
    assert sent == [7, 8]


@pytest.mark.scenario
def test_dead_letters_are_read_and_dropped(dead_letters, page, few_pages):
    shown = page()
    playwright_api.expect(health(shown)).to_have_text("look")
    shown.locator("#live-health-sentence").get_by_role("link", name="Its dead letters … mail", exact=True).click()
    playwright_api.expect(shown.get_by_text("<b>no such mailbox</b>").first).to_be_visible()
    shown.get_by_text("Traceback", exact=True).first.click()
    playwright_api.expect(shown.get_by_text("mail.py").first).to_be_visible()
    keep(shown, "day-dead-letters")
    shown.get_by_role("link", name="Drop … caches 7").click()
    shown.get_by_role("button", name="Drop").click()
    playwright_api.expect(shown.get_by_text("1 dead letter of mail dropped.")).to_be_visible()
    shown.get_by_role("link", name="Drop all …").click()
    shown.get_by_role("button", name="Drop").click()
    playwright_api.expect(shown.get_by_text("No fact of this reader is put aside.")).to_be_visible()
    shown.get_by_role("link", name="Back to the live page").click()
    playwright_api.expect(health(shown)).to_have_text("well")
    assert not ParkedFact.objects.exists()


def test_a_traceback_is_read_by_its_lines(dead_letters, page):
    shown = page()
    shown.goto(f"/admin/streams/parkedfact/{ParkedFact.objects.earliest('token').pk}/change/")
    trace = shown.get_by_text("Traceback (most recent call last)")
    assert trace.inner_text().splitlines() == ["Traceback (most recent call last):", "  mail.py"]
    keep(shown, "dead-letter", full_page=True)
    shown.set_viewport_size(PHONE)
    keep(shown, "dead-letter-phone")


@pytest.mark.scenario
def test_chosen_dead_letters_are_dropped_together(dead_letters, page, few_pages):
    shown = page()
    shown.locator("#live-health-sentence").get_by_role("link", name="Its dead letters … mail", exact=True).click()
    shown.get_by_label("Choose all of this page").check()
    shown.get_by_label("Choose caches 8").uncheck()
    keep(shown, "day-chosen")
    shown.set_viewport_size(PHONE)
    keep(shown, "day-chosen-phone")
    shown.get_by_role("button", name="Drop the chosen …").click()
    playwright_api.expect(shown.get_by_text("1 fact of caches:")).to_be_visible()
    shown.get_by_role("button", name="Drop", exact=True).click()
    playwright_api.expect(shown.get_by_text("1 dead letter of mail dropped.")).to_be_visible()
    assert [one.token for one in ParkedFact.objects.all()] == [8]


@pytest.mark.scenario
def test_a_reader_is_replayed_from_a_time_after_a_preview(page):
    since = timezone.now() - timedelta(minutes=30)
    append(30)
    wait_for_linear(ids()[-1])
    CacheInvalidation.objects.filter(stream_id__lt=ids()[12]).writable().update(received_at=since - timedelta(hours=1))
    now = timezone.now()
    StoredCursor.objects.create(reader="mail", stream="caches", base=ids()[-1], ended_at=now, seen_at=now)
    shown = page()
    row = shown.locator('#live-readers tbody[data-key="reader mail"] .live-head')
    row.locator(".live-more").click()
    row.locator(".live-menu").get_by_role("link", name="Replay it …").click()
    playwright_api.expect(shown.get_by_label("Since (UTC)")).to_be_visible()
    keep(shown, "day-replay-asks")
    shown.get_by_label("Since (UTC)").fill(f"{since:%Y-%m-%dT%H:%M:%S}")
    shown.get_by_role("button", name="Preview").click()
    playwright_api.expect(shown.get_by_text(f"18 facts, from {ids()[12]}, inserted")).to_be_visible()
    keep(shown, "day-replay")
    shown.set_viewport_size(PHONE)
    keep(shown, "day-replay-phone")
    shown.emulate_media(color_scheme="dark")
    keep(shown, "day-replay-dark")
    shown.get_by_role("button", name="Handle them again").click()
    playwright_api.expect(shown.get_by_text("mail is replayed, --since")).to_be_visible()
    assert StoredCursor.objects.get().base == ids()[12] - 1


@pytest.fixture
def lobby(transactional_db):
    """A room with a name, some messages, and another room beside it."""
    made = MadeRoom("10", "!k3J9:a.test", ruled=True)
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}})
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    made.state("m.room.name", "", {"name": "The Lobby"})
    for _ in range(10):
        made.message()
    other = MadeRoom("10", "!other:a.test", ruled=True)
    other.message()
    persist([incoming(event) for room in (made, other) for event in room.events])
    return made


@pytest.fixture
def runs_jobs(run_manage):
    """``runs_jobs(fails=False)``: what a ``runjobs`` process of the site does with the queue."""

    def run(*, fails=False):
        done = run_manage("runjobs", "--once")
        assert done.returncode == fails, done.stderr

    return run


def open_room(page, name):
    """From the list of rooms, by a part of the name."""
    page.goto("/admin/events/room/")
    page.fill("input[name=q]", name[-4:].lower())
    page.keyboard.press("Enter")
    playwright_api.expect(page.get_by_text("!other:a.test")).to_have_count(0)
    page.get_by_role("link", name=name).click()


def test_a_room_that_disagrees_with_itself_is_found_and_repaired(lobby, page, runs_jobs, few_pages):
    wrong = CurrentState.objects.filter(room_id=lobby.room_id, type="m.room.power_levels")
    right = wrong.get().event_id
    wrong.update(event_id="$wrong")
    shown = page()
    open_room(shown, "The Lobby")
    shown.get_by_role("link", name="Check it …").click()
    shown.get_by_role("button", name="Queue it").click()
    playwright_api.expect(shown.get_by_text("It is a dry run and changes nothing")).to_be_visible()
    runs_jobs()
    shown.goto("/admin/live/")
    sentence = shown.locator("#live-health-sentence")
    playwright_api.expect(health(shown)).to_have_text("look")
    playwright_api.expect(sentence).to_contain_text(
        re.compile(r"\(resync\) is done with differences: \d+ differences? in !k3J9:a\.test")
    )
    keep(shown, "day-room-differs")
    sentence.get_by_role("link", name="Repair it").click()
    shown.get_by_role("button", name="Carry out resync").click()
    playwright_api.expect(shown.get_by_text("is queued; manage.py runjobs carries it out")).to_be_visible()
    runs_jobs()
    shown.goto("/admin/live/")
    playwright_api.expect(health(shown)).to_have_text("well")
    assert wrong.get().event_id == right
    assert check_room(lobby.room_id, "default").clean


@pytest.fixture
def old_archive(lobby, monkeypatch):
    """An archive so large that less of the disk is free than the site reserves; its removal makes room."""
    path = Path(run_job("archive", {"room": lobby.room_id, "folder": "."}, stream=StringIO())["folder"])
    size = min(shutil.disk_usage(path).free // 4, 6_000_000_000)
    with (path / "event-00000.parquet").open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, size)
    reserve = shutil.disk_usage(path).free + size // 2
    monkeypatch.setenv("REPLSITE_DISK_RESERVE_BYTES", str(reserve))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.mark.scenario
def test_a_full_disk_is_told_and_mended_by_the_removal_of_an_archive(old_archive, page, runs_jobs, few_pages):
    size = byte_size(sum(file.stat().st_size for file in old_archive.iterdir()))
    shown = page()
    playwright_api.expect(health(shown)).to_have_text("wrong")
    sentence = shown.locator("#live-health-sentence")
    playwright_api.expect(sentence).to_contain_text("Disk is full:")
    playwright_api.expect(sentence).to_contain_text(f"are free at {os.environ['REPLSITE_DATA_DIR']}")
    playwright_api.expect(sentence).to_contain_text("Remove old archives and imports")
    keep(shown, "day-disk")
    sentence.get_by_role("link", name="Remove old archives").click()
    row = shown.get_by_role("row", name=old_archive.name)
    playwright_api.expect(row).to_contain_text(size)
    playwright_api.expect(row).to_contain_text("The Lobby")
    keep(shown, "day-archives")
    row.get_by_role("link", name=f"Remove … {old_archive.name}").click()
    playwright_api.expect(shown.locator("input[name=folder]")).to_have_value(str(old_archive))
    shown.get_by_role("button", name="Queue it").click()
    playwright_api.expect(shown.get_by_text("It is a dry run and changes nothing")).to_be_visible()
    runs_jobs()
    assert old_archive.exists(), "nothing is removed before it is confirmed"
    shown.reload()
    shown.get_by_role("link", name="Carry it out").click()
    year = timezone.now().year
    words = re.compile(rf"Archive of !k3J9:a\.test, made .* {year} .* UTC, {size} in \d+ files: would be removed")
    playwright_api.expect(shown.get_by_text(words)).to_be_visible()
    keep(shown, "day-archive-asks")
    shown.get_by_role("button", name="Carry out remove archive").click()
    playwright_api.expect(shown.get_by_text("is queued; manage.py runjobs carries it out")).to_be_visible()
    runs_jobs()
    shown.goto("/admin/live/")
    playwright_api.expect(health(shown)).to_have_text("well")
    assert not old_archive.exists()
    assert LogEntry.objects.filter(change_message__startswith="Queued: remove archive").count() == 2


@pytest.fixture
def full_tables(lobby):
    """``full_tables()``: PostgreSQL refuses to purge events, with the error of a full disk, until the trigger is gone."""

    def make(*, full):
        with connection.cursor() as cursor:
            if not full:
                cursor.execute("DROP FUNCTION IF EXISTS full_disk() CASCADE")
                return
            cursor.execute(
                "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION USING "
                "ERRCODE = '53100', MESSAGE = 'could not extend file \"base/1/2\": No space left on device'; END $$; "
                "CREATE TRIGGER full_disk BEFORE DELETE ON events_eventjson FOR EACH STATEMENT EXECUTE FUNCTION full_disk()"
            )

    yield make
    make(full=False)


@pytest.mark.scenario
def test_a_job_that_a_full_disk_ended_is_resumed(lobby, full_tables, page, runs_jobs, few_pages):
    arguments = {
        "room": lobby.room_id,
        "before": lobby.events[-1].event_id,
        "dry_run": False,
        "delete_local": True,
    }
    job = queue_job("purge history", arguments, "ann")
    before = Event.objects.filter(room_id=lobby.room_id, outlier=False).count()
    full_tables(full=True)
    runs_jobs(fails=True)
    shown = page()
    playwright_api.expect(health(shown)).to_have_text("look")
    sentence = shown.locator("#live-health-sentence")
    playwright_api.expect(sentence).to_contain_text(f"Job {job.pk} (purge history) failed: ")
    playwright_api.expect(sentence).to_contain_text("No space left on device")
    keep(shown, "day-disk-job")
    full_tables(full=False)
    sentence.get_by_role("link", name="Resume it").click()
    shown.get_by_role("button", name="Resume it").click()
    playwright_api.expect(shown.get_by_text("is queued again")).to_be_visible()
    runs_jobs()
    shown.goto("/admin/live/")
    playwright_api.expect(health(shown)).to_have_text("well")
    job.refresh_from_db()
    assert job.state == JobState.DONE
    assert Event.objects.filter(room_id=lobby.room_id, outlier=False).count() < before


def test_a_room_is_purged_by_its_name(lobby, page, runs_jobs, few_pages):
    shown = page()
    open_room(shown, "The Lobby")
    shown.get_by_role("link", name="Purge the room …").click()
    playwright_api.expect(shown.locator("input[name=room]")).to_have_value(lobby.room_id)
    shown.get_by_role("button", name="Queue it").click()
    playwright_api.expect(shown.get_by_text("It is a dry run and changes nothing")).to_be_visible()
    runs_jobs()
    shown.reload()
    shown.get_by_role("link", name="Carry it out").click()
    playwright_api.expect(shown.get_by_text(lobby.room_id).first).to_be_visible()
    keep(shown, "day-purge-asks")
    shown.get_by_role("button", name="Carry out purge room").click()
    playwright_api.expect(shown.get_by_text("is queued; manage.py runjobs carries it out")).to_be_visible()
    assert Room.objects.filter(room_id=lobby.room_id).exists(), "nothing is deleted before the job runs"
    runs_jobs()
    shown.goto("/admin/events/room/?q=lobby")
    playwright_api.expect(shown.get_by_role("link", name="The Lobby")).to_have_count(0)
    assert list(Room.objects.values_list("room_id", flat=True)) == ["!other:a.test"]
    assert not Event.objects.filter(room_id=lobby.room_id).exists()
    assert Job.objects.filter(kind="purge room", state=JobState.DONE).count() == 2


@pytest.mark.scenario
def test_what_the_page_shows_is_in_its_address_and_shown_to_others(left_behind, page):
    shown = page()
    shown.get_by_role("searchbox").fill("SEARCH")
    shown.get_by_role("button", name="Fold all").click()
    shown.locator('#live-readers tbody[data-key="reader search"] .live-toggle').click()
    shown.locator("#live-readers .live-sort").first.click()
    row = shown.locator('#live-readers tbody[data-key="reader search"] tr[data-key="caches"]')
    row.locator("td").nth(1).click()
    playwright_api.expect(row).to_have_attribute("aria-current", "true")
    other = page()
    other.goto(shown.url)
    row = other.locator('#live-readers tbody[data-key="reader search"] tr[data-key="caches"]')
    playwright_api.expect(row).to_have_attribute("aria-current", "true")
    playwright_api.expect(row).to_be_visible()
    playwright_api.expect(other.get_by_role("searchbox")).to_have_value("search")
    playwright_api.expect(other.locator("#live-streams > tbody:visible")).to_have_count(0)
    playwright_api.expect(other.locator("#live-readers th").first).to_have_attribute("aria-sort", "ascending")
    playwright_api.expect(other.locator("#live-link")).to_have_text("Live")
    playwright_api.expect(other.locator("#live-storage > tbody:visible")).not_to_have_count(0)
    keep(other, "day-address")


@pytest.mark.scenario
def test_the_first_tab_leads_past_the_sidebar_and_times_are_local_on_hover(left_behind, page):
    shown = page(timezone_id="Asia/Tokyo", locale="en-GB")
    shown.goto("/admin/streams/storedcursor/")
    shown.keyboard.press("Tab")
    playwright_api.expect(shown.get_by_role("link", name="Skip to the content")).to_be_focused()
    shown.goto("/admin/live/")
    shown.keyboard.press("Tab")
    playwright_api.expect(shown.get_by_role("link", name="Health")).to_be_focused()
    moment = shown.locator("#live-as-of")
    moment.hover()
    playwright_api.expect(moment).to_have_attribute("title", re.compile("UTC\n.*(GMT\\+9|JST)"))


@pytest.mark.scenario
def test_a_page_that_is_refused_or_missing_is_ours(page, django_user_model):
    django_user_model.objects.create_user("mate", password="correct horse battery", is_staff=True)
    shown = page()
    shown.goto("/admin/nothing/")
    playwright_api.expect(shown.get_by_role("alert")).to_be_visible()
    shown.context.clear_cookies()
    log_in(shown, "mate")
    shown.goto("/admin/actions/end/?name=caches")
    playwright_api.expect(shown.get_by_text("streams.end_holder")).to_be_visible()
    keep(shown, "day-refused")
