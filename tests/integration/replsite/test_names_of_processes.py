"""Processes of a project write side by side without settings: threads, forks, spawned ones, a shell, servers."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import URLError

import pytest

from streams.conf import on_this_host
from tests.support.own_project import OwnProject, made_project, made_schema
from tests.support.waiting import DEADLINE_SECONDS, wait_until

SCHEMA = "names_of_processes"
HOST = on_this_host("{host}")
#: Appends and says under which name; the module is imported by spawned processes, too.
WORK = """
import os
import django

django.setup()
from shop.models import Order
from streams import registry


def append():
    (token,) = registry.get("orders").append(Order(order_id="1", status="paid"))
    return os.getpid(), Order.objects.get(stream_id=token).instance_name
"""
SIDE_BY_SIDE = """
import json, multiprocessing, os, subprocess, sys, threading
from work import append


def two_threads(at_work, found):
    said = []
    threads = [threading.Thread(target=lambda: said.append(append())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    at_work.wait(60)  # all of them live at once
    for pair in said:
        found.put(pair)


if __name__ == "__main__":
    here = append()  # what a worker of gunicorn or Celery inherits: a process that has written
    shell = "from work import append; import json; print(json.dumps(append()))"
    done = subprocess.run([sys.executable, "-m", "django", "shell", "-v", "0", "-c", shell], capture_output=True, check=True)
    said = [here, json.loads(done.stdout)]
    for way in ("fork", "spawn"):
        context = multiprocessing.get_context(way)
        found, at_work = context.Queue(), context.Barrier(3)
        children = [context.Process(target=two_threads, args=(at_work, found)) for _ in range(3)]
        for child in children:
            child.start()
        said += [found.get(timeout=100) for _ in range(6)]
        for child in children:
            child.join(60)
        assert [child.exitcode for child in children] == [0, 0, 0]
    said.append(append())
    print(json.dumps(said))
"""
#: Writes before the workers are forked from it.
WSGI = """
from django.core.wsgi import get_wsgi_application

application = get_wsgi_application()
from work import append
append()
"""
URLS = """
from django.http import JsonResponse
from django.urls import path
from work import append

urlpatterns = [path("append", lambda request: JsonResponse(append(), safe=False))]
"""
HANDLERS = """
from streams import handles
from streams.follow import Begin


@handles("orders", reader="books", begin=Begin.OLDEST)
def keep(chunk):
    with open("handled", "a") as file:
        file.write(f"{len(chunk.facts)} ")
"""
ROUTED = """
_url = os.environ["DATABASE_URL"]
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "own.sqlite3"},
    "log": dj_database_url.parse(_url),
    "copy": dj_database_url.parse(_url.replace("names_of_processes", "names_of_processes_copy")),
}
DATABASE_ROUTERS = ["routing.Router"]
"""
ROUTER = """
class Router:
    def db_for_read(self, model, **hints):
        return "log" if model._meta.app_label in ("streams", "shop") else None

    db_for_write = db_for_read
"""


@pytest.fixture
def project(tmp_path: Path, database_url: str) -> Iterator[OwnProject]:
    (tmp_path / "work.py").write_text(WORK)
    (tmp_path / "urls.py").write_text(URLS)
    with made_project(tmp_path, database_url, SCHEMA, 'DEBUG = True\nROOT_URLCONF = "urls"\n') as made:
        yield made


def test_all_processes_of_a_machine_have_its_name(project):
    (project.folder / "side_by_side.py").write_text(SIDE_BY_SIDE)
    said = json.loads(project.python("side_by_side.py"))
    (first, name), (_, of_shell), *of_children, last = said
    assert [first, name] == [last[0], last[1]] and name == of_shell == HOST
    assert len({process for process, _ in of_children}) == 6 and {used for _, used in of_children} == {HOST}


def answer(port: int) -> tuple[int, str] | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/append", timeout=DEADLINE_SECONDS) as found:
            process, name = json.load(found)
            return process, name
    except (URLError, ConnectionError, ValueError):  # none, or an answer that ended with its process
        return None


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_workers_of_gunicorn_write_side_by_side_after_a_fork(project):
    """Each worker is replaced after 20 requests, by a fork of the process that has written."""
    (project.folder / "wsgi.py").write_text(WSGI)
    options = ["--preload", "--workers", "2", "--max-requests", "20", "--log-level", "error"]
    port = free_port()
    server = project.start(*options, "--bind", f"127.0.0.1:{port}", "wsgi", module="gunicorn")
    said: list[tuple[int, str]] = []

    def four_workers_wrote() -> bool:
        with ThreadPoolExecutor(4) as pool:
            said.extend(filter(None, pool.map(lambda _: answer(port), range(8))))
        return len({process for process, _ in said}) >= 4

    try:
        wait_until(four_workers_wrote)
    finally:
        server.terminate()
        server.wait(DEADLINE_SECONDS)
    assert {name for _, name in said} == {HOST}
    page = "from shop.models import Order; page = Order.stream.read(limit=10_000); print(len(page.facts), page.at_end)"
    count, at_end = project.script(page).split()
    assert int(count) > len(said) and at_end == "True"


@pytest.mark.scenario
def test_a_reloading_server_goes_on_writing(project):
    port = free_port()
    server = project.start("runserver", f"127.0.0.1:{port}")
    try:
        wait_until(lambda: answer(port))
        before = answer(port)
        assert before is not None
        (project.folder / "work.py").write_text(WORK + "\n# changed\n")
        wait_until(lambda: (now := answer(port)) is not None and now[0] != before[0])
        after = answer(port)
        assert after is not None and after[1] == before[1] == HOST
    finally:
        server.terminate()
        server.wait(DEADLINE_SECONDS)


@pytest.mark.scenario
def test_the_router_decides_where_streams_are_and_the_command_shows_another_database(tmp_path, database_url):
    """``default`` is SQLite here; ``copy`` has the engine's tables as well."""
    (tmp_path / "work.py").write_text(WORK)
    (tmp_path / "routing.py").write_text(ROUTER)
    with (
        made_project(tmp_path, database_url, SCHEMA, 'INSTALLED_APPS += ["replsite"]\n') as project,
        made_schema(f"{SCHEMA}_copy"),
    ):
        with (tmp_path / "settings.py").open("a") as file:
            file.write(ROUTED)
        project.run("migrate", "-v", "0", "--database", "copy")
        code = "from work import append, registry; append(); append(); registry.get('orders').current()"
        project.script(code)
        assert "no issues" in project.run("check")
        there = json.loads(project.run("streams", "--json", "--now"))["streams"]
        assert [(one["name"], one["linear_position"]) for one in there] == [("orders", 3)]
        other = json.loads(project.run("streams", "--json", "--now", "--database", "copy"))["streams"]
        assert [(one["name"], one["linear_position"]) for one in other] == [("orders", 1)]
        assert "use default, log, copy" in project.run("streams", "--database", "none", status=2)

        # The reader reads where the router keeps the stream, whatever the engine's own setting says.
        (tmp_path / "shop" / "handlers.py").write_text(HANDLERS)
        with (tmp_path / "settings.py").open("a") as file:
            file.write('REPLSITE_DATABASE = "copy"\n')
        assert "books: 2 facts handled" in project.run("runhandlers", "--once")
        assert (tmp_path / "handled").read_text() == "2 "
        assert "books: 0 facts handled" in project.run("runhandlers", "--once")
        project.run("resync", "reader", "books", "--from", "orders=0")
        assert "books: 2 facts handled" in project.run("runhandlers", "--once")
        assert "streams.W017" in project.run("check", "--fail-level", "WARNING", status=1)
