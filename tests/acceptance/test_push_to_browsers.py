"""The page on pushing to browsers, followed to the letter: its shop under daphne, in Chromium, through every restart."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replsite.postgres.server import EmbeddedServer
from tests.conftest import end_processes
from tests.support.browsing import BROWSER, keep
from tests.support.npm import CLIENT, needs_npm
from tests.support.session import PROJECT
from tests.support.shop import Shop
from tests.support.waiting import DEADLINE_SECONDS, wait_until

pytestmark = BROWSER
PAGE = (PROJECT / "docs" / "how-to" / "push-to-browsers.md").read_text()
#: The tutorial's own database, which the test may kill.
SETTINGS = """
ROOT_URLCONF = "with_static"
ALLOWED_HOSTS = ["127.0.0.1"]
DEBUG = True
STATIC_URL = "static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
INSTALLED_APPS += ["django.contrib.staticfiles"]
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "DIRS": [BASE_DIR / "templates"]}]
DATABASES = {"default": {"ENGINE": "replsite.postgres.backend", "NAME": "shop"}}
REPLSITE_POSTGRES_FSYNC = False
"""
WITH_STATIC = """
from django.contrib.staticfiles.urls import staticfiles_urlpatterns
from urls import urlpatterns
urlpatterns = urlpatterns + staticfiles_urlpatterns()
"""
#: Appends until a file is there, whatever happens to the database. What was committed is in the table.
WRITE = """
import pathlib, time
import django
django.setup()
from django.db import connections
from shop.models import Order
number = 0
while not pathlib.Path("stop").exists():
    number += 1
    try:
        Order.stream.append(order_id=str(number), status="paid")
    except Exception as error:
        print(repr(error), flush=True)
        connections.close_all()
        time.sleep(0.1)
    time.sleep(0.02)
"""
TABLE = """
import json, django
django.setup()
from shop.models import Order
print(json.dumps([int(one) for one in Order.objects.order_by("stream_id").values_list("order_id", flat=True)]))
"""


class Served:
    """The shop, its server, its database, and a process that appends."""

    def __init__(self, shop: Shop, port: int) -> None:
        self.shop, self.port = shop, port
        self.process: subprocess.Popen[str] | None = None
        self.writer: subprocess.Popen[str] | None = None
        self.address = f"http://127.0.0.1:{port}"

    def start(self) -> None:
        self.process = self.shop.start("-m", "daphne", "-b", "127.0.0.1", "-p", str(self.port), "asgi:application")
        wait_until(self._answers)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/orders/", timeout=DEADLINE_SECONDS) as answer:
                return answer.status == 200
        except OSError:
            return False

    def stop(self) -> None:
        assert self.process is not None
        end_processes([self.process])

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def write(self) -> None:
        self.writer = self.shop.start("-c", WRITE)

    def end_writing(self) -> list[int]:
        """What the table has in the end, in order."""
        assert self.writer is not None
        (self.shop.folder / "stop").touch()
        assert self.writer.wait(DEADLINE_SECONDS) == 0
        return list(json.loads(self.shop.run("-c", TABLE).splitlines()[-1]))

    def end_database(self, sign: signal.Signals) -> None:
        """Who connects next starts it again."""
        server = EmbeddedServer(self.shop.folder / "data")
        before = server.running()
        assert before is not None
        os.kill(before.pid, sign)

        def is_another() -> bool:
            now = server.running()
            return now is not None and now.ready and now.pid != before.pid

        wait_until(is_another)

    def end(self) -> None:
        (self.shop.folder / "stop").touch()
        end_processes(filter(None, (self.process, self.writer)))
        EmbeddedServer(self.shop.folder / "data").stop()


def shop_in(folder: Path) -> Shop:
    given = dict(re.findall(r"```(?:python|html)\n(?:#|<!--) (\S+)(?: -->)?\n(.*?)```", PAGE, re.S))
    assert set(given) == {"urls.py", "templates/orders.html", "templates/live.html", "asgi.py"}
    (further,) = re.findall(r"```python\n# in urls.py\n(.*?)```", PAGE, re.S)
    given["urls.py"] += further
    if CLIENT.exists():
        given["static/durable-streams.js"] = CLIENT.read_text()
    shop = Shop(folder, "", given | {"with_static.py": WITH_STATIC})
    shop.environment["DJANGO_SETTINGS_MODULE"] = "settings"
    with (folder / "settings.py").open("a") as settings:
        settings.write(SETTINGS)
    return shop


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a shop whose tables are made, and whose database is stopped."""
    shop = shop_in(tmp_path_factory.mktemp("made"))
    try:
        shop.run("manage.py", "makemigrations", "shop")
        shop.run("manage.py", "migrate", "-v", "0")
    finally:
        EmbeddedServer(shop.folder / "data").stop()
    return shop.folder


@pytest.fixture
def site(made: Path, tmp_path: Path, free_port: int) -> Iterator[Served]:
    subprocess.run(["cp", "-a", f"{made}/.", str(tmp_path)], check=True)
    served = Served(shop_in(tmp_path), free_port)
    try:
        served.start()
        yield served
    finally:
        served.end()


def count(page: Any, more: int) -> None:
    """Waits until so many further orders are on the page."""
    number = page.locator("#orders li").count() + more
    page.wait_for_function(f"document.querySelectorAll('#orders li').length >= {number}")


@pytest.mark.scenario
def test_a_page_misses_nothing_through_restarts_of_server_and_database(site, new_page):
    page = new_page()
    page.goto("/orders/")
    status = page.locator("#status")
    status.get_by_text("live").wait_for()
    # A second one over the WebSocket.
    page.evaluate(
        """async () => { window.seen = [];
        const { follow } = await import("/static/streams/follow.js");
        const fact = (order) => seen.push(Number(order.order_id)), status = (word) => { window.socketIs = word; };
        follow(location.origin.replace("http", "ws") + "/ws/orders/", { after: "0", fact, status }); }"""
    )
    page.wait_for_function("window.socketIs === 'live'")
    site.write()
    count(page, 20)
    keep(page, "orders-live")

    site.kill()
    status.get_by_text("waiting").wait_for()
    site.start()
    count(page, 10)
    status.get_by_text("live").wait_for()

    site.end_database(signal.SIGKILL)  # it recovers from a crash
    count(page, 10)
    site.end_database(signal.SIGINT)  # a quick, orderly restart
    count(page, 10)

    site.stop()
    status.get_by_text("waiting").wait_for()
    site.end_database(signal.SIGINT)
    site.start()
    count(page, 10)

    expected = site.end_writing()
    page.wait_for_function(f"document.querySelectorAll('#orders li').length >= {len(expected)}")
    page.wait_for_function(f"seen.length >= {len(expected)}")
    assert [int(text.split()[0]) for text in page.locator("#orders li").all_text_contents()] == expected
    assert page.evaluate("seen") == expected


def test_the_browsers_own_event_source_goes_on_by_itself(site, new_page):
    """Without ``follow.js``: Chromium keeps the token, and sends it as Last-Event-ID."""
    page = new_page()
    page.goto("/orders/")
    page.evaluate(
        """() => { window.seen = []; window.own = new EventSource("/orders/events/");
        own.addEventListener("ready", () => { window.ready = (window.ready || 0) + 1; });
        own.onmessage = (event) => seen.push(Number(JSON.parse(event.data).order_id)); }"""
    )
    page.wait_for_function("window.ready === 1")
    site.write()
    page.wait_for_function("seen.length >= 5")
    site.kill()
    site.start()
    page.wait_for_function("window.ready >= 2")
    expected = site.end_writing()
    page.wait_for_function(f"seen.length >= {len(expected)}")
    assert page.evaluate("seen") == expected


@needs_npm
@pytest.mark.parametrize("restarts", [2, pytest.param(100, marks=[pytest.mark.scenario, pytest.mark.timeout(1_800)])])
def test_the_published_client_misses_nothing_through_restarts(site, new_page, restarts):
    """By server-sent events as the page has it, and by long polls beside it."""
    page = new_page()
    page.goto("/orders/live/")
    page.evaluate(
        """async () => { window.seen = [];
        const { stream } = await import("/static/durable-streams.js"), url = new URL("/orders/stream/", location);
        const follow = async () => { for (let offset = "-1";;) { try {
            const session = await stream({ url, offset, live: true });
            session.subscribeJson((batch) => {
                seen.push(...batch.items.map((order) => Number(order.order_id)));
                offset = batch.offset; });
            await session.closed;
        } catch (error) { if (error.status) throw error; } } };
        follow(); }"""
    )
    site.write()
    for number in range(restarts):
        seen = page.evaluate("seen.length") + 5
        count(page, 5)
        page.wait_for_function(f"seen.length >= {seen}")
        match number % 5:
            case 0:
                site.kill()
                site.start()
            case 1:
                site.end_database(signal.SIGKILL)
            case 2:
                site.end_database(signal.SIGINT)
            case 3:
                site.stop()
                site.start()
            case _:
                site.stop()
                site.end_database(signal.SIGINT)
                site.start()
    count(page, 5)
    expected = site.end_writing()
    page.wait_for_function(f"document.querySelectorAll('#orders li').length >= {len(expected)}")
    page.wait_for_function(f"seen.length >= {len(expected)}")
    assert [int(text.split()[0]) for text in page.locator("#orders li").all_text_contents()] == expected
    assert page.evaluate("seen") == expected


def test_what_the_page_says_of_the_wire(site):
    with urllib.request.urlopen(f"{site.address}/orders/events/?after=0", timeout=DEADLINE_SECONDS) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        site.write()
        blocks = "".join(answer.readline().decode() for _ in range(9)).split("\n\n")
    assert blocks[0] == "retry: 1000"
    kind, token, ready = blocks[1].split("\n")
    assert (kind, token) == ("event: ready", "id: 0")
    assert json.loads(ready.removeprefix("data: ")) == {"after": "0", "beat": 15.0}
    token, data = blocks[2].split("\n")
    assert re.fullmatch(r"id: 2@\w+", token)
    assert json.loads(data.removeprefix("data: ")) == {"order_id": "1", "status": "paid", "@version": 1}


def test_a_page_notices_a_network_that_died_without_a_word(site, new_page):
    """Its server stops with all its threads, and closes nothing. The page's clock is put forward by three beats."""
    page = new_page()
    page.clock.install()
    page.goto("/orders/")
    status = page.locator("#status")
    status.get_by_text("live").wait_for()
    assert site.process is not None
    site.process.send_signal(signal.SIGSTOP)
    try:
        page.clock.fast_forward(44_000)
        assert status.text_content() == "live"
        page.clock.fast_forward(2_000)
        status.get_by_text("waiting").wait_for()
    finally:
        site.process.send_signal(signal.SIGCONT)
    status.get_by_text("live").wait_for()
