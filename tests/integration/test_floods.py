"""Floods of HTTP against a running site: it stays small, writers get their connections, and others are answered meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time

import psutil
import pytest
from django.contrib.auth.models import User
from django.db import connection, connections

from streams.models import Reader, WireCount
from streams.replication.server.broadcaster import MOST_LOST
from tests.support.floods import STATIC, Probe, connect, drain, head, memory, status_of, statuses
from tests.support.waiting import wait_until
from tests.support.websocket_client import WebSocketClient, session_cookie
from tests.support.wire_client import positioned, ready_ports
from tests.support.writing import append

pytestmark = pytest.mark.django_db(transaction=True)


class Site:
    """A serving process."""

    def __init__(self, start_manage, **env: str) -> None:
        self.process = start_manage("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0", env=env)
        ports = ready_ports(self.process)
        self.port, self.replication = ports["http"], ports["replication"]
        self.id = self.process.pid
        assert status_of(self.port) == 200

    def memory(self) -> int:
        return memory(self.id)


@pytest.fixture
def start_site(start_manage):
    return lambda **env: Site(start_manage, **env)


def cpu_seconds(site: Site) -> float:
    return sum(psutil.Process(site.id).cpu_times()[:2])


def counted(reason: str, kind: str = "refused", least: int = 1) -> None:
    found = WireCount.objects.filter(kind=kind, name=reason)
    wait_until(lambda: sum(found.values_list("total", flat=True)) >= least, 30, reason)


# --- what waits for a client ------------------------------------------------------------------------------------------


def test_requests_that_are_sent_ahead_wait_for_the_client_to_take_the_answers(start_site):
    """A thousand answers of a third of a megabyte waited for a client that read none of them."""
    site = start_site()
    assert status_of(site.port, STATIC) == 200
    before, said = site.memory(), head(STATIC)
    with Probe(site.port, site.id) as seen:
        deaf = [connect(site.port, said * (63_000 // len(said)), takes=4096) for _ in range(2)]
        time.sleep(4)  # an absence: what it works off in that time would be there
    for one in deaf:
        one.close()
    assert set(seen.statuses) == {200}
    assert seen.memory - before < 40_000_000


def test_requests_that_were_sent_ahead_are_all_answered_in_their_order(start_site):
    site = start_site()
    paths = [STATIC, "/health/live", "/static/nothing", STATIC, "/health/live"] * 4
    with connect(site.port, takes=8192) as client:
        client.sendall(b"".join(map(head, paths)))
        data, done = b"", []
        while len(done) < len(paths):
            found, _, rest = data.partition(b"\r\n\r\n")
            length = [
                int(line.split(b":")[1]) for line in found.split(b"\r\n") if line.lower().startswith(b"content-length")
            ]
            if length and len(rest) >= length[0]:
                done.append((int(found.split(b" ")[1]), length[0]))
                data = rest[length[0] :]
            else:
                received = client.recv(65_536)
                assert received, done
                data += received
    assert [status for status, _ in done] == [404 if path == "/static/nothing" else 200 for path in paths]
    assert len({length for status, length in done if status == 200}) == 2


def test_who_takes_no_answer_is_cut(start_site):
    site = start_site(REPLSITE_SEND_STALL_LIMIT_SECONDS="2")
    deaf = connect(site.port, head(STATIC), takes=4096)
    ours = deaf.getsockname()[1]
    process = psutil.Process(site.id)
    counted("HTTP client too slow")
    wait_until(lambda: ours not in {one.raddr.port for one in process.net_connections("tcp") if one.raddr}, 20)
    deaf.close()


def test_a_client_that_reads_slowly_and_well_gets_everything(start_site):
    site = start_site(REPLSITE_SEND_STALL_LIMIT_SECONDS="1")
    with connect(site.port, head(STATIC, "Connection: close\r\n"), takes=4096) as slow:
        total = 0
        while data := slow.recv(8_000):
            total += len(data)
            time.sleep(0.05)
    assert total > 300_000


def test_a_client_on_a_slow_line_gets_everything(start_site):
    """The kernel takes more when a third of what it keeps has gone; meanwhile the client seemed to take nothing."""
    site = start_site(REPLSITE_SEND_STALL_LIMIT_SECONDS="2")
    with connect(site.port, head(STATIC, "Connection: close\r\n"), takes=4096) as slow:
        total = 0
        while data := slow.recv(2_000):
            total += len(data)
            time.sleep(0.1)
    assert total > 300_000


def test_what_all_clients_together_do_not_take_has_a_bound(start_site):
    site = start_site(REPLSITE_HTTP_BUFFER_LIMIT_BYTES="4000000")
    deaf = [connect(site.port, head(STATIC), takes=4096) for _ in range(150)]
    counted("HTTP memory limit")
    assert status_of(site.port) == 200
    process, ours = psutil.Process(site.id), {one.getsockname()[1] for one in deaf}
    wait_until(lambda: len(ours & {one.raddr.port for one in process.net_connections("tcp") if one.raddr}) <= 30, 20)
    for one in deaf:
        one.close()


# --- requests that do not come --------------------------------------------------------------------------------------


def test_half_a_request_gives_way_to_others(start_site):
    site = start_site(REPLSITE_HTTP_CONNECTION_LIMIT="40", REPLSITE_HTTP_ADDRESS_LIMIT="0")
    half = [connect(site.port, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", address=f"127.0.{n}.1") for n in range(60)]
    assert [status_of(site.port) for _ in range(5)] == [200] * 5
    counted("HTTP connection gave way")
    for one in half:
        one.close()


def test_one_address_has_its_part_of_the_connections_and_no_more(start_site):
    site = start_site(REPLSITE_HTTP_ADDRESS_LIMIT="10")
    silent = [connect(site.port) for _ in range(30)]
    assert status_of(site.port) == 200
    counted("HTTP connection gave way")
    ours = {one.getsockname()[1] for one in silent}
    process = psutil.Process(site.id)
    there = {one.raddr.port for one in process.net_connections("tcp") if one.raddr}
    assert len(ours & there) <= 10
    for one in silent:
        one.close()


def test_what_is_at_work_does_not_give_way(start_site):
    site = start_site(REPLSITE_HTTP_ADDRESS_LIMIT="2")
    cookie = session_cookie(User.objects.create_superuser("boss"))

    async def view() -> None:
        viewers = [await WebSocketClient.connect(site.port, cookie) for _ in range(2)]
        assert status_of(site.port) == 503
        for viewer in viewers:
            viewer.say({"have": 0})
            assert "streams" in await viewer.read()
            viewer.close()

    asyncio.run(view())
    counted("HTTP address limit")
    wait_until(lambda: status_of(site.port) == 200, 20)


def test_a_proxy_speaks_for_many(start_site):
    site = start_site(REPLSITE_HTTP_ADDRESS_LIMIT="5", REPLSITE_PROXY_NETWORKS="127.0.0.1/32")
    held = [connect(site.port, head()) for _ in range(20)]
    answers = [b""] * len(held)
    for turn in (1, 2):  # none of them was ended
        for number, one in enumerate(held):
            while answers[number].count(b"HTTP/1.1 200 ") < turn:
                answers[number] += one.recv(4_000) or pytest.fail(f"ended after {answers[number]!r}")
            one.sendall(head())
    for one in held:
        one.close()


PARTS = {
    "head": (b"GET / HTTP/1.1\r\n", b"X-A: b\r\n"),
    "body": (b"POST /admin/login/ HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n\r\n", b"x"),
    "chunks": (b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "expected": (b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n", b""),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_request_has_a_time_to_come_as_a_whole(start_site, part):
    """A byte now and then kept it alive for ever."""
    site = start_site(REPLSITE_HTTP_HEAD_LIMIT_SECONDS="1.5", REPLSITE_HTTP_BODY_LIMIT_SECONDS="1.5")
    begin, more = PARTS[part]
    said = b""
    with connect(site.port, begin) as client:
        client.settimeout(0.2)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                data = client.recv(1000)
                said += data
                if not data:
                    break
            except TimeoutError:
                with contextlib.suppress(OSError):
                    client.sendall(more)
            except ConnectionError:
                break
        else:
            pytest.fail("still open")
    assert b" 408 " in said
    counted("HTTP request too slow")


def test_a_body_of_single_bytes_ends_before_it_is_long(start_site):
    site = start_site(REPLSITE_HTTP_BODY_LIMIT_BYTES="100000")
    begin = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connect(site.port, begin) as client:
        with contextlib.suppress(OSError):
            client.sendall(b"1\r\nx\r\n" * 5_000)
        with contextlib.suppress(OSError):
            assert client.recv(100).startswith(b"HTTP/1.1 413 ")
    counted("HTTP body too long")


CHUNKED = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("chunk", [b"1\r\nx\r\n", b"1;" + b"a" * 900 + b"\r\nx\r\n"], ids=["bytes", "extensions"])
def test_a_body_of_tiny_chunks_costs_little(start_site, chunk):
    """Sixty thousand chunks of a byte were taken apart one by one, on the loop that everybody is answered on."""
    site = start_site()
    before = cpu_seconds(site)
    for _ in range(30):
        with connect(site.port, CHUNKED) as client, contextlib.suppress(OSError):
            client.sendall(chunk * (350_000 // len(chunk)))
            client.recv(100)
    assert status_of(site.port) == 200
    assert cpu_seconds(site) - before < 2
    counted("HTTP body too long", least=30)


def test_a_body_of_short_chunks_is_taken(start_site):
    """A client that streams what it writes line by line."""
    site = start_site()
    with connect(site.port, CHUNKED) as client:
        client.sendall(b"28\r\n" + b"x" * 40 + b"\r\n")
        client.sendall((b"28\r\n" + b"x" * 40 + b"\r\n") * 2_000 + b"0\r\n\r\n")
        assert int(client.recv(100).split(b" ")[1]) in {302, 403, 404}


def test_forms_are_not_taken_apart_on_the_loop(start_site):
    """A form of a million fields was, before Django saw it: seconds in which nobody was answered."""
    site = start_site()
    form = b"a=1&" * 970_000
    kind = "Content-Type: application/x-www-form-urlencoded\r\nConnection: close\r\n"
    said = head("/admin/login/", f"{kind}Content-Length: {len(form)}\r\n", "POST") + form
    before = cpu_seconds(site)
    with Probe(site.port, site.id) as seen:
        for _ in range(10):
            with connect(site.port, said) as client:
                assert client.recv(100).startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 403 "))
    assert set(seen.statuses) == {200}
    assert cpu_seconds(site) - before < 3


# --- WebSockets -------------------------------------------------------------------------------------------------------


def _upgrade(port: int, cookie: str) -> bytes:
    more = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Cookie": cookie,
        "Origin": f"http://127.0.0.1:{port}",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
    }
    lines = [f"GET /ws/live/ HTTP/1.1\r\nHost: 127.0.0.1:{port}", *(f"{name}: {value}" for name, value in more.items())]
    return "\r\n".join([*lines, "\r\n"]).encode()


def _frame(kind: int, text: bytes, *, last: bool = True) -> bytes:
    return bytes([(0x80 if last else 0) | kind, 0x80 | len(text)]) + bytes(4) + text


FRAMES = {
    "pings": _frame(9, b"x" * 100) * 100,
    "questions": _frame(1, b'{"have": 0}') * 300,
    "pieces": _frame(1, b"", last=False) + _frame(0, b"", last=False) * 1_000,
    "single bytes": _frame(1, b"x", last=False) + _frame(0, b"x", last=False) * 1_000,
}


@pytest.mark.parametrize("kind", FRAMES)
def test_a_viewer_that_floods_is_cut(start_site, kind):
    """It kept the loop busy for seconds: `/health/live` took six, and what it said waited in memory."""
    site = start_site()
    cookie = session_cookie(User.objects.create_superuser("boss"))
    before = site.memory()
    with Probe(site.port, site.id) as seen:
        flood = []
        for _ in range(4):
            made = connect(site.port, _upgrade(site.port, cookie))
            assert made.recv(4_000).startswith(b"HTTP/1.1 101 ")
            flood.append(made)
        for made in flood:
            with contextlib.suppress(OSError):
                for _ in range(20_000_000 // len(FRAMES[kind])):
                    made.sendall(FRAMES[kind])
                pytest.fail("it was not cut")
            made.close()
        wait_until(lambda: len(seen.statuses) > 3, 20)
    counted("WebSocket client too fast", least=4)
    assert set(seen.statuses) == {200}
    assert seen.memory - before < 30_000_000


def test_what_is_said_before_a_handshake_is_answered_has_a_bound(start_site):
    """It waited in memory for as long as the session was read."""
    site = start_site()
    before = site.memory()
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("LOCK TABLE django_session")
        with connect(site.port, _upgrade(site.port, "sessionid=" + "x" * 32)) as made, contextlib.suppress(OSError):
            for _ in range(2_000):
                made.sendall(b"x" * 50_000)
            pytest.fail("it was not cut")
        assert site.memory() - before < 30_000_000
        cursor.execute("ROLLBACK")
    counted("WebSocket client too fast")
    assert status_of(site.port) == 200


# --- the database -----------------------------------------------------------------------------------------------------


def test_made_up_cookies_take_no_connections_from_writers(start_site):
    site = start_site(REPLSITE_REQUEST_LIMIT="6")
    most = 0

    def look() -> None:
        nonlocal most
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
            most = max(most, cursor.fetchone()[0])
        connections["default"].close()  # that of the thread

    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        before = cursor.fetchone()[0]
    said = head("/admin/", "Cookie: sessionid=madeupabcdefghijklmnopqrstuvwxyz\r\nConnection: close\r\n")
    with Probe(site.port, site.id, look) as seen:
        found = statuses(site.port, said, 300)
        append()
    assert set(seen.statuses) == {200}
    assert most <= before + 6 + 4
    assert set(found) <= {302, 503}
    assert found.count(302) >= 50


def test_who_finds_no_place_is_told_when_to_come_again(start_site):
    """A lock holds every page; what needs no database is answered all the same."""
    site = start_site(REPLSITE_REQUEST_LIMIT="2")
    said = head("/admin/", "Cookie: sessionid=madeupabcdefghijklmnopqrstuvwxyz\r\n")
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("LOCK TABLE django_session")
        held = [connect(site.port, said) for _ in range(2)]
        time.sleep(0.5)
        late = connect(site.port, said)
        assert status_of(site.port) == 200
        assert status_of(site.port, STATIC) == 200
        assert status_of(site.port, "/metrics", 20) == 200
        late.settimeout(30)
        answer = late.recv(1000)
        cursor.execute("ROLLBACK")
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 5" in answer.lower()
    for one in held:
        assert one.recv(100).startswith(b"HTTP/1.1 302 ")
        one.close()
    late.close()


def test_scrapes_at_once_share_one_rendering(start_site):
    site = start_site()
    assert status_of(site.port, "/metrics", 20) == 200
    before = site.memory()
    cpu = sum(psutil.Process(site.id).cpu_times()[:2])
    with Probe(site.port, site.id) as seen:
        found = statuses(site.port, head("/metrics", "Connection: close\r\n"), 200)
    assert found == [200] * 200
    assert set(seen.statuses) == {200}
    assert seen.memory - before < 60_000_000
    assert sum(psutil.Process(site.id).cpu_times()[:2]) - cpu < 20


def test_a_port_of_metrics_is_answered_whatever_its_clients_do(start_site, free_port):
    """Each client had a thread of its own, for ever: 800 half-sent requests were 800 threads, and scrapes got no answer."""
    site = start_site(REPLSITE_METRICS_PORTS=str(free_port))
    wait_until(lambda: status_of(free_port, "/metrics") == 200, 20)
    threads = psutil.Process(site.id).num_threads()
    with Probe(site.port, site.id) as seen:
        half = [connect(free_port, said) for said in (b"", b"GET /met", head("/metrics")[:-2], b"x" * 15_000) * 100]
        deaf = [connect(free_port, head("/metrics"), takes=2048) for _ in range(20)]
        assert [status_of(free_port, "/metrics", 20) for _ in range(3)] == [200] * 3
        assert psutil.Process(site.id).num_threads() <= threads + 5
        found = statuses(free_port, head("/metrics"), 150)
        append()
    assert found.count(200) >= 100, "some give way to others that come at once"
    assert set(seen.statuses) == {200}
    ours = {one.getsockname()[1] for one in half + deaf}
    process = psutil.Process(site.id)
    wait_until(lambda: not ours & {one.raddr.port for one in process.net_connections("tcp") if one.raddr}, 60)
    for one in half + deaf:
        one.close()


@pytest.mark.parametrize(
    ("said", "answer"),
    [(head("/metrics", method="HEAD"), b"HTTP/1.1 200 "), (head("/metrics", method="POST"), b"HTTP/1.1 405 ")],
)
def test_a_port_of_metrics_answers_other_methods(start_site, free_port, said, answer):
    start_site(REPLSITE_METRICS_PORTS=str(free_port))
    with connect(free_port, said) as client:
        found = b""
        while data := client.recv(65_536):
            found += data
    assert found.startswith(answer)
    assert found.endswith(b"\r\n\r\n"), "no body"


def test_bodies_that_wait_have_a_bound(start_site):
    site = start_site(REPLSITE_HTTP_BUFFER_LIMIT_BYTES="20000000")
    before = site.memory()
    begin = b"POST /admin/login/ HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4000000\r\n\r\n"
    held = []
    with Probe(site.port, site.id) as seen:
        for _ in range(40):
            made = connect(site.port, begin)
            with contextlib.suppress(OSError):
                made.sendall(b"x" * 3_900_000)
            held.append(made)
        wait_until(lambda: len(seen.statuses) > 3, 20, "others are answered meanwhile")
    counted("HTTP memory limit")
    assert set(seen.statuses) == {200}
    assert seen.memory - before < 100_000_000
    for one in held:
        one.close()


# --- the replication port -----------------------------------------------------------------------------------------------


def test_pages_are_answered_while_clients_flood_the_replication_port(start_site):
    """One that said REPLICATE as fast as it could took everything from everybody."""
    site = start_site()
    over = threading.Event()

    def flood(line: bytes) -> None:
        with contextlib.suppress(OSError), connect(site.replication) as made:
            threading.Thread(target=drain, args=(made,), daemon=True).start()
            while not over.is_set():
                made.sendall(line * 500)

    threads = [
        threading.Thread(target=flood, args=(line,))
        for line in (b"REPLICATE\n", b"REPLICATE\n", b"PING 1\n", b"REMOTE_SERVER_UP example.org\n")
    ]
    with Probe(site.port, site.id) as seen:
        for one in threads:
            one.start()
        time.sleep(5)  # as long as they flood
        with positioned(site.replication) as client:
            append()
            client.read_until("RDATA caches", 20)
        over.set()
        for one in threads:
            one.join()
    assert set(seen.statuses) == {200}
    assert len(seen.statuses) > 10


def test_connections_that_come_and_go_are_counted_and_few_of_them_are_told_of(start_site):
    site, begun = start_site(), time.monotonic()
    for _ in range(1_000):
        connect(site.replication).close()
    with positioned(site.replication) as client:
        append()
        client.read_until("RDATA caches", 20)
    counted("peer closed", "closed", 900)
    turns = time.monotonic() - begun + 2  # the table is told once a second
    assert Reader.objects.count() <= MOST_LOST * turns


def test_connections_that_come_and_go_fill_no_log(start_manage, tmp_path):
    """Each wrote up to two and a half thousand bytes: follows, its error, closing, ended, each with its name."""
    path = tmp_path / "log"
    with path.open("wb") as log:
        arguments = ("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0")
        port = ready_ports(start_manage(*arguments, stderr=log, env={"REPLSITE_LOG_LEVEL": "INFO"}))["replication"]
        before, wide = path.stat().st_size, "\u4e00"
        said = f"NAME {wide * 200}\nERROR {wide * 500}\nREPLICATE\nBOGUS\n"
        for _ in range(400):
            with connect(port, said.encode()) as made:
                drain(made)
        counted("parse error", "closed", 400)
    lines = path.read_bytes()[before:].decode().splitlines()
    for event in ("replication.follows", "replication.client_error", "replication.closing", "replication.ended"):
        assert any(event in line for line in lines)
    assert sum(" event=replication." in line for line in lines) < 400


def test_what_comes_behind_a_broken_rule_is_no_line_each(start_manage, tmp_path):
    """The end of a connection was logged again with each piece of input that had been read before it."""
    path = tmp_path / "log"
    with path.open("wb") as log:
        arguments = ("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0")
        port = ready_ports(start_manage(*arguments, stderr=log, env={"REPLSITE_LOG_LEVEL": "INFO"}))["replication"]
        made = connect(port)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):
            made.sendall(b"x" * 20_000)
            for _ in range(20_000):
                made.send(b"x")
        drain(made)
        counted("line too long", "closed")
    assert path.read_text().count("event=replication.closing") == 1


@pytest.mark.parametrize("said", [b"", b"P", b"\n", b"PING 1\nUSER_SYNC w @a:b start 1\n", b"x" * 16_000])
def test_connections_that_do_not_say_who_they_are_give_way_to_followers(start_site, said):
    """As many as the limit were there for ever, and a follower was turned away."""
    site = start_site(REPLSITE_CONNECTION_LIMIT="5")
    with positioned(site.replication) as first:
        silent = [connect(site.replication, said) for _ in range(20)]
        for one in silent[-4:]:
            assert one.recv(100).startswith(b"SERVER ")
        with positioned(site.replication) as client:
            append()
            client.read_until("RDATA caches", 20)
            first.read_until("RDATA caches", 20)
    for one in silent:
        one.close()


def test_one_address_has_its_share_of_the_replication_port(start_site):
    """One client with many names took all places; nobody else could follow."""
    site = start_site(REPLSITE_CONNECTION_ADDRESS_LIMIT="3")
    held = [positioned(site.replication, f"n{number}") for number in range(3)]
    with connect(site.replication) as late:
        assert late.recv(100) == b"ERROR too many connections\n"
    counted("address limit")
    append()
    for one in held:
        one.read_until("RDATA caches", 20)
        one.socket.close()
    wait_until(lambda: connect(site.replication).recv(100).startswith(b"SERVER "), 20)


@pytest.mark.cold_start
def test_a_crowd_leaves_the_server_the_open_files_that_it_needs(start_manage):
    """With 1,024 of them a crowd on the replication port took all, and pages were refused."""
    serve = ["manage.py", "serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0"]
    code = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 400)); "
        f"sys.argv[:] = {serve!r}; sys.path.insert(0, ''); runpy.run_path('manage.py', run_name='__main__')"
    )
    process = start_manage("-c", code)
    ports = ready_ports(process)
    held = [connect(ports["replication"], b"NAME x\n", address=f"127.0.0.{n % 9 + 1}") for n in range(450)]
    assert psutil.Process(process.pid).rlimit(psutil.RLIMIT_NOFILE) == (400, 400)
    assert [status_of(ports["http"]) for _ in range(5)] == [200] * 5
    assert status_of(ports["http"], "/metrics", 20) == 200
    append()
    counted("address limit")
    for one in held:
        one.close()
