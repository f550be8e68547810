"""WebSockets that flood, never read, say too much or have no business here, against a running site; each ends counted."""

from __future__ import annotations

import asyncio
import time
import urllib.request

import pytest
from django.contrib.auth.models import User

from replsite.dashboard.consumer import MOST_MESSAGES_PER_SECOND
from tests.support import crowd
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.websocket_client import WebSocketClient, session_cookie
from tests.support.wire_client import ready_ports

pytestmark = pytest.mark.django_db(transaction=True)
LIMIT = 200_000


class Site:
    """A serving process."""

    def __init__(self, start_manage) -> None:
        env = {"REPLSITE_WEBSOCKET_BUFFER_LIMIT_BYTES": str(LIMIT)}
        self.process = start_manage("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0", env=env)
        self.port = ready_ports(self.process)["http"]
        self.cookie = session_cookie(User.objects.create_superuser("boss"))

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=DEADLINE_SECONDS) as answer:
            return answer.read().decode()


@pytest.fixture
def site(start_manage):
    return Site(start_manage)


@pytest.fixture
def large_page(transactional_db):
    """Some 100 kB."""
    with crowd.living(writers=10, readers=20):
        yield


def counted(site: Site, reason: str) -> None:
    wait_until(lambda: f'replsite_live_closed_total{{reason="{reason}"}} 1.0' in site.metrics(), what=reason)


async def answers(site: Site) -> bool:
    """Whether a viewer who behaves is answered."""
    viewer = await WebSocketClient.connect(site.port, site.cookie)
    viewer.say({"have": 0})
    found = await viewer.read()
    viewer.close()
    return "streams" in found


async def test_what_a_viewer_may_not_do_ends_it_with_a_counted_reason_and_others_are_answered(site):
    """What a flood costs: ``test_floods``."""
    flood = await WebSocketClient.connect(site.port, site.cookie)
    for _ in range(MOST_MESSAGES_PER_SECOND + 1):
        flood.say({"have": 0})
    assert await flood.closed() == 4429
    assert await answers(site)
    counted(site, "too many messages")
    large = await WebSocketClient.connect(site.port, site.cookie)
    large.frame(b"x" * 1000, announced=1_000_000_000)
    assert await large.closed() in (1009, None)
    odd = await WebSocketClient.connect(site.port, site.cookie)
    odd.frame(b"\x00" * 50)
    assert await odd.closed() == 4400
    counted(site, "not understood")
    with pytest.raises(PermissionError, match="403"):
        await WebSocketClient.connect(site.port)
    counted(site, "not logged in")
    with pytest.raises(PermissionError, match="403"):
        await WebSocketClient.connect(site.port, site.cookie, origin="http://evil.example")
    assert await answers(site)


async def test_a_viewer_that_asks_and_never_reads_is_cut_off_and_counted(site, large_page):
    deaf = await WebSocketClient.connect(site.port, site.cookie, receive_bytes=2_048)
    deaf.writer.transport.pause_reading()
    deadline = time.monotonic() + 120
    while not deaf.writer.transport.is_closing():  # it says that it has nothing, so each answer is a whole page
        assert time.monotonic() < deadline, "it was not cut off"
        deaf.say({"have": 0})
        await asyncio.sleep(0.2)
    assert await answers(site), "with as large a page"
    wait_until(lambda: "WebSocket client too slow" in site.metrics())
