"""Somebody keeps the table of positions locked: no stream goes on, but whoever asks learns at once who it is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.test import AsyncClient, AsyncRequestFactory, Client

from replsite import health
from replsite.live_rows.shared import SHARED
from streams import durable, stream_view
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.wire_client import positioned
from tests.support.writing import append, session, stream

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def locker(admin_client: Client) -> Iterator[int]:
    """The session that keeps the table until it is awaited in vain; what asks must not wait so long."""
    append()
    assert admin_client.get("/admin/facts/").status_code == 200
    with session() as cursor:
        cursor.execute("SET idle_in_transaction_session_timeout = 0; BEGIN; LOCK TABLE streams_streamposition")
        cursor.execute("SELECT pg_backend_pid()")
        end = threading.Timer(DEADLINE_SECONDS / 2, cursor.execute, ["ROLLBACK"])
        end.start()
        yield cursor.fetchone()[0]
        end.cancel()
        end.join()


def test_health_and_metrics_name_who_locks_the_positions(locker: int, client: Client):
    words = f"streams_streamposition is locked by database session {locker} of role "
    report = health.summary(lambda: SHARED.get(0))
    assert words in report.sentence and "end that transaction" in report.sentence
    assert b"replsite_snapshot_up 0.0" in client.get("/metrics").content
    public = client.get("/health").json()
    assert public["sentence"].startswith("positions: ") and str(locker) not in str(public)


POSITIONS = "/admin/streams/streamposition/"


@pytest.mark.parametrize(
    "path",
    [
        "/admin/live/",
        "/admin/live/data/",
        "/admin/facts/",
        POSITIONS,
        f"{POSITIONS}?format=csv",
        f"{POSITIONS}1/change/",
    ],
)
def test_pages_name_who_locks_the_positions(locker: int, admin_client: Client, path: str):
    answer = admin_client.get(path, headers={"accept": "text/html"})
    assert answer.status_code == 503
    assert f"is locked by database session {locker} of role " in answer.content.decode()


@pytest.mark.parametrize("path", ["stream/?stream=caches", "stream/?stream=caches&offset=now", "events/?stream=caches"])
def test_streams_for_browsers_name_who_locks_the_positions(locker: int, admin_client: Client, path: str):
    made = AsyncClient()
    made.cookies = admin_client.cookies
    answer = async_to_sync(made.get)(f"/admin/facts/{path}")
    assert answer.status_code == 503
    assert f"is locked by database session {locker} of role " in answer.content.decode()


@pytest.mark.parametrize("make", [stream_view, durable])
@pytest.mark.parametrize("is_staff", [True, False])
def test_a_project_without_our_middleware_names_the_locker_to_staff(locker: int, make: Any, is_staff: bool):
    request: Any = AsyncRequestFactory().get("/")
    request.user = User(is_staff=is_staff)
    answer = async_to_sync(make(stream(), allow=lambda _: True, render=str))(request)
    assert answer.status_code == 503
    assert answer["Retry-After"]
    assert (f"is locked by database session {locker} of role " in answer.content.decode()) is is_staff


def test_followers_get_all_facts_after_the_positions_were_locked(port: int):
    with positioned(port) as client, session() as cursor:
        (fact,) = append()
        client.read_until(f"RDATA caches master {fact} ")
        cursor.execute("SET idle_in_transaction_session_timeout = 0; BEGIN; LOCK TABLE streams_streamposition")
        facts = append(3)
        cursor.execute("SELECT pg_sleep(2); ROLLBACK")
        for fact in facts:
            client.read_until(f"RDATA caches master {fact} ")
    wait_until(lambda: health.summary(lambda: SHARED.get(0)).parts[2].well)
