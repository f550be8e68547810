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
from replsite.live_rows import reading
from replsite.live_rows.reading import read_snapshot
from replsite.live_rows.shared import SharedSnapshot
from replsite.metrics.cluster import SnapshotCollector
from replsite.metrics.exposition import as_text
from replsite.metrics.synapse import SynapseNames
from streams.models import Reader
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
