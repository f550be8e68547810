"""The pictures of README and docs: a site with real writers and followers, whose last hour was written by hand.

Taken only when ``REPLSITE_SCREENSHOTS`` names a folder (``script/screenshot``); what they show is tested elsewhere.
"""

from __future__ import annotations

import math
import subprocess
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from events.models import RoomSummary
from pipeline.models import Job
from streams import registry
from streams.catalog.models import CacheInvalidation
from streams.models import Reader, Sample, StatusChange, StreamPosition
from tests.support.beating import beating
from tests.support.browsing import BROWSER, keep, log_in
from tests.support.writing import linear

playwright_api = pytest.importorskip("playwright.sync_api", reason="no playwright here")
pytestmark = BROWSER
HEAD = 84_000
RATES = {"events": 20, "caches": 45, "receipts": 12}
READERS = ("federation-sender", "search-index", "push-gateway")


def wave(step, swing=0.5):
    return 1 + swing * math.sin(step / 7) * math.cos(step / 17)


def sample(at, stream, reader, position, waiting, seconds=0.0, **more):
    state = {"step_seconds": 15, "severity": 0, "word": "current"} | more
    return Sample(stream=stream, reader=reader, at=at, position=position, waiting=waiting, seconds=seconds, **state)


def lag_of(reader, step):
    """A reader that fell behind 25 minutes ago and caught up; others never."""
    return round(900 * math.exp(-(((step - 90) / 14) ** 2))) if reader == "search-index" else step % 3


def last_hour(now):
    for stream, rate in RATES.items():
        position = HEAD
        for step in range(1, 241):
            at, position = now - timedelta(seconds=15 * step), position - round(rate * 15 * wave(step))
            yield sample(at, stream, "", position, round(2 * wave(step)), 0.2 * wave(step))
            for reader in READERS:
                lag = lag_of(reader, step)
                yield sample(at, stream, reader, position - lag, lag, lag / rate, severity=2 if lag > 500 else 0)


def day_before(now):
    sizes = {"(database)": 11_600_000, "events_event": 2_000_000, "streams_cacheinvalidation": 300_000}
    at = now - timedelta(hours=23, minutes=58)
    return [sample(at, "", name, size, 100, step_seconds=120) for name, size in sizes.items()]


def changes(now):
    about = {"stream": "events", "reader": "search-index"}
    behind = "620 facts, 14 s behind, and 22 facts/s more. It handles facts more slowly than they are written."
    then = [now - timedelta(minutes=minutes) for minutes in (25, 19)]
    yield StatusChange(at=then[0], was="current", word="falling behind", severity=2, sentence=behind, **about)
    yield StatusChange(at=then[1], was="falling behind", word="current", severity=0, sentence="Keeps up.", **about)


def rooms(now):
    for name, (events, joined) in {
        "lobby": (430_300, 8_412),
        "support": (208_114, 2_120),
        "ops": (100_220, 64),
    }.items():
        yield RoomSummary(
            room_id=f"!{name}:example.org", words=name, events=events, size=events.bit_length(), joined=joined,
            active_at=now - timedelta(seconds=events % 97), active_on=now.date(),
        )  # fmt: skip


def done_job(now):
    times = {"queued_at": 34, "started_at": 33, "finished_at": 31}
    moments = {name: now - timedelta(minutes=minutes) for name, minutes in times.items()}
    work = {"stage": "delete", "unit": "events", "done": 41_220, "total": 41_220}
    return Job(kind="purge history", state="done", asked_by="ann", **work, **moments)


@pytest.fixture
def yesterday(transactional_db):
    """The last hour in steps, sizes of a day ago, rooms, a job; streams that were written for long."""
    now = timezone.now()
    Sample.objects.bulk_create([*last_hour(now), *day_before(now)])
    StatusChange.objects.bulk_create(changes(now))
    RoomSummary.objects.bulk_create(rooms(now))
    done_job(now).save()
    with connection.cursor() as cursor:
        for stream in RATES:
            cursor.execute("SELECT setval(%s, %s)", [registry.get(stream).declaration.sequence, HEAD])


@pytest.fixture
def lively(yesterday, boss, request, start_manage, wait_until):
    """Three writers, then the site, then three followers, as processes."""
    for number, (stream, rate) in enumerate(RATES.items(), 1):
        steady = ("--count", "1000000", "--rate", str(rate), "--instance", f"web-{number}")
        start_manage("append", stream, *steady, stdout=subprocess.DEVNULL)
    wait_until(lambda: linear() and StreamPosition.objects.filter(position__gt=HEAD).count() >= len(RATES))
    site = request.getfixturevalue("site")
    for name in READERS:
        start_manage("follow", f"tcp://{site.replication}", "--name", name, stdout=subprocess.DEVNULL)
    return site


def operator(new_page, **options):
    page = new_page(device_scale_factor=1.5, **options)
    log_in(page)
    playwright_api.expect(page.locator("#live-link")).to_have_text("Live")
    writer = page.locator('#live-streams tr[data-key="web-2"] .live-status .live-text')
    playwright_api.expect(writer).to_have_text("writing")
    return page


def test_a_site_that_is_well(lively, new_page):
    page = operator(new_page, viewport={"width": 1360, "height": 1000})
    playwright_api.expect(page.locator("#live-readers")).to_contain_text("/s out")
    page.wait_for_timeout(20_000)
    keep(page, "live")
    page.locator("#live-storage-title").scroll_into_view_if_needed()
    page.goto("/admin/history/?stream=events")
    page.wait_for_load_state("networkidle")
    keep(page, "history")


def test_trouble_in_the_dark_and_on_a_phone(lively, new_page):
    alive, bytes_ = timezone.now(), {"bytes_out": 3_812_000, "bytes_in": 20_000, "buffer_bytes": 2_400_000}
    who = {"key": "k", "name": "mail-digest", "kind": "connection", "address": "10.0.4.17:50412"}
    Reader.objects.create(**who, **bytes_, heartbeat_at=alive, positions={"events": {"web-1": 1}})
    with beating(), transaction.atomic():
        registry.get("caches").append(
            *[CacheInvalidation(cache_name="rooms", keys=["!lobby:example.org"]) for _ in range(3)]
        )
        page = operator(new_page, viewport={"width": 1360, "height": 1000}, color_scheme="dark")
        playwright_api.expect(page.locator("#live-health-word")).to_have_text("wrong")
        playwright_api.expect(page.locator("#live-readers")).to_contain_text("stuck")
        page.wait_for_timeout(3_000)
        keep(page, "trouble")
        phone = operator(new_page, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
        phone.wait_for_timeout(2_000)
        keep(phone, "phone")
