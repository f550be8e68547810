"""Floods and slow clients at the shipped nginx: the servers behind it stay small, and others are answered meanwhile.

The file's times are shortened, its limits are as they ship.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from tests.deployment.proxied import NAME, NGINX, Browser
from tests.deployment.proxied_site import PASSWORD, ProxiedSite
from tests.support.floods import Probe, connect, memory
from tests.support.waiting import DEADLINE_SECONDS, wait_until

pytestmark = pytest.mark.skipif(NGINX is None, reason="no nginx here: Debian's package nginx")
QUICK = {"client_header_timeout": "2s", "client_body_timeout": "2s", "send_timeout": "2s"}
#: An answer of the site, which nginx keeps for a client that does not take it: some hundred kilobytes.
LARGE = "/api/v1/openapi.json"


class Attacked(ProxiedSite):
    """The site, and what attackers do to it."""

    def connect(self, said: bytes = b"", *, address: str = "127.0.0.1", takes: int = 0) -> ssl.SSLSocket:
        """A connection that said something; ``takes``: its receive buffer."""
        made = socket.socket()
        made.settimeout(DEADLINE_SECONDS)
        if takes:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, takes)
        made.bind((address, 0))
        made.connect(("127.0.0.1", self.nginx.port))
        context = ssl.create_default_context(cafile=str(self.nginx.authority.file))
        wrapped = context.wrap_socket(made, server_hostname="localhost")
        if said:
            wrapped.sendall(said)
        return wrapped

    def status(self, path: str = "/health/live", address: str = "127.0.0.2", more: str = "") -> int:
        """The status of an answer to somebody at another address."""
        with self.connect(head(path, f"{more}Connection: close\r\n"), address=address) as client:
            return int(client.recv(200).split(b" ")[1])

    def memory(self) -> int:
        return sum(memory(server.pid) for server in self.servers)

    def at_work(self) -> int:
        """Connections from nginx that the servers have open."""
        return sum(
            one.status == psutil.CONN_ESTABLISHED and one.laddr.port in self.http
            for server in self.servers
            for one in psutil.Process(server.pid).net_connections("tcp")
        )

    def cpu_of(self, work: Callable[[], object]) -> float:
        """CPU seconds of the servers meanwhile."""
        before = self._cpu()
        work()
        return self._cpu() - before

    def _cpu(self) -> float:
        return sum(sum(psutil.Process(server.pid).cpu_times()[:2]) for server in self.servers)


def head(path: str = "/health/live", more: str = "", method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: {NAME}\r\n{more}\r\n".encode()


def rest_of(client: ssl.SSLSocket) -> bytes:
    """What comes until the end of the connection."""
    found = b""
    with contextlib.suppress(OSError):
        while data := client.recv(65_536):
            found += data
    return found


@pytest.fixture(scope="module")
def attacked(production) -> Iterator[Attacked]:
    with TemporaryDirectory() as name:
        site = Attacked(production, Path(name), QUICK)
        try:
            site.start()
            for _ in range(4):  # both servers load what they need for the first answer
                assert site.status(LARGE) == site.status() == site.status("/admin/login/") == 200
            yield site
        finally:
            site.stop()


@pytest.fixture
def others_are_answered(attacked) -> Iterator[None]:
    with Probe(attacked.http[0], attacked.servers[0].pid) as seen:
        yield
        assert attacked.status() == 200
        wait_until(lambda: len(seen.statuses) > 3)
    assert set(seen.statuses) == {200}


# --- requests that do not come --------------------------------------------------------------------------------------


@pytest.mark.scenario
def test_half_a_request_keeps_nobody_out_and_costs_the_servers_nothing(attacked, others_are_answered):
    half = [attacked.connect(head()[:-2], address=f"127.0.{n}.1") for n in range(150)]
    assert [attacked.status() for _ in range(5)] == [200] * 5
    assert attacked.at_work() <= 1
    for one in half:
        assert rest_of(one)[:12] in (b"", b"HTTP/1.1 408"), "it had two seconds"
        one.close()


def test_half_a_request_for_plain_http_has_as_little_time(attacked):
    with connect(attacked.nginx.plain_port, head()[:-2]) as half:
        half.settimeout(30)
        assert half.recv(100)[:12] in (b"", b"HTTP/1.1 408"), "the minute that nginx gives otherwise is not over"


PARTS = {
    "head": (head()[:-2], b"X-A: b\r\n", b""),
    "body": (head("/admin/login/", "Content-Length: 100000\r\n", "POST"), b"", b"x"),
    "chunks": (head("/", "Transfer-Encoding: chunked\r\n", "POST"), b"", b"1\r\nx\r\n"),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_byte_now_and_then_reaches_no_server(attacked, others_are_answered, part):
    begin, line, crumb = PARTS[part]
    clients = [attacked.connect(begin, address=f"127.0.{n}.1") for n in range(40)]
    end = time.monotonic() + 4
    most = 0
    while time.monotonic() < end:
        for one in clients:
            with contextlib.suppress(OSError):
                one.sendall(line or crumb)
        most = max(most, attacked.at_work())
        time.sleep(0.2)  # the pace of the attack
    assert most <= 1, "the probe's own"
    if part == "head":
        assert all(rest_of(one)[:12] in (b"", b"HTTP/1.1 408") for one in clients)
    for one in clients:
        one.close()


# --- bodies -----------------------------------------------------------------------------------------------------------

BODIES = {
    "told": ("Content-Length: 100000000\r\n", b"x" * 100_000),
    "in large pieces": ("Transfer-Encoding: chunked\r\n", b"10000\r\n" + b"x" * 65_536 + b"\r\n"),
    "in single bytes": ("Transfer-Encoding: chunked\r\n", b"1\r\nx\r\n" * 5_000),
}


@pytest.mark.parametrize("form", BODIES)
def test_a_body_without_end_is_refused_before_a_server_sees_it(attacked, others_are_answered, form):
    more, piece = BODIES[form]

    def send() -> None:
        with attacked.connect(head("/admin/login/", more, "POST")) as client:
            with contextlib.suppress(OSError):
                for _ in range(3_000_000 // len(piece) * (200 if form == "in single bytes" else 1)):
                    client.sendall(piece)
            assert b" 413 " in rest_of(client)[:20] or form == "in single bytes"

    assert attacked.cpu_of(send) < 1


CHUNKED = head("/", "Transfer-Encoding: chunked\r\n", "POST")


@pytest.mark.parametrize("chunk", [b"1\r\nx\r\n", b"1;" + b"a" * 900 + b"\r\nx\r\n"], ids=["bytes", "extensions"])
@pytest.mark.speed
def test_a_body_of_tiny_chunks_costs_the_servers_no_more_than_another(attacked, others_are_answered, chunk):
    def send(begin: bytes, body: bytes, end: bytes = b"") -> None:
        for _ in range(30):
            with attacked.connect(begin) as client, contextlib.suppress(OSError):
                client.sendall(body + end)
                client.recv(100)

    whole = head("/", "Content-Length: 350000\r\n", "POST")
    plain = attacked.cpu_of(lambda: send(whole, b"x" * 350_000))
    tiny = attacked.cpu_of(lambda: send(CHUNKED, chunk * (350_000 // len(chunk)), b"0\r\n\r\n"))
    assert tiny < 2 * plain + 0.5


def test_a_body_of_short_chunks_is_taken(attacked):
    """A client that streams what it writes line by line."""
    with attacked.connect(CHUNKED) as client:
        client.sendall(b"28\r\n" + b"x" * 40 + b"\r\n")
        client.sendall((b"28\r\n" + b"x" * 40 + b"\r\n") * 2_000 + b"0\r\n\r\n")
        assert int(client.recv(100).split(b" ")[1]) in {302, 403, 404}


@pytest.mark.memory
def test_bodies_that_wait_wait_at_nginx(attacked, others_are_answered):
    before = attacked.memory()
    begin = head("/admin/login/", "Content-Length: 1000000\r\n", "POST")
    held = [attacked.connect(begin + b"x" * 990_000) for _ in range(80)]
    assert attacked.at_work() <= 1
    assert attacked.memory() - before < 30_000_000
    for one in held:
        one.close()


# --- answers that are not taken ---------------------------------------------------------------------------------------


@pytest.mark.memory
def test_requests_that_are_sent_ahead_wait_at_nginx(attacked, others_are_answered):
    before, said = attacked.memory(), head(LARGE)
    deaf = [attacked.connect(said * 300, takes=4096) for _ in range(2)]
    wait_until(lambda: attacked.at_work() <= 1, what="nginx has the first answers, and asks for no others")
    assert attacked.memory() - before < 40_000_000
    for one in deaf:
        one.close()


def test_requests_that_were_sent_ahead_are_all_answered_in_their_order(attacked):
    paths = [LARGE, "/health/live", "/nothing", LARGE, "/health/live"] * 4
    with attacked.connect(b"".join(map(head, paths[:-1])) + head(paths[-1], "Connection: close\r\n")) as client:
        found = rest_of(client)
    assert [int(part[:3]) for part in found.split(b"HTTP/1.1 ")[1:]] == [200, 200, 404, 200, 200] * 4


@pytest.mark.scenario
def test_who_takes_no_answer_holds_no_server_and_is_cut(attacked, others_are_answered):
    # One answer alone would wait in the kernel, and the connection would only seem to be idle.
    deaf = [attacked.connect(head(LARGE) * 50, takes=4096) for _ in range(20)]
    wait_until(lambda: attacked.at_work() <= 1, what="the servers have given their answers")
    ours, nginx = {one.getsockname()[1] for one in deaf}, psutil.Process(attacked.nginx.process.pid)

    def has_any() -> bool:
        made = [one for process in [nginx, *nginx.children()] for one in process.net_connections("tcp")]
        return any(one.raddr and one.raddr.port in ours for one in made)

    wait_until(lambda: not has_any(), what="nginx has cut them")
    for one in deaf:
        one.close()


def test_a_client_on_a_slow_line_gets_everything(attacked):
    quick = len(attacked_answer(attacked))
    with attacked.connect(head(LARGE, "Connection: close\r\n"), takes=4096) as slow:
        total = 0
        while data := slow.recv(4_000):
            total += len(data)
            time.sleep(0.02)  # the pace of its line
    assert total == quick


def attacked_answer(attacked: Attacked) -> bytes:
    with attacked.connect(head(LARGE, "Connection: close\r\n")) as client:
        return rest_of(client)


# --- crowds -----------------------------------------------------------------------------------------------------------


def test_one_address_has_its_part_and_others_are_answered(attacked, site):
    """A hundred requests of one address hang; the next ones get 503, those of another address an answer."""
    with site.session() as cursor:
        cursor.execute("SELECT pg_advisory_lock(4711)")
        held = [attacked.connect(head("/slow")) for _ in range(100)]
        wait_until(lambda: attacked.status("/health/live", "127.0.0.1") == 503, what="the address has its part")
        assert attacked.status("/health/live", "127.0.0.2") == 200
        assert attacked.status("/static/unfold/css/styles.css", "127.0.0.2") == 200
        cursor.execute("SELECT pg_advisory_unlock(4711)")
    found = Counter(one.recv(100).split(b" ")[1] for one in held)
    assert set(found) <= {b"200", b"503"} and found[b"200"] >= 40
    for one in held:
        one.close()


def test_a_network_of_ipv6_is_one_client(attacked, site):
    """One customer has a /64: each of its addresses had a hundred requests."""

    def at(address: str) -> str:
        return f"X-Test-Address: {address}\r\n"

    with site.session() as cursor:
        cursor.execute("SELECT pg_advisory_lock(4711)")
        held = [attacked.connect(head("/slow", at(f"2001:db8:1:2::{n:x}"))) for n in range(1, 101)]
        wait_until(lambda: attacked.status(more=at("2001:db8:1:2:3:4:5:6")) == 503, what="the network has its part")
        assert attacked.status(more=at("2001:db8:1:3::1")) == attacked.status(more=at("192.0.2.1")) == 200
        cursor.execute("SELECT pg_advisory_unlock(4711)")
    for one in held:
        one.close()


def test_made_up_cookies_keep_nobody_out(attacked, others_are_answered):
    made_up = head("/admin/", "Cookie: sessionid=madeupabcdefghijklmnopqrstuvwxyz\r\nConnection: close\r\n")
    crowd = [attacked.connect(made_up, address=f"127.0.0.{n % 5 + 1}") for n in range(300)]
    assert attacked.status("/admin/login/", "127.0.0.9") == 200
    assert {one.recv(100).split(b" ")[1] for one in crowd} <= {b"302", b"503"}
    for one in crowd:
        one.close()


def test_hundreds_of_half_sent_heads_of_many_addresses_keep_nobody_out(attacked, others_are_answered):
    """With Debian's own number of connections nginx reset everybody's."""
    half = [connect(attacked.nginx.plain_port, head()[:-2], address=f"127.0.{n % 20}.1") for n in range(1_000)]
    assert [attacked.status() for _ in range(5)] == [200] * 5
    for one in half:
        one.close()


MADE_UP = "Cookie: sessionid=madeupabcdefghijklmnopqrstuvwxyz\r\nConnection: close\r\n"
UPGRADE = MADE_UP.replace("close", "Upgrade") + "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"


@pytest.mark.speed
@pytest.mark.parametrize(
    ("path", "more"),
    [("/admin/live/data/", MADE_UP), ("/admin/facts/events/?stream=caches", MADE_UP), ("/ws/live/", UPGRADE)],
    ids=["live page", "facts", "websocket"],
)
def test_a_viewers_page_goes_on_beside_a_crowd_of_made_up_cookies(attacked, site, path, more):
    viewer = Browser(attacked.nginx)
    viewer.log_in(attacked.operator, PASSWORD)
    seconds, sessions = [], 0
    with ThreadPoolExecutor(100) as pool, site.session("replsite_owner") as cursor:
        crowd = [pool.submit(attacked.status, path, f"127.0.{n % 20}.1", more) for n in range(1_500)]
        while not all(one.done() for one in crowd):
            begun = time.monotonic()
            assert viewer.ask("/admin/live/data/")[0].status == 200
            seconds.append(time.monotonic() - begun)
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
            sessions = max(sessions, *cursor.fetchone())
            time.sleep(0.2)
    assert {one.result() for one in crowd} <= {302, 403, 404, 503}
    assert max(seconds) < 5
    assert sessions < 100, "of two servers, with 20 places for pages each"


def test_a_browser_is_served_after_all_this(attacked):
    assert Browser(attacked.nginx).ask("/admin/login/")[0].status == 200
