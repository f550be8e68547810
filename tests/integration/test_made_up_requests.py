"""What no browser says is refused without an error of ours: each had its trace in the log, as often as somebody liked."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from tests.support.floods import connect, head, status_of
from tests.support.websocket_client import session_cookie
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
    cookie = session_cookie(User.objects.create_superuser("boss"))
    assert client.get("/admin/", headers={"cookie": cookie}).status_code == 200
    assert status_of(port, "/admin/", 20, f"Cookie: {cookie}\r\n") == 200
    assert upgrade(port, "/ws/live/", f"Cookie: {cookie}\r\n").startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize("path", ["/nosuch", "/", "/ws/live", "/ws/live/x", "/%ff", "/admin/live/"])
def test_a_websocket_to_no_address_of_ours_is_refused(port, path):
    assert upgrade(port, path).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize("value", COOKIES)
def test_a_websocket_with_a_made_up_cookie_is_refused(port, value):
    assert upgrade(port, "/ws/live/", f"Cookie: sessionid={value}\r\n").startswith(b"HTTP/1.1 403 ")


ERRORS_OF_CLIENTS = {
    "many fields": head("/admin/login/?" + "a&" * 1_001),
    "many fields of catch-up": head("/_synapse/replication/get_repl_stream_updates/events/x?" + "a&" * 1_001),
    "no such page": head("/" + "x%0a" * 2_000),
    "a form of another origin": head("/admin/login/", f"Origin: http://{'x' * 8_000}\r\nContent-Length: 0\r\n", "POST"),
}


@pytest.mark.parametrize("said", ERRORS_OF_CLIENTS.values(), ids=ERRORS_OF_CLIENTS)
def test_errors_of_clients_fill_no_log(start_manage, tmp_path, said):
    """Each request wrote two to four thousand characters, some of them a trace."""
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
