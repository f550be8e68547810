"""The reading tests of the protocol Durable Streams, as its authors publish them, against ``durable`` under daphne.

They make streams and append to them by requests, which ``durable`` does not offer. A view of the test's project does it
in its place: it empties one of a few declared streams for each address that a test makes, and appends facts to it.

Left out are tests of writing, of streams that expire, are closed or forked, and of bytes that are no text: no stream of
a Django project has these.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import end_processes
from tests.support.npm import NODE_MODULES, needs_npm
from tests.support.shop import Shop, migrated_shop
from tests.support.waiting import DEADLINE_SECONDS, wait_until

pytestmark = [pytest.mark.django_db(transaction=True), needs_npm]
SCHEMA = "conforming"
SETTINGS = """
ROOT_URLCONF = "urls"
ALLOWED_HOSTS = ["127.0.0.1"]
MIDDLEWARE = ["django.middleware.security.SecurityMiddleware"]
"""
MODELS = """
from django.db import models
from streams import Fact, stream


@stream("first")
class First(Fact):
    data = models.TextField()


@stream("second")
class Second(Fact):
    data = models.TextField()


@stream("third")
class Third(Fact):
    data = models.TextField()
"""
URLS = """
import itertools, json
from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.http import HttpResponse
from django.urls import path
from shop.models import First, Second, Third
from streams import durable

models, made = itertools.cycle([First, Second, Third]), {}


def texts(kind, body):
    if kind.partition(";")[0] != "application/json":
        return [body.decode()] if body else []
    found = json.loads(body or "[]")
    return [json.dumps(one) for one in (found if isinstance(found, list) else [found])]


@sync_to_async
def create(name, kind, body):
    if name in made:
        return HttpResponse(status=200 if made[name][0] == kind else 409)
    model = next(models)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL streams.maintenance = on")  # what readers of another address had is deleted
        model.objects.all().delete()
    render = (lambda fact: json.loads(fact.data)) if kind.startswith("application/json") else (lambda fact: fact.data)
    view = durable(model.stream, allow=lambda request: True, render=render, content_type=kind, beat=1.0)
    made[name] = kind, model, view
    append(name, body)
    return HttpResponse(status=201, content_type=kind)


def append(name, body):
    kind, model, _ = made[name]
    given = texts(kind, body)
    if given:
        model.stream.append(*(model(data=text) for text in given))
    return bool(given)


@sync_to_async
def extend(name, body):
    try:
        return HttpResponse(status=204 if append(name, body) else 400)
    except ValueError:
        return HttpResponse(status=400)


async def chunks(request, name):
    if request.method == "PUT":
        return await create(name, request.headers.get("Content-Type", "text/plain"), request.body)
    if name not in made:
        return HttpResponse(status=404)
    if request.method == "POST":
        return await extend(name, request.body)
    if request.method == "DELETE":
        del made[name]
        return HttpResponse(status=204)
    return await made[name][2](request)


urlpatterns = [path("v1/stream/<name>", chunks)]
"""
ASGI = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
from django.core.asgi import get_asgi_application
application = get_asgi_application()
"""
PACKAGE = NODE_MODULES / "@durable-streams" / "server-conformance-tests" / "dist" / "index.js"
RUN = """
import {{ runConformanceTests }} from "{package}"
runConformanceTests({{ baseUrl: "http://127.0.0.1:{port}" }})
"""
#: Patterns of their names.
CHOSEN = [
    "(Read|Long-Poll) Operations ", "Long-Poll Edge Cases ", "Read-Your-Writes Consistency ", "JSON Mode should ",
    "HTTP Protocol should (return correct headers on GET|return empty body|read from offset)",
    "Content-Type Validation should return stream content-type on GET", "HEAD Metadata should ",
    "Browser Security Headers .*(nosniff on (GET|HEAD|SSE|long-poll)|no-store|error responses)",
    "Offset Validation and Resumability ", "Caching and ETag .*(ETag|304|200)",
    "Protocol Edge Cases should (preserve data|reject (empty|multiple) offset|ignore unknown)",
    "SSE Mode (?!.*(base64|binary))",
]  # fmt: skip
NUMBER = 91
#: The one that tries many offsets takes a fifth of the time.
LONG = ".*Offset Validation Properties "


@pytest.fixture
def shop(tmp_path: Path, database_url: str) -> Iterator[Shop]:
    files = {"shop/models.py": MODELS, "urls.py": URLS, "asgi.py": ASGI}
    with migrated_shop(tmp_path, database_url, SCHEMA, files, SETTINGS) as made:
        yield made


@pytest.mark.parametrize(
    ("chosen", "number"),
    [(CHOSEN, NUMBER), pytest.param([*CHOSEN, LONG], NUMBER + 1, marks=pytest.mark.scenario)],
    ids=["most", "all"],
)
def test_the_protocols_own_tests_of_reading_pass(shop, free_port, tmp_path, chosen, number):
    server = shop.start("-m", "daphne", "-b", "127.0.0.1", "-p", str(free_port), "-v", "0", "asgi:application")
    seen, report = psutil.Process(server.pid), tmp_path / "report.json"
    (tmp_path / "reading.test.mjs").write_text(RUN.format(port=free_port, package=PACKAGE))
    options = ["--reporter=json", f"--outputFile={report}", f"--testTimeout={1_000 * DEADLINE_SECONDS:.0f}"]
    try:
        wait_until(lambda: any(one.laddr.port == free_port for one in seen.net_connections("tcp")))
        done = subprocess.run(
            [NODE_MODULES / ".bin" / "vitest", "run", *options, "--testNamePattern", f"^ ?({'|'.join(chosen)})"],
            cwd=tmp_path, capture_output=True, text=True, timeout=4 * DEADLINE_SECONDS, check=False,
        )  # fmt: skip
    finally:
        end_processes([server])
    assert report.exists(), done.stdout + done.stderr
    found = [one for file in json.loads(report.read_text())["testResults"] for one in file["assertionResults"]]
    failed = {one["fullName"]: one["failureMessages"] for one in found if one["status"] == "failed"}
    assert not failed
    assert sum(one["status"] == "passed" for one in found) == number
