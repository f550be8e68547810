"""A replication server that is killed: who was connected is told as gone, for a while; followers come back on another."""

from __future__ import annotations

import signal
from datetime import timedelta

import pytest
from django.db.models.functions import Now

from replsite.health import summary
from replsite.live_rows.reading import read_snapshot
from streams.models import Reader
from tests.support.waiting import wait_until
from tests.support.wire_client import positioned, ready_ports

pytestmark = pytest.mark.django_db(transaction=True)


def words() -> dict[str, str]:
    """Name -> status of every reader."""
    return {reader.name: str(reader.status.word) for reader in read_snapshot().readers}


def test_connections_of_a_killed_server_are_gone_and_then_forgotten(start_manage):
    server = start_manage("runreplication", "--bind", "127.0.0.1:0")
    with positioned(ready_ports(server)["replication"], "worker"):
        wait_until(lambda: words().get("worker") in ("current", "idle"))
        server.send_signal(signal.SIGKILL)
        server.wait()
        wait_until(lambda: words()["worker"] == "gone")
    assert "worker" in summary(read_snapshot).sentence, "health says so"
    other = start_manage("runreplication", "--bind", "127.0.0.1:0")
    with positioned(ready_ports(other)["replication"], "worker"):
        wait_until(lambda: [r.status.word for r in read_snapshot().readers if r.status.word != "gone"])
        Reader.objects.filter(heartbeat_at__lt=Now() - timedelta(seconds=3)).update(
            heartbeat_at=Now() - timedelta(minutes=6)
        )
        assert set(words().values()) <= {"current", "idle"}, "a connection never comes back as the same one"


def test_a_follower_that_is_gone_is_told_for_a_day():
    for kind in ("follower", "connection"):
        Reader.objects.create(key=kind, name=kind, kind=kind, heartbeat_at=Now() - timedelta(minutes=6))
    assert words() == {"follower": "gone"}
