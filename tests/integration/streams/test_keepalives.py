"""The loss of a host is noticed: the kernel asks for signs of life on both ends of every connection that holds locks."""

from __future__ import annotations

import os
import socket

import pytest
from django.db import connection

from streams.db import driver
from tests.support.waiting import wait_until
from tests.support.writing import append, session, sessions

pytestmark = pytest.mark.django_db(transaction=True)
LONGEST_SECONDS = 15


def of_client(descriptor: int) -> dict[str, int]:
    """What the kernel does on our end."""
    with socket.socket(fileno=os.dup(descriptor)) as own:
        return {
            "on": own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            "idle": own.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
            "interval": own.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
            "count": own.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
            "user_timeout_ms": own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
        }


def of_server(cursor) -> dict[str, int]:
    """What the server asks its kernel for on the other end; 0 would be the system's two hours."""
    found = {}
    for name in ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout"):
        cursor.execute(f"SELECT setting FROM pg_settings WHERE name = '{name}'")
        found[name] = int(cursor.fetchone()[0])
    return found


def check_server(found: dict[str, int]) -> None:
    assert found["tcp_keepalives_idle"] > 0
    assert (
        0
        < found["tcp_keepalives_idle"] + found["tcp_keepalives_interval"] * found["tcp_keepalives_count"]
        <= LONGEST_SECONDS
    )
    assert 0 < found["tcp_user_timeout"] <= LONGEST_SECONDS * 1000


def test_the_servers_end_of_a_connection_that_appends():
    """Its open transaction holds the stream: without a sign of life a lost host would hold the stream for hours."""
    append()
    with connection.cursor() as cursor:
        check_server(of_server(cursor))


def test_every_direct_connection():
    with session() as cursor:
        check_server(of_server(cursor))
        found = of_client(cursor.connection.fileno())
    assert found["on"] == 1
    assert found["idle"] + found["interval"] * found["count"] <= LONGEST_SECONDS
    assert 0 < found["user_timeout_ms"] <= LONGEST_SECONDS * 1000


def test_connection_that_cannot_be_set_up_is_closed(monkeypatch):
    monkeypatch.setattr(driver, "SESSION_SETTINGS", "SELECT 1/0")
    with pytest.raises(driver.DatabaseError):
        driver.direct_connection(application_name="test half made")
    monkeypatch.undo()
    wait_until(lambda: not sessions("test half made"))


def test_our_end_of_a_connection_that_appends_at_a_site_with_a_database_url(run_manage):
    """As a process of its own, since the tests' own settings may use the embedded server."""
    code = (
        "from django.db import connection; connection.ensure_connection(); info = connection.connection.info; "
        "print((info.get_parameters() if hasattr(info, 'get_parameters') else info.dsn_parameters)['keepalives_idle'])"
    )
    done = run_manage("shell", "-v", "0", "-c", code)
    assert done.stdout.strip() == "5", done.stderr
