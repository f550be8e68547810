"""What a busy site writes on standard error: every line has one form, whoever it comes from, and says who, where and why."""

from __future__ import annotations

import http.client
import json
import socket
from urllib.parse import urlsplit

import pytest

from tests.conftest import end_processes
from tests.support.proxy import proxy_to
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.wire_client import WireClient, ready_ports

pytestmark = pytest.mark.django_db(transaction=True)
SECRET = "a-replication-secret-of-this-test"
NAMES = ("\x1b[31mred", "<b>bold</b>", "back\x08space", "turned\u202eround", "x" * 500)


@pytest.fixture
def between(database_url):
    """The way to the database, which can be cut."""
    with proxy_to(urlsplit(database_url).port) as proxy:
        yield proxy


@pytest.fixture(params=["json", pytest.param("key-value", marks=pytest.mark.scenario)])
def lines(request, start_manage, between, database_url, tmp_path):
    """The lines of a site that was kept busy in every way, in either form, and the site's ports are closed again."""
    url = database_url.replace(f":{urlsplit(database_url).port}/", f":{between.port}/")
    env = {
        "DATABASE_URL": url, "REPLSITE_LOG_FORMAT": request.param, "REPLSITE_REPLICATION_SECRET": SECRET,
        "REPLSITE_LOG_LEVEL": "INFO", "PYTHONWARNINGS": "always",
    }  # fmt: skip
    path = tmp_path / "stderr"
    with path.open("w") as stderr:
        serve = start_manage("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0", env=env, stderr=stderr)
        ports = ready_ports(serve)
        ask_for_this_and_that(ports["http"])
        with WireClient(ports["replication"], "NAME worker1\nREPLICATE") as worker:
            worker.read_until("POSITION")
            talk_badly(ports["replication"])
            append = start_manage("append", "caches", "--count", "20", "--instance", "loud", env=env, stderr=stderr)
            assert append.wait(DEADLINE_SECONDS) == 0
            between.refuse()
            between.cut()
            wait_until(lambda: "broadcaster.database_away" in path.read_text())
            between.refuse(False)
            wait_until(lambda: "broadcaster.database_back" in path.read_text())
        wait_until(lambda: "replication.ended" in path.read_text())
        end_processes([serve])
    return request.param, path.read_text().splitlines()


def ask_for_this_and_that(port):
    for method, path, host in (
        ("GET", "/not/there", "localhost"),
        ("GET", "/%1b%5b31m%0a", "localhost"),
        ("POST", "/admin/login/", "localhost"),
        ("GET", "/metrics", "localhost"),
        ("GET", "/admin/live/", "evil.example"),
        ("BR\x7fEW", "/", "localhost"),
    ):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_SECONDS)
        try:
            connection.putrequest(method, path, skip_host=True)
            connection.putheader("Host", host)
            connection.endheaders()
            connection.getresponse().read()
        except (ValueError, http.client.HTTPException):
            pass  # the client's own opinion, or the end of the connection
        finally:
            connection.close()
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_SECONDS) as raw:
        raw.sendall(b"\x16\x03\x01 no HTTP at all\r\n\r\n")


def talk_badly(port):
    for name in NAMES:
        with WireClient(port, f"NAME {name}\nERROR my {name} is wrong\nBOGUS {name}") as client:
            client.read_to_end()
    with WireClient(port, "GET / HTTP/1.1") as client:
        client.read_to_end()


def test_each_line_of_a_busy_run_can_be_read(lines):
    form, found = lines
    assert len(found) > 10
    for line in found:
        assert line.isprintable(), line
        if form == "json":
            fields = json.loads(line)
            assert {"timestamp", "level", "logger", "event", "process"} <= fields.keys(), line
        else:
            assert line.startswith("timestamp="), line
    text = "\n".join(found)
    assert SECRET not in text
    assert "replication.client_error" in text
    if form == "json":
        check_what_lines_say([json.loads(line) for line in found])


def check_what_lines_say(found):
    events = [fields["event"] for fields in found]
    assert "Not Found: /not/there" in events, "Django's own lines are among them"
    for event in ("broadcaster.database_away", "broadcaster.database_back"):
        assert events.count(event) == 1, "changes of status, not status"
    back = found[events.index("broadcaster.database_back")]
    assert back["seconds"] > 0
    ended = found[events.index("replication.ended")]
    assert ended["client"] == "worker1"
    assert ended["address"].startswith("127.0.0.1:")
    assert ended["lines_sent"] > 0
    errors = [fields for fields in found if fields["event"] == "replication.client_error"]
    assert len(errors) == len(NAMES)
