"""What no browser says is refused without an error of ours: each had its trace in the log, as often as somebody liked."""

from __future__ import annotations

import json
from http.cookies import SimpleCookie

import pytest
from django.contrib.auth.models import User
from psutil import Process

from tests.support.cookies import session_cookie
from tests.support.floods import Probe, connect, head, memory, status_of
from tests.support.waiting import wait_until
from tests.support.wire_client import ready_ports

pytestmark = pytest.mark.django_db(transaction=True)
UPGRADE = (
    "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
    "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{more}\r\n"
)
COOKIES = ['"\\000abcdefgh"', "abcdefgh\x01", "ÄÖÜäöüß%", "x'--abcdefgh", '"\\012\\015abcdefgh"', "A" * 32]


@pytest.fixture
def port(start_manage) -> int:
    return ready_ports(start_manage("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0"))["http"]


def upgrade(port: int, path: str, more: str = "") -> bytes:
    with connect(port, UPGRADE.format(path=path, port=port, more=more).encode("latin-1")) as made:
        return made.recv(200)


@pytest.mark.parametrize("value", COOKIES)
def test_a_made_up_cookie_is_nobodys_session(client, django_assert_num_queries, value):
    with django_assert_num_queries(0):
        answer = client.get("/admin/", headers={"cookie": f"sessionid={value}"})
    assert answer.status_code == 302
    assert "/login/" in answer["Location"]


def test_a_real_session_is_found_as_before(client, port):
    """Also beside the cookie of messages: JSON with quotes, 2,048 characters at most; Django escapes each quote."""
    cookie = session_cookie(User.objects.create_superuser("boss"))
    messages = SimpleCookie({"messages": json.dumps([["x", 0, "y"]] * 100)[:1_000]}).output(header="").strip()
    assert client.get("/admin/", headers={"cookie": cookie}).status_code == 200
    for text in (cookie, f"{messages}; {cookie}"):
        assert status_of(port, "/admin/", more=f"Cookie: {text}\r\n") == 200


def test_who_asks_for_a_websocket_gets_the_page_of_that_address(port):
    for path, status in (("/nosuch", b"404"), ("/ws/live/", b"404"), ("/%ff", b"404"), ("/admin/live/", b"302")):
        assert upgrade(port, path).startswith(b"HTTP/1.1 %s " % status), path
    for more in ("Daphne-Root-Path: \u00ff", "Sec-WebSocket-Protocol: \u00ff"):
        assert upgrade(port, "/health/live", f"{more}\r\n").startswith(b"HTTP/1.1 200 "), more


def test_a_client_moves_no_page(port):
    """A proxy that forbids a path to strangers let this pass, and the page was answered."""
    for root in ("/x", "/static"):
        for path in ("/metrics", "/health", "/health/live", "/admin/login/", "/_synapse/replication/x"):
            assert status_of(port, f"{root}{path}", more=f"Daphne-Root-Path: {root}\r\n") == 404
    for name in ("Daphne-Root-Path", "Sec-WebSocket-Protocol"):
        assert status_of(port, "/health/live", more=f"{name}: \u00ff\r\n") == 200, "no text is no error"


ESCAPES = ['"' + "\\" * 15_000 + '"', '"' + "\\1" * 7_500 + '"']


@pytest.mark.parametrize("value", ESCAPES, ids=["backslashes", "digits"])
@pytest.mark.speed
def test_escapes_in_a_cookie_stop_nobody(start_manage, value):
    """Each request took Python's ``http.cookies`` most of a second."""
    process = start_manage("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0")
    port = ready_ports(process)["http"]
    assert status_of(port) == 200

    def cpu_of(cookie: str) -> float:
        before = sum(Process(process.pid).cpu_times()[:2])
        for _ in range(5):
            assert status_of(port, "/admin/", more=f"Cookie: a={cookie}\r\n") == 302
        return sum(Process(process.pid).cpu_times()[:2]) - before

    plain = cpu_of("x" * len(value))
    assert cpu_of(value) < 5 * plain + 0.5, "little more than another cookie of that length"


FORM = "Content-Type: application/x-www-form-urlencoded"
TOKEN = "Cookie: csrftoken={}\r\n".format("A" * 32)
"""With it the form is read, to compare the secret in it."""


def form(body: bytes, more: str = "", kind: str = FORM) -> bytes:
    """A form of somebody who is not logged in."""
    return head("/admin/", f"{kind}{more}\r\n{TOKEN}Content-Length: {len(body)}\r\n", "POST") + body


@pytest.mark.memory
def test_a_long_form_of_a_stranger_is_not_read(start_manage):
    """Percent signs took 190 bytes of memory each, and three microseconds in which nobody else was answered."""
    process = start_manage("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0")
    port = ready_ports(process)["http"]
    assert status_of(port) == 200
    before = memory(process.pid)
    with Probe(port, process.pid) as seen:
        for _ in range(3):
            with connect(port, form(b"a=" + b"%" * 2_400_000)) as made:
                assert made.recv(200).startswith(b"HTTP/1.1 413 ")
        wait_until(lambda: seen.statuses)
    assert set(seen.statuses) == {200}
    assert seen.memory - before < 60_000_000


def test_the_form_of_a_user_may_be_longer_and_one_without_a_length_is_not_read(port):
    """It may be as long as a body may be at all."""
    cookie = session_cookie(User.objects.create_superuser("boss"))
    for size, status in ((20_000, b"403"), (300_000, b"413")):
        with connect(port, form(b"a" * size).replace(b"Cookie: ", f"Cookie: {cookie}; ".encode(), 1)) as made:
            assert made.recv(200).startswith(b"HTTP/1.1 %s " % status)
    more = f"{FORM}\r\n{TOKEN}Transfer-Encoding: chunked\r\n"
    with connect(port, head("/admin/", more, "POST") + b"5\r\na=bcd\r\n0\r\n\r\n") as made:
        assert made.recv(200).startswith(b"HTTP/1.1 411 ")


PARTS = b'--a\r\nContent-Disposition: form-data; name="x"\r\n\r\ny\r\n--a--\r\n'
FORM_OF_PARTS = "Content-Type: multipart/form-data; boundary=a"
ERRORS_OF_CLIENTS = {
    "a form in another encoding": form(b"a=b", "; charset=utf-16"),
    "parts in what is no encoding of texts": form(PARTS, "; charset=hex", FORM_OF_PARTS),
    "many fields": head("/admin/login/?" + "a&" * 1_001),
    "many fields of catch-up": head("/_synapse/replication/get_repl_stream_updates/events/x?" + "a&" * 1_001),
    "no such page": head("/" + "x%0a" * 2_000),
    "a form of another origin": head("/admin/login/", f"Origin: http://{'x' * 8_000}\r\nContent-Length: 0\r\n", "POST"),
}


@pytest.mark.parametrize("said", ERRORS_OF_CLIENTS.values(), ids=ERRORS_OF_CLIENTS)
def test_errors_of_clients_fill_no_log(start_manage, tmp_path, said):
    """Each request wrote two to four thousand characters, some of them a trace. A server for each: few are told of in a while."""
    path = tmp_path / "log"
    with path.open("wb") as log:
        arguments = ("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0")
        port = ready_ports(start_manage(*arguments, stderr=log))["http"]
        before = path.stat().st_size
        for _ in range(100):
            with connect(port, said) as made:
                assert made.recv(200).startswith(b"HTTP/1.1 4")
    text = path.read_bytes()[before:].decode()
    assert "django." in text, "what is logged at all"
    assert "Traceback" not in text
    assert len(text) < 20_000
