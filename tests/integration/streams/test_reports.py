"""Reports and the database: what was said while it was away is written afterwards, and nothing stays open."""

from __future__ import annotations

import asyncio
import threading

import pytest

from streams import workers
from streams.conf import StreamSettings
from streams.models import SyncingUser, UserAddress, WireCount, WorkerConnection
from streams.replication.common import worker_sql
from streams.replication.protocol.commands import FederationAck, UserIP, UserSync
from streams.replication.protocol.connection import ServerConnection
from streams.replication.server import worker_reports
from streams.replication.server.broadcaster import Broadcaster
from streams.replication.server.client import ReplicationClient
from streams.replication.server.worker_reports import WorkerReports
from tests.support.tcp_scope import MemoryTransport
from tests.support.waiting import wait_until
from tests.support.wire_client import WireClient, start_replication
from tests.support.writing import cut, session

pytestmark = pytest.mark.django_db(transaction=True)


def test_what_was_said_while_the_database_was_away_is_written_later(start_manage):
    port = start_replication(start_manage)
    with WireClient(port, "USER_SYNC w @a:b start 1") as client:
        wait_until(lambda: workers.is_syncing("@a:b"))
        for _ in range(3):
            cut("replsite worker reports")
            cut("replsite relay")
            client.say("USER_SYNC w @c:b start 1\nUSER_SYNC w @a:b end 1\nREMOTE_SERVER_UP up")
        wait_until(lambda: workers.users_syncing() == {"@c:b"})


def test_hints_arrive_again_after_the_listener_was_cut(start_manage):
    first = start_replication(start_manage, REPLSITE_WRITER="one")
    second = start_replication(start_manage, REPLSITE_WRITER="two")
    with WireClient(first, "NAME a") as a, WireClient(second, "NAME b") as b:
        b.read_until("SERVER")
        cut("replsite relay")

        def heard() -> bool:
            b.lines.clear()
            a.say("REMOTE_SERVER_UP again")
            b.say("PING 1\nREPLICATE")
            b.read_until("POSITION caches")
            return bool(b.of("REMOTE_SERVER_UP again"))

        wait_until(heard)


@pytest.fixture
def reports():
    return WorkerReports(Broadcaster(StreamSettings(worker_report_limit=5)), "here")


def states(name: str) -> set[str]:
    with session() as cursor:
        cursor.execute(
            "SELECT state FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s", [name]
        )
        return {state for (state,) in cursor.fetchall()}


def peer() -> ReplicationClient:
    connection = ServerConnection("x")
    connection.connected(1.0)
    return ReplicationClient(connection, MemoryTransport(), "127.0.0.1:5")


async def test_a_mistake_leaves_no_transaction_open(reports, monkeypatch):
    tried = threading.Event()

    def fail(cursor, rows) -> None:
        tried.set()
        raise ValueError("for the test")

    await reports.start()
    monkeypatch.setattr(worker_sql, "store_acknowledgements", fail)
    reports.add(peer(), [FederationAck("s", 1)])
    assert await asyncio.to_thread(tried.wait, 20)
    await asyncio.to_thread(wait_until, lambda: states("replsite worker reports") == {"idle"})
    monkeypatch.undo()
    await reports.stop()


async def test_a_full_table_of_addresses_is_logged_once_until_it_has_room(caplog, monkeypatch):
    caplog.set_level("INFO", "streams.replication.server.worker_reports")
    monkeypatch.setattr(worker_reports, "FORGET_SECONDS", 0.1)
    monkeypatch.setattr(worker_reports, "COUNT_SECONDS", 0.1)
    reports = WorkerReports(Broadcaster(StreamSettings(user_address_limit=2)), "here")
    await reports.start()
    one = peer()
    for turn in range(1, 4):
        reports.add(one, [UserIP(f"@{turn} {n}:b", "t", "::1", "ua", None, 4_000_000_000_000) for n in range(5)])
        least = 5 * turn - 2
        while reports.figures().get("USER_IP", 0) < least:  # noqa: ASYNC110 - written by a thread
            await asyncio.sleep(0.01)
    assert caplog.text.count("workers.addresses_full") == 1 and "REPLSITE_USER_ADDRESS_LIMIT" in caplog.text
    await asyncio.to_thread(in_thread(UserAddress.objects.all().delete))
    while "workers.addresses_have_room" not in caplog.text:  # noqa: ASYNC110 - written by a thread
        await asyncio.sleep(0.01)
    reports.add(one, [UserIP("@c:b", "t", "::1", "ua", None, 4_000_000_000_000)])
    await reports.stop()
    assert await asyncio.to_thread(in_thread(UserAddress.objects.count)) == 1


async def test_the_end_writes_what_waits_and_forgets_who_synced(reports):
    await reports.start()
    one = peer()
    reports.add(one, [UserSync("w", f"@{number}:b", True, 1) for number in range(9)])
    await reports.stop()

    def left() -> tuple[int, int, int]:
        dropped = WireCount.objects.get(kind="dropped", name="USER_SYNC").total
        return SyncingUser.objects.count(), WorkerConnection.objects.count(), dropped

    assert await asyncio.to_thread(in_thread(left)) == (0, 0, 6)  # one client has at most what is still free


def in_thread(work):
    """Call it and close the thread's database connection, so that the test database can be dropped."""
    from django.db import connections

    def run():
        try:
            return work()
        finally:
            connections.close_all()

    return run
