"""Numbers in attributes and scripts of pages are plain, whatever the project's language does with those that are read."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.urls import reverse

from events.admin.links import event_url, room_url
from events.models import Event
from pipeline.models import Job
from streams.jobs.run import queue_job
from streams.models import ParkedFact
from tests.support.made_rooms import MadeRoom
from tests.support.persisted_rooms import persist_all
from tests.support.writing import append, give_out, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)
#: A number as it is written in German: thousands, or a fraction.
_GERMAN = re.compile(r"(?<![\w.])\d{1,3}(\.\d{3})+(?![\w.])|(?<![\w,(])\d+,\d+(?![\w,])")


class _Attributes(HTMLParser):
    """Collects (element, attribute, value), and the text of scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self._tag = ""
        self.found: list[tuple[str, str, str]] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._tag = tag
        self.found += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        if self._tag in ("script", "style"):
            self.found.append((self._tag, "", data))

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""


@pytest.fixture
def pages(transactional_db) -> list[str]:
    """Addresses of pages with numbers above 999."""
    made = MadeRoom()
    for _ in range(45):
        made.message()
    persist_all(made.events, 50)
    give_out(123_456)
    (token,) = append()
    wait_for_linear(token)
    ParkedFact.objects.create(reader="r", stream="caches", token=token, rows=[], error="", traceback="", attempts=1_234)
    with connection.cursor() as cursor:
        cursor.execute("SELECT setval(pg_get_serial_sequence('pipeline_job', 'id'), 12345)")
    dry = queue_job("censor", {"days": 7_000, "dry_run": True}, "bob")
    Job.objects.filter(pk=dry.pk).update(
        state="done", finished_at=Now(), before={"events": 12_345}, after={"events": 7}
    )
    newest = Event.objects.latest("stream_ordering")
    job = reverse("admin:pipeline_job_changelist")
    return [
        *map(reverse, ("live", "live-history", "happened", "status-words", "archives", "api-page")),
        f"{reverse('facts')}?stream=caches", f"{reverse('parked-facts')}?name=r", room_url(made.room_id),
        event_url(newest.stream_ordering), job, f"{job}{dry.pk}/change/", f"{job}{dry.pk}/carry-out/",
    ]  # fmt: skip


def test_numbers_in_attributes_are_plain_in_german(pages, admin_client, settings):
    """The picture of a room had ``viewBox="0 0 678 1.518"``, and a dead letter's link another token."""

    def attributes(address: str) -> list[tuple[str, str, str]]:
        answer = admin_client.get(address)
        assert answer.status_code == 200, address
        parser = _Attributes()
        parser.feed(answer.content.decode())
        return parser.found

    plain = {address: {one for one in attributes(address) if _GERMAN.search(one[2])} for address in pages}
    settings.LANGUAGE_CODE = "de"
    settings.USE_THOUSAND_SEPARATOR = True
    for address in pages:
        german = {one for one in attributes(address) if _GERMAN.search(one[2])}
        assert german - plain[address] == set(), address
