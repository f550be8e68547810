"""Effects and cursor in a service's own database, facts in another: one transaction there, and trimming knows of the reader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from replsite.live_rows.reading import read_snapshot
from streams.follow import forget_reader
from streams.maintenance.trim import Keep, TrimRequest, trim
from streams.models import Reader as ReaderRow
from streams.models import StoredCursor
from streams.reading.reader_table import forget_readers
from tests.support.session import PROJECT, python_path
from tests.support.waiting import DEADLINE_SECONDS
from tests.support.writing import append, session, stream, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)
NAME = "service_of_its_own"
_SETTINGS = """
import os
import dj_database_url
from replsite.settings import *
DATABASES = {**DATABASES, "service": dj_database_url.parse(os.environ["SERVICE_URL"])}
"""
_SCRIPT = """
import json
import django
django.setup()
from django.core.management import call_command
from django.db import connections
from streams.errors import BadHandler, HandlerFailed
from streams.follow import Begin, Handler, OnFailure, Reader, handlers, parked_facts, resync_reader, retry_parked
from streams.models import StoredCursor
from streams.core.tokens import VectorToken

call_command("migrate", "streams", database="service", verbosity=0)
with connections["service"].cursor() as cursor:
    cursor.execute("CREATE TABLE effects (number bigserial, token bigint)")

refused = set()
def take(chunk):
    with connections["service"].cursor() as cursor:
        for fact in chunk:
            cursor.execute("INSERT INTO effects (token) VALUES (%s)", [fact.token])
    assert all(fact.instances[0].stream_id == fact.token for fact in chunk)
    if refused & {fact.token for fact in chunk}:
        raise ValueError("refused")

def effects():
    with connections["service"].cursor() as cursor:
        cursor.execute("SELECT token FROM effects ORDER BY number")
        return [row[0] for row in cursor.fetchall()]

def handler(using="service", **options):
    return Handler("caches", "away", take, begin=Begin.OLDEST, using=using, retry_seconds=0.01, chunk_rows=4, **options)

facts = FACTS
found = {}
refused = {facts[5]}
try:
    Reader("away", [handler(attempts=2)]).catch_up()
except HandlerFailed:
    found["stopped"] = effects()
Reader("away", [handler(attempts=1, on_failure=OnFailure.PARK)]).catch_up()
found["parked"] = effects()
handlers._handlers["away"] = {"caches": handler()}
found["parked_tokens"] = [fact.token for fact in parked_facts("away")]
refused = set()
found["retried"] = retry_parked("away")
found["base"] = StoredCursor.objects.using("service").get().base
try:
    Reader("away", [handler(), Handler("receipts", "away", take)])
except BadHandler as error:
    found["mixed"] = str(error)
resync_reader("away", {"caches": VectorToken(facts[-3])})
found["again"] = Reader("away").catch_up()
connections.close_all()
print(json.dumps(found))
"""


@pytest.fixture
def service(database_url: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a process with both databases."""
    with session() as cursor:
        cursor.execute(f"CREATE DATABASE {NAME}")
    (tmp_path / "service_settings.py").write_text(_SETTINGS)
    yield {
        **os.environ,
        "DATABASE_URL": database_url,
        "SERVICE_URL": database_url.rsplit("/", 1)[0] + f"/{NAME}",
        "DJANGO_SETTINGS_MODULE": "service_settings",
        "PYTHONPATH": python_path(tmp_path, PROJECT),
    }
    with session() as cursor:
        cursor.execute(f"DROP DATABASE {NAME} WITH (FORCE)")


def test_cursor_and_effects_are_together_in_the_services_own_database(service):
    facts = append(12)
    wait_for_linear(facts[-1])
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT.replace("FACTS", repr(facts))],
        cwd=PROJECT, env=service, capture_output=True, text=True, timeout=2 * DEADLINE_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["stopped"] == facts[:5]
    assert found["parked"] == [*facts[:5], *facts[6:]]
    assert (found["parked_tokens"], found["retried"]) == ([facts[5]], [1, 0])
    assert found["base"] == facts[-1]
    assert "in different databases (default, service)" in found["mixed"]
    assert found["again"] == 2
    assert not StoredCursor.objects.exists(), "nothing of it is in the streams' database"
    row = ReaderRow.objects.get(key="reader away")
    assert row.positions["caches"]["master"] == facts[-1]


@pytest.mark.parametrize("closed", [True, False])
def test_trimming_stops_at_a_reader_whose_cursor_is_elsewhere(closed):
    facts = append(6)
    wait_for_linear(facts[-1])
    ended = {"closed_at": "2026-01-01T00:00Z"} if closed else {}
    positions = {"caches": {"master": facts[1]}}
    ReaderRow.objects.create(key="reader away", name="away", kind="follower", positions=positions, **ended)
    with session() as cursor:
        (done,) = trim(cursor, TrimRequest(stream(), Keep(facts=0), settle_seconds=0), pause=lambda seconds: None)
    assert done.position == facts[1]


def test_a_stored_cursor_counts_more_than_the_row_on_the_page():
    facts = append(6)
    wait_for_linear(facts[-1])
    StoredCursor.objects.create(reader="here", stream="caches", base=facts[3])
    ReaderRow.objects.create(
        key="reader here", name="here", kind="follower", positions={"caches": {"master": facts[1]}}
    )
    with session() as cursor:
        (done,) = trim(cursor, TrimRequest(stream(), Keep(facts=0), settle_seconds=0), pause=lambda seconds: None)
    assert done.position == facts[3]


_FAILS = (
    _SCRIPT[: _SCRIPT.index('Reader("away", [handler(attempts=1')]
    + """
connections.close_all()
print(json.dumps(found))
"""
)


def test_a_reader_that_failed_is_told_of_though_its_cursor_is_elsewhere(service, settings):
    settings.REPLSITE_HEARTBEAT_SECONDS = 0.25
    facts = append(12)
    wait_for_linear(facts[-1])
    done = subprocess.run(
        [sys.executable, "-c", _FAILS.replace("FACTS", repr(facts))],
        cwd=PROJECT, env=service, capture_output=True, text=True, timeout=2 * DEADLINE_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ReaderRow.objects.update(
        closed_at=timezone.now() - timedelta(days=3), heartbeat_at=timezone.now() - timedelta(days=3)
    )
    with session() as cursor:
        forget_readers(cursor)
    snapshot = read_snapshot()
    (reader,) = snapshot.readers
    assert (reader.name, reader.status.word, reader.runs) == ("away", "failed", False)
    assert 7 <= reader.lag_facts <= 9, "as of its last whole batch"
    assert "refused" in reader.status.sentence
    forget_reader("away")
    assert read_snapshot().readers == ()
