"""Snapshots of sites with 2,000 readers: their time grows with the readers, messages and scrapes are small."""

from __future__ import annotations

import time
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.utils import timezone

from replsite.dashboard.fragments import _RIGHTS
from replsite.dashboard.page import live_page_data
from replsite.dashboard.shared_answers import SharedAnswers
from replsite.live_rows import readers, reading
from replsite.live_rows.reading import read_snapshot
from replsite.live_rows.shared import SharedSnapshot
from replsite.metrics.cluster import SnapshotCollector
from replsite.metrics.exposition import as_text
from replsite.metrics.synapse import SynapseNames
from streams.models import ParkedFact, Reader, StoredCursor
from streams.reading.reader_table import NAMED
from tests.support.large_site import READERS, Site, move

pytestmark = pytest.mark.django_db
MOST_BYTES = 1_000_000
EVERYTHING = frozenset(_RIGHTS)
LARGE, USUAL = Site(50, 50), Site(16, 20)
MOST_SCRAPE_BYTES = {LARGE: 12_000_000, USUAL: 2_500_000}


@pytest.fixture(params=[LARGE, USUAL], ids=["large", "usual"])
def site(request):
    return request.param


@pytest.fixture
def crowd(monkeypatch, site):
    monkeypatch.setattr(reading, "registry", site.registry())
    site.fill()


@contextmanager
def timed(found):
    """Adds the CPU time of this thread: other tests may be at work on the machine."""
    began = time.thread_time()
    yield
    found.append(time.thread_time() - began)


def test_a_large_site_is_shown_and_scraped_in_few_bytes(crowd, site, record_property):
    shared, lengths = SharedSnapshot(read_snapshot), []
    answers = SharedAnswers(shared)
    for _ in range(4):
        move()
        snapshot = shared.get(fresh_seconds=0)
        lengths.append(len(answers.of(EVERYTHING).packed))
    assert len(snapshot.streams) == site.streams
    assert len(snapshot.readers) == READERS
    assert sum(len(stream.writers) for stream in snapshot.streams) == site.streams * site.writers
    record_property("longest_answer_bytes", max(lengths))
    assert max(lengths) < MOST_BYTES
    page = as_text(SynapseNames(SnapshotCollector(lambda: snapshot)).collect())
    record_property("scrape_bytes", len(page))
    assert len(page) < MOST_SCRAPE_BYTES[site]


def test_many_named_readers_hide_none_that_wants_a_look(monkeypatch):
    for name in ("_READERS", "_CURSORS"):
        few = getattr(readers, name).replace(f"LIMIT {readers.MOST_READERS}", "LIMIT 10")
        monkeypatch.setattr(readers, name, few)
    names, now = [f"a{n}" for n in range(20)], timezone.now()
    Reader.objects.bulk_create(Reader(key=f"{NAMED}{name}", name=name, kind="follower") for name in names)
    Reader.objects.create(key=f"{NAMED}z failed", name="z failed", kind="follower", error="ValueError")
    Reader.objects.create(key="z spark", name="z spark", kind="spark")
    StoredCursor.objects.bulk_create(StoredCursor(reader=name, stream="caches", base=1, seen_at=now) for name in names)
    for name, seen_at in (("z parked", now), ("z gone", now - timedelta(days=3))):
        StoredCursor.objects.create(reader=name, stream="caches", base=1, seen_at=seen_at)
    ParkedFact.objects.create(reader="z parked", stream="caches", token=2, rows=[], attempts=1)
    shown = {reader.name for reader in read_snapshot().readers}
    assert {"z failed", "z spark", "z parked", "z gone"} <= shown and len(shown) < len(names)


@pytest.mark.parametrize("site", [USUAL], ids=["usual"], indirect=True)
@pytest.mark.speed
def test_time_grows_with_the_readers_and_no_faster(crowd):
    """How long it takes is measured in ``script/benchmarks/snapshot.py``."""
    long_ago, seconds = timezone.now() - timedelta(days=1), {READERS // 4: [], READERS: []}
    for _ in range(3):
        for shown, found in seconds.items():
            Reader.objects.update(closed_at=long_ago)
            Reader.objects.filter(key__in=[f"k{at}" for at in range(shown)]).update(closed_at=None)
            with timed(found):
                snapshot = read_snapshot()
                live_page_data(snapshot)
            assert len(snapshot.readers) == shown
    few, many = (min(found) for found in seconds.values())
    assert many < 10 * few, seconds
