"""A site whose database is away says so, instead of hanging, lying or falling over; and is well again when it is back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest

from tests.conftest import end_processes
from tests.support.browsing import BROWSER, Site, keep, log_in
from tests.support.proxy import proxy_to
from tests.support.session import PROJECT
from tests.support.waiting import DEADLINE_SECONDS, wait_until


@pytest.fixture
def ask(free_port, wait_until):
    """``ask(path)``: status and body of a site whose DATABASE_URL leads nowhere."""
    command = [sys.executable, "-m", "daphne", "-b", "127.0.0.1", "-p", str(free_port), "replsite.asgi:application"]
    environment = {**os.environ, "DATABASE_URL": "postgres://nobody:x@127.0.0.1:1/nothing"}
    process = subprocess.Popen(command, cwd=PROJECT, env=environment, stderr=subprocess.DEVNULL, start_new_session=True)

    def get(path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{free_port}{path}", timeout=DEADLINE_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()
        except urllib.error.URLError:
            return 0, ""

    wait_until(lambda: get("/health/live")[0] == 200)
    yield get
    end_processes([process])


def test_probes_and_metrics_answer_and_say_what_to_do(ask):
    assert ask("/health/live")[0] == 200
    for path in ("/health/ready", "/health"):
        status, body = ask(path)
        assert status == 503
        assert "Start the server, or correct DATABASES (or DATABASE_URL)." in json.loads(body)["sentence"]
    status, body = ask("/metrics")
    assert status == 200
    assert "replsite_snapshot_up 0.0" in body
    assert "replsite_stream_position" not in body


# --- it goes, and comes back ------------------------------------------------------------------------------------------


@pytest.fixture
def between(database_url):
    """What stands between the site and its database, and can be cut."""
    with proxy_to(urlsplit(database_url).port) as proxy:
        proxy.url = database_url.replace(f":{urlsplit(database_url).port}/", f":{proxy.port}/")
        yield proxy


@pytest.fixture
def site(start_manage, free_port, between):
    """A running site behind it."""
    return Site(lambda *arguments: start_manage(*arguments, env={"DATABASE_URL": between.url}), free_port)


def get(site, path, **headers):
    """Status and body."""
    try:
        with urllib.request.urlopen(
            urllib.request.Request(site.address + path, headers=headers), timeout=DEADLINE_SECONDS
        ) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def take_away(proxy):
    proxy.refuse()
    proxy.cut()


@pytest.mark.django_db(transaction=True)
def test_everything_says_that_the_database_went_and_is_well_when_it_is_back(site, between):
    assert get(site, "/health/ready")[0] == 200
    take_away(between)
    for path in ("/health/ready", "/health"):
        status, body = get(site, path)
        assert (status, "Start the server, or correct DATABASES (or DATABASE_URL)." in body) == (503, True), path
    assert get(site, "/health/live")[0] == 200
    wait_until(lambda: "replsite_snapshot_up 0.0" in get(site, "/metrics")[1])  # a snapshot is shared for a second
    cookie = {"Cookie": "sessionid=" + "a" * 32}
    status, body = get(site, "/admin/live/data/", **cookie)
    assert (status, json.loads(body)) == (503, {"error": "The database cannot be read."})
    for path in ("/admin/live/", "/admin/login/", "/admin/pipeline/job/", "/admin/history/"):
        status, body = get(site, path, Accept="text/html", **cookie)
        if path != "/admin/login/" or status != 200:  # the form itself needs no database
            assert (status, "The database cannot be read." in body) == (503, True), path
        assert "Traceback" not in body
        assert str(between.port) not in body, "where the database is, is nobody's business"
    between.refuse(False)
    wait_until(lambda: get(site, "/health/ready")[0] == 200)
    wait_until(lambda: "replsite_snapshot_up 1.0" in get(site, "/metrics")[1])
    assert get(site, "/admin/live/data/", **cookie)[0] == 403


class TestInTheBrowser:
    pytestmark = BROWSER

    @pytest.mark.scenario
    def test_an_open_page_says_so_and_goes_on_by_itself(self, site, between, boss, new_page):
        page = new_page()
        log_in(page)
        link = page.locator("#live-link")
        link.get_by_text("Live", exact=True).wait_for()
        take_away(between)
        page.locator("#live-link", has_text="The database cannot be read.").wait_for()
        page.locator("#live.live-stale").wait_for()
        keep(page, "database-away-live")
        other = page.context.new_page()
        assert other.goto("/admin/live/").status == 503
        other.get_by_role("alert").get_by_text("The database cannot be read.").wait_for()
        keep(other, "database-away")
        between.refuse(False)
        page.locator("#live-link", has_text="Live").wait_for(timeout=60_000)
        page.locator("#live:not(.live-stale)").wait_for()
        other.locator("#live-link", has_text="Live").wait_for(timeout=60_000)
