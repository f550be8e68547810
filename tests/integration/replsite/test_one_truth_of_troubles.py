"""A site with trouble of every kind: page, command, metrics and health name each of them by the same word."""

from __future__ import annotations

import json
import re
import threading
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connections, transaction
from django.urls import reverse
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from pipeline.models import Job, JobState
from streams.models import Reader
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import append, linear

pytestmark = pytest.mark.django_db(transaction=True)
#: Who is in trouble, where, and the word for it.
TROUBLES = {
    ("caches", "blocked"), ("gone-reader", "gone"), ("stuck-reader", "stuck"), ("censor", "failed"),
}  # fmt: skip


@pytest.fixture
def troubled(settings):
    """The site, for as long as the test lasts."""
    settings.REPLSITE_HEARTBEAT_SECONDS = 0.25
    settings.REPLSITE_BLOCKED_AFTER_SECONDS = 0.3
    settings.REPLSITE_STUCK_AFTER_SECONDS = 0.3
    (first,) = append()
    append(5)
    linear()
    let_go, holds = threading.Event(), threading.Event()

    def hold():
        with transaction.atomic():
            append()
            holds.set()
            let_go.wait(2 * DEADLINE_SECONDS)
        connections.close_all()

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait(DEADLINE_SECONDS)
    at = {"caches": {"master": first}}
    Reader.objects.create(key="g", name="gone-reader", kind="follower", positions=at,
                          heartbeat_at=timezone.now() - timedelta(seconds=30))  # fmt: skip
    Reader.objects.create(key="s", name="stuck-reader", kind="follower", positions=at)
    Job.objects.create(kind="censor", state=JobState.FAILED, error="no room", finished_at=timezone.now())
    beats = threading.Event()
    beating = threading.Thread(target=beat, args=(beats,))
    beating.start()
    yield
    beats.set()
    let_go.set()
    thread.join()
    beating.join()


def beat(over):
    """The stuck reader lives."""
    while not over.wait(0.1):
        Reader.objects.filter(key="s").update(heartbeat_at=timezone.now())
    connections.close_all()


def of_page(client):
    """{(who, word)} of every row of the live page."""
    page = client.get(reverse("live-data")).json()
    rows = [row for name in ("streams", "readers", "jobs") for _, group in page[name] for _, row in group]
    return {tuple(re.findall(r'class="live-text"[^>]*>([^<]*)<', row)[:2]) for row in rows}


def of_command():
    out = StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("streams", "--json", stdout=out, stderr=StringIO())
    assert ended.value.code == 1
    snapshot = json.loads(out.getvalue())
    found = {(stream["name"], stream["status"]["word"]) for stream in snapshot["streams"]}
    found |= {(reader["name"], on["status"]["word"]) for reader in snapshot["readers"] for on in reader["streams"]}
    return found | {(job["kind"], job["status"]["word"]) for job in snapshot["jobs"]["jobs"]}


def of_metrics(client):
    families = text_string_to_metric_families(client.get("/metrics").content.decode())
    samples = [s for family in families for s in family.samples if s.value]
    found = {(s.labels["stream"], s.labels["status"]) for s in samples if s.name == "replsite_writer_status"}
    found |= {(s.labels["reader"], s.labels["status"]) for s in samples if s.name == "replsite_reader_status"}
    failed = {s.labels["job"] for s in samples if s.name == "replsite_job_last_failure_timestamp_seconds"}
    words = {s.labels["status"] for s in samples if s.name == "replsite_jobs"}
    return found | {(job, word) for job in failed for word in words}


def of_health(client):
    """{(who, word)} of what is not well, and the status that a probe gets."""
    answer = client.get("/health")
    parts = [part for part in answer.json()["parts"] if part.get("word")]
    return answer.status_code, {(part["name"], part["word"]) for part in parts}


def test_all_four_name_each_trouble_by_the_same_word(troubled, admin_client):
    wait_until(lambda: of_page(admin_client) >= TROUBLES)
    page, metrics = of_page(admin_client), of_metrics(admin_client)
    status, health = of_health(admin_client)
    wait_until(lambda: of_command() >= TROUBLES, 2 * DEADLINE_SECONDS)
    assert page >= TROUBLES
    assert metrics >= TROUBLES
    assert status == 503
    told = {(who, word) for who, word in TROUBLES if any(who in name and word == said for name, said in health)}
    assert told == TROUBLES


def test_none_of_them_invents_trouble(admin_client):
    append()
    bad = {"blocked", "gone", "stuck", "failed", "falling behind", "went back"}
    for found in (of_page(admin_client), of_metrics(admin_client)):
        assert not [pair for pair in found if pair[1] in bad]
    status, health = of_health(admin_client)
    assert (status, [pair for pair in health if pair[1] in bad]) == (200, [])
