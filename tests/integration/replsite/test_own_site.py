"""The pages of the site in a project of another team: ``INSTALLED_APPS`` has ``streams`` and ``replsite``, and no rooms."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections.abc import Iterator
from urllib.error import URLError

import pytest

from tests.support.own_project import OwnProject, as_it_was, made_for_module, made_project, tables_of
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.wire_client import ready_ports
from tests.support.writing import sessions

pytestmark = pytest.mark.django_db(transaction=True)
SCHEMA = "own_site"
#: As ``startproject`` writes them, and the lines that the page on installing adds.
SETTINGS = """
DEBUG = True
INSTALLED_APPS = [
    "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions",
    "django.contrib.messages", "django.contrib.staticfiles",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "urls"
TEMPLATES = [{
    "BACKEND": "django.template.backends.django.DjangoTemplates",
    "DIRS": [],
    "APP_DIRS": True,
    "OPTIONS": {"context_processors": [
        "django.template.context_processors.request",
        "django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages",
    ]},
}]
STATIC_URL = "static/"
ALLOWED_HOSTS = ["testserver", "127.0.0.1"]

INSTALLED_APPS += ["streams", "replsite", "shop"]
"""
URLS = """
from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("admin/", admin.site.urls)]
urlpatterns += [path("streams/", include("replsite.urls"))]
"""
APPEND = """
from shop.models import Order
from streams import registry
registry.get("orders").append(Order(order_id="4711", status="paid"))
registry.get("orders").current()  # looks, as nobody else does here
"""
#: Each page as staff sees it: address, status and text. Then what was imported.
LOOK = """
import json, sys
from django.contrib.auth.models import User
from django.test import Client

client = Client()
client.force_login(User.objects.filter(username="ann").first() or User.objects.create_superuser("ann"))
pages = {}
for address in json.loads(sys.argv[-1]):
    answer = client.get(address)
    pages[address] = [answer.status_code, answer.headers.get("Location") or answer.content.decode()]
rooms = ("events", "state", "pipeline", "pyspark", "pandas", "unfold")
print(json.dumps([pages, sorted(name for name in sys.modules if name.partition(".")[0] in rooms)]))
"""
PAGES = (
    "/streams/", "/streams/live/", "/streams/live/data/", "/streams/history/", "/streams/history/?stream=orders",
    "/streams/facts/", "/streams/facts/?stream=orders",
    "/streams/metrics", "/streams/health", "/streams/health/ready", "/admin/", "/admin/streams/streamposition/",
    "/streams/actions/end/?name=orders",
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory, url_of_test_database, django_db_blocker) -> Iterator[OwnProject]:
    folder = tmp_path_factory.mktemp(SCHEMA)
    (folder / "urls.py").write_text(URLS)
    with made_for_module(django_db_blocker, made_project(folder, url_of_test_database, SCHEMA, SETTINGS)) as project:
        yield project


@pytest.fixture
def site(made) -> Iterator[OwnProject]:
    with as_it_was(made) as project:
        yield project


def look(site: OwnProject, *addresses: str) -> tuple[dict[str, tuple[int, str]], list[str]]:
    (site.folder / "look.py").write_text(f"import django; django.setup()\n{LOOK}")
    return json.loads(site.python("look.py", json.dumps(addresses)))


def test_every_page_works_without_rooms(site):
    assert "no issues" in site.run("check", "--fail-level", "WARNING")
    site.script(APPEND)
    pages, rooms = look(site, *PAGES)
    assert {address: status for address, (status, _) in pages.items()} == {
        address: 302 if address == "/streams/" else 200 for address in PAGES
    }
    assert rooms == []
    assert pages["/streams/"][1] == "/streams/live/"
    live = pages["/streams/live/"][1]
    assert "orders" in live and 'data-source="/streams/live/data/"' in live
    assert re.findall(r'id="live-(\w+)-title"', live) == [
        "streams",
        "readers",
        "storage",
    ]  # no jobs, no rooms, no workers
    assert 'replsite_stream_position{stream="orders",writer=' in pages["/streams/metrics"][1]
    assert "events" not in pages["/streams/metrics"][1].replace("replsite_", "").split("process_")[0]
    assert "order_id 4711, status paid" in pages["/streams/facts/"][1]
    assert json.loads(pages["/streams/health"][1])["well"]
    listed = set(re.findall(r'href="/admin/streams/(\w+)/"', pages["/admin/"][1]))
    assert {"streamposition", "reader", "storedcursor", "parkedfact"} <= listed
    assert not [
        name for name in listed if name.startswith(("recorded", "worker", "sync", "federation", "useraddress", "key"))
    ]


def test_a_project_may_include_the_pages_for_people_only(site):
    urls = site.folder / "urls.py"
    text = urls.read_text().replace('include("replsite.urls")', "include(replsite.urls.pages)")
    urls.write_text(f"import replsite.urls\n{text}")
    site.script(APPEND)
    people, machines = ("live/", "live/data/", "history/"), ("metrics", "health", "health/ready")
    pages, _ = look(site, *(f"/streams/{name}" for name in (*people, *machines)))
    assert [status for status, _ in pages.values()] == [200] * 3 + [404] * 3


def test_streams_never_written_share_one_line(site):
    with (site.folder / "settings.py").open("a") as file:
        file.write('INSTALLED_APPS += ["streams.catalog"]\n')
    site.run("migrate", "-v", "0")
    site.script(APPEND)
    pages, rooms = look(site, "/streams/live/", "/streams/live/data/", "/admin/")
    assert rooms == []
    assert "/admin/streams/workerconnection/" in pages["/admin/"][1]
    assert "No worker has reported anything." in pages["/streams/live/"][1]
    groups = json.loads(pages["/streams/live/data/"][1])["streams"]
    assert [key for key, _ in groups] == ["orders", "\nunused"]
    ((_, line),) = groups[1][1]
    assert (
        "14 streams were never written" in line
        and "presence, presence_federation" in line
        and 'class="live-more"' not in line
    )
    assert "14 streams were never written" in site.run("streams", "--now")


def is_served(port: int) -> bool:
    try:
        for address in ("/streams/health/live", "/static/dashboard/live.js", "/streams/metrics"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{address}", timeout=DEADLINE_SECONDS) as answer:
                assert answer.status == 200
    except URLError:
        return False
    return True


def test_djangos_own_server_serves_it(site):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    server = site.start("runserver", f"127.0.0.1:{port}", "--noreload")
    try:
        wait_until(lambda: is_served(port))
    finally:
        server.terminate()
        server.wait(DEADLINE_SECONDS)


def test_our_server_serves_it(site):
    """It also takes the samples of the history."""
    server = site.start("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0")
    try:
        assert is_served(ready_ports(server)["http"])
        names = [*sessions("replsite broadcaster%").values()]
        assert names and not [name for name in names if "{" in name], "it holds no number, so it says none"
    finally:
        server.terminate()
        server.wait(DEADLINE_SECONDS)


def test_an_app_of_the_project_may_be_called_as_one_of_ours(site):
    """It gets none of our migrations and no blame, and the pages do not take it for ours."""
    (site.folder / "events" / "migrations").mkdir(parents=True)
    for package in ("events", "events/migrations"):
        (site.folder / package / "__init__.py").touch()
    (site.folder / "events" / "models.py").write_text(
        "from django.db import models\n\n\nclass Concert(models.Model):\n    place = models.TextField()\n"
    )
    with (site.folder / "settings.py").open("a") as file:
        file.write('INSTALLED_APPS += ["events"]\nMIGRATION_MODULES = {"streams": "migrations.streams"}\n')
    site.run("makemigrations", "events")
    site.run("migrate", "-v", "0")
    assert {name for name in tables_of(SCHEMA) if name.startswith("events_")} == {
        "events_concert", "events_concert_id_seq", "events_concert_pkey"
    }  # fmt: skip
    assert "no issues" in site.run("check", "--fail-level", "WARNING")
    pages, _ = look(site, "/streams/live/", "/streams/metrics", "/streams/health")
    assert [status for status, _ in pages.values()] == [200, 200, 200]
