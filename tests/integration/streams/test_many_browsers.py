"""2,000 browsers on one daphne: memory, threads and connections of its process, and one fact that reaches all of them."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from django.db import connection

from tests.conftest import end_processes
from tests.support.shop import Shop, migrated_shop
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.scenario]
NUMBER = int(os.environ.get("REPLSITE_TEST_BROWSERS", "2000"))
SCHEMA = "pushed"
#: As ``startproject`` has it: each request passes middleware, has a session and a user, and ``allow`` reads them.
SETTINGS = f"""
REPLSITE_BROWSER_LIMIT = {NUMBER}
ROOT_URLCONF = "urls"
ALLOWED_HOSTS = ["127.0.0.1"]
INSTALLED_APPS += ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
"""
URLS = """
from django.contrib.auth.models import User
from django.urls import path
from shop.models import Order
from streams import durable, stream_view

def allow(request):
    return not request.user.is_staff and User.objects.count() == 0

urlpatterns = [
    path("orders/events/", stream_view(Order.stream, allow=allow)),
    path("orders/stream/", durable(Order.stream, allow=allow)),
]
"""
ASGI = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
from django.core.asgi import get_asgi_application
application = get_asgi_application()
"""
APPEND = """
import django; django.setup()
from shop.models import Order
Order.stream.append(order_id="4711", status="paid")
"""
REQUEST = b"GET /orders/%s HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: sessionid=0123456789abcdef\r\n\r\n"


@pytest.fixture
def shop(tmp_path: Path, database_url: str) -> Iterator[Shop]:
    with migrated_shop(tmp_path, database_url, SCHEMA, {"urls.py": URLS, "asgi.py": ASGI}, SETTINGS) as made:
        yield made


@pytest.mark.parametrize(
    ("query", "first"), [(b"events/", b"event: ready"), (b"stream/?offset=now&live=sse", b"event: control")]
)
def test_two_thousand_browsers_fit_into_one_small_process(shop, free_port, capsys, query, first):
    process = shop.start("-m", "daphne", "-b", "127.0.0.1", "-p", str(free_port), "-v", "0", "asgi:application")
    try:
        seen = psutil.Process(process.pid)
        wait_until(lambda: any(one.laddr.port == free_port for one in seen.net_connections("tcp")))
        found = asyncio.run(visit(free_port, seen, shop, query, first))
    finally:
        end_processes([process])
    with capsys.disabled():
        sys.stdout.write(f"\n{NUMBER} browsers: {found}\n")
    assert found["bytes"] < 200_000_000
    assert found["threads"] < 20
    assert found["connections"] <= 6, "reads, permissions, and the watcher of positions"
    assert found["refused"] == 1, "one more than the limit"


async def visit(port: int, process: psutil.Process, shop: Shop, query: bytes, first: bytes) -> dict[str, float]:
    """Opens all, then one more, and appends a fact. Returns figures of the process while all are open."""
    limit, database = asyncio.Semaphore(50), int(connection.settings_dict["PORT"])

    async def begin() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with limit:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4096)
            writer.write(REQUEST % query)
            status = await reader.readline()
            if b"200" in status:
                await reader.readuntil(first)
            elif b"503" not in status:
                raise AssertionError(status)
            return reader, writer

    async with asyncio.timeout(240):
        started = time.monotonic()
        opened = [await one for one in asyncio.as_completed([begin() for _ in range(NUMBER)])]
        seconds = time.monotonic() - started
        refused, more = await begin()
        status = await refused.readuntil(b"Too many browsers")
        more.close()
        started = time.monotonic()
        await asyncio.gather(
            asyncio.to_thread(shop.run, "-c", APPEND),
            *(reader.readuntil(b'"order_id":"4711"') for reader, _ in opened),
        )
        arrived = time.monotonic() - started
        figures = {
            "bytes": process.memory_info().rss,
            "threads": process.num_threads(),
            "connections": sum(one.raddr[1:] == (database,) for one in process.net_connections("tcp")),
            "refused": int(b"Too many browsers" in status),
            "opening_seconds": round(seconds, 1),
            "fact_seconds": round(arrived, 1),
        }
        process.kill()  # else it would say goodbye to each of them
        for _, writer in opened:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for _, writer in opened), return_exceptions=True)
        return figures
