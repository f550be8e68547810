"""Floods of HTTP against a running site: it stays small, writers get their connections, and others are answered meanwhile."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psutil
import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction

from streams import registry
from streams.catalog.models import CacheInvalidation
from streams.models import Reader, WireCount
from streams.replication.server.broadcaster import ANSWER_AGAIN_SECONDS, MOST_LOST, OTHERS_AGAIN_SECONDS
from tests.support.appending import MODULE
from tests.support.asked_process import asked_process
from tests.support.cookies import session_cookie
from tests.support.floods import STATIC, Probe, connect, drain, head, memory, read_slowly, status_of, statuses
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.wire_client import WireClient, positioned, ready_ports
from tests.support.writing import append, sessions, waiting_queries

pytestmark = pytest.mark.django_db(transaction=True)


class Site:
    """A serving process."""

    def __init__(self, start_manage, stderr: Any = None, **env: str) -> None:
        serve = ("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0")
        self.process = start_manage(*serve, env=env, stderr=stderr)
        ports = ready_ports(self.process)
        self.port, self.replication = ports["http"], ports["replication"]
        self.id = self.process.pid
        assert status_of(self.port) == 200

    def memory(self) -> int:
        return memory(self.id)


@pytest.fixture
def start_site(start_manage):
    return partial(Site, start_manage)


def cpu_of(site: Site, work: Callable[[], object]) -> float:
    """CPU seconds of the site's process meanwhile."""
    before = sum(psutil.Process(site.id).cpu_times()[:2])
    work()
    return sum(psutil.Process(site.id).cpu_times()[:2]) - before


def counted(reason: str, kind: str = "refused", least: int = 1) -> None:
    found = WireCount.objects.filter(kind=kind, name=reason)
    wait_until(lambda: sum(found.values_list("total", flat=True)) >= least, what=reason)


# --- what waits for a client ------------------------------------------------------------------------------------------


def asks_for_much(site: Site, takes: int) -> socket.socket:
    """A staff user's connection on which 4 MB of facts come, and whose window is of so many bytes."""
    cookie = session_cookie(User.objects.create_superuser("browser"))
    registry.get("caches").append(*[CacheInvalidation(cache_name="x", keys=["k" * 10_000]) for _ in range(400)])
    more = f"Cookie: {cookie}\r\nConnection: close\r\n"
    return connect(site.port, head("/admin/facts/stream/?stream=caches", more), takes=takes)


def test_an_answer_that_nobody_takes_is_not_kept_for_ever(start_site):
    """Streams of facts that were never read kept megabytes each, also when they had ended, for as long as their client liked."""
    site = start_site(REPLSITE_SEND_STALL_LIMIT_SECONDS="1")
    with asks_for_much(site, takes=2048) as deaf:
        assert deaf.recv(20).startswith(b"HTTP/1.1 200 ")
        ours, connections = deaf.getsockname()[1], psutil.Process(site.id).net_connections
        wait_until(lambda: ours not in {one.raddr.port for one in connections("tcp") if one.raddr})


def test_a_client_that_reads_a_little_at_a_time_stays(start_site):
    """The kernel counts its time from the first closed window, also while the other end takes what fits in a small buffer."""
    site = start_site(REPLSITE_SEND_STALL_LIMIT_SECONDS="1")
    with asks_for_much(site, takes=4096) as slow:
        read_slowly(slow, seconds=6.0)


# --- requests that do not come --------------------------------------------------------------------------------------


PARTS = {
    "head": (b"GET / HTTP/1.1\r\n", b"X-A: b\r\n"),
    "body": (b"POST /admin/login/ HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n\r\n", b"x"),
    "chunks": (b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "expected": (b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n", b""),
}


BODIES = {
    "told": ("Content-Length: 100000000\r\n", b"x" * 100_000),
    "in large pieces": ("Transfer-Encoding: chunked\r\n", b"1000000\r\n" + b"x" * 100_000),
    "in single bytes": ("Transfer-Encoding: chunked\r\n", b"1\r\nx\r\n" * 5_000),
}


def test_a_body_without_end_is_refused_and_counted(start_site):
    site = start_site(REPLSITE_HTTP_BODY_LIMIT_BYTES="100000")
    for form, (more, piece) in BODIES.items():
        with connect(site.port, head("/admin/login/", more, "POST")) as client:
            with contextlib.suppress(OSError):
                client.sendall(piece)
            with contextlib.suppress(OSError):
                client.sendall(piece[-100:])
                assert client.recv(100).startswith(b"HTTP/1.1 413 "), form
            with pytest.raises(OSError):
                for _ in range(1_000):
                    client.sendall(piece)
    counted("HTTP body too long", least=len(BODIES))


CHUNKED = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.speed
def test_forms_are_not_taken_apart_on_the_loop(start_site):
    """A form of a million fields was, before Django saw it: seconds in which nobody was answered."""
    site = start_site()
    form = b"a=1&" * 970_000

    def send(kind: str) -> None:
        more = f"Content-Type: {kind}\r\nConnection: close\r\nContent-Length: {len(form)}\r\n"
        said = head("/admin/login/", more, "POST") + form
        for _ in range(10):
            with connect(site.port, said) as client:
                assert client.recv(100).startswith(b"HTTP/1.1 4")

    with Probe(site.port, site.id) as seen:
        send("text/plain")
        plain = cpu_of(site, lambda: send("text/plain"))
        forms = cpu_of(site, lambda: send("application/x-www-form-urlencoded"))
    assert set(seen.statuses) == {200}
    assert forms < 3 * plain + 0.5, "little more than a body that is no form"


# --- the database -----------------------------------------------------------------------------------------------------


def test_made_up_cookies_take_no_connections_from_writers(start_site):
    site = start_site(REPLSITE_REQUEST_LIMIT="6")
    most = 0

    def look() -> None:
        nonlocal most
        most = max(most, len(sessions()))

    before = len(sessions())
    said = head("/admin/", "Cookie: sessionid=madeupabcdefghijklmnopqrstuvwxyz\r\nConnection: close\r\n")
    with Probe(site.port, site.id, look) as seen:
        found = statuses(site.port, said, 300)
        append()
    assert set(seen.statuses) == {200}
    assert most <= before + 6 + 5  # the site's own, and the two of the writer in this process
    assert set(found) <= {302, 503}
    assert found.count(302) >= 50


def test_a_crowd_of_made_up_viewers_takes_few_connections_and_keeps_nobody_out(start_site):
    site = start_site()
    said = head("/admin/live/data/", "Cookie: sessionid=madeupabcdefghijklmnopqrstuvwxyz\r\nConnection: close\r\n")
    with contextlib.ExitStack() as stack:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("LOCK TABLE django_session")
            crowd = [stack.enter_context(connect(site.port, said, address="127.0.0.2")) for _ in range(50)]
            wait_until(lambda: len(session_readers()) == 4, what="as many are read as there are places")
            assert status_of(site.port, "/admin/login/") == 200
            assert 'replsite_requests_at_work{lane="live page"} 4.0' in metrics(site)
            assert len(session_readers()) == 4
        assert {one.recv(100).split(b" ")[1] for one in crowd} == {b"403"}


def session_readers() -> list[int]:
    """Who wants to read a browser's session. The site also asks for the sizes of all tables, that one's too."""
    return [process for process, query in waiting_queries().items() if query.startswith('SELECT "django_session"')]


def metrics(site: Site) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{site.port}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


def test_who_finds_no_place_is_told_when_to_come_again(start_site):
    """A lock holds every page; what needs no database is answered all the same."""
    site = start_site(REPLSITE_REQUEST_LIMIT="2")
    said = head("/admin/", "Cookie: sessionid=madeupabcdefghijklmnopqrstuvwxyz\r\n")
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("LOCK TABLE django_session")
        held = [connect(site.port, said) for _ in range(2)]
        wait_until(lambda: len(session_readers()) == 2)
        late = connect(site.port, said)
        assert status_of(site.port) == 200
        assert status_of(site.port, STATIC) == 200
        assert status_of(site.port, "/metrics") == 200
        late.settimeout(DEADLINE_SECONDS)
        answer = late.recv(1000)
        cursor.execute("ROLLBACK")
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 5" in answer.lower()
    for one in held:
        assert one.recv(100).startswith(b"HTTP/1.1 302 ")
        one.close()
    late.close()


POLLS = 60


@pytest.fixture
def polled(start_site):
    """A site of few places, and the request of a staff user for the next fact. It is for nothing that is there."""
    site = start_site(REPLSITE_REQUEST_LIMIT="4")
    cookie = {"Cookie": session_cookie(User.objects.create_superuser("poller"))}
    address = f"http://127.0.0.1:{site.port}/admin/facts/stream/?stream=caches"
    with urllib.request.urlopen(urllib.request.Request(f"{address}&offset=now", headers=cookie), timeout=60) as answer:
        offset = answer.headers["Stream-Next-Offset"]
    return site, urllib.request.Request(f"{address}&offset={offset}&live=long-poll", headers=cookie)


def is_polled_by(number: int, site: Site) -> bool:
    """Returns true if so many requests wait for a fact, and none of them has a place."""
    found = metrics(site)
    lanes = [f'replsite_requests_at_work{{lane="{lane}"}} 0.0' for lane in ("pages", "facts", "readers of facts")]
    return f"replsite_browsers {number}.0" in found and all(lane in found for lane in lanes)


def test_a_crowd_that_waits_for_a_fact_takes_no_places_of_pages(polled):
    """Middleware that was only synchronous held the thread of each: 600 long polls kept other viewers out."""
    site, request = polled
    viewer = session_cookie(User.objects.create_superuser("viewer"))
    before = len(sessions())

    def poll(_: int) -> Any:
        while True:
            with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS) as answer:
                if answer.status == 200:  # else its time was over, and the client asks again
                    return json.load(answer)

    with ThreadPoolExecutor(POLLS) as clients:
        polls = clients.map(poll, range(POLLS))
        try:
            wait_until(lambda: is_polled_by(POLLS, site))
            assert status_of(site.port, "/admin/live/", more=f"Cookie: {viewer}\r\n") == 200
            assert len(sessions()) <= before + 4 + 4, "places, reads, permissions, and those of this process"
            assert psutil.Process(site.id).num_threads() < POLLS
        finally:
            append()
        found = list(polls)
    assert len(found[0]) == 1 and found == found[:1] * POLLS


def test_clients_that_leave_while_they_wait_for_a_fact_leave_nothing_behind(polled):
    site, request = polled
    said = head(request.selector, f"Cookie: {request.get_header('Cookie')}\r\n")
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(connect(site.port, said))
        wait_until(lambda: is_polled_by(20, site))
    wait_until(lambda: is_polled_by(0, site))
    assert status_of(site.port, "/admin/live/", more=f"Cookie: {request.get_header('Cookie')}\r\n") == 200


@pytest.mark.memory
def test_scrapes_at_once_share_one_rendering(start_site):
    site = start_site()
    assert status_of(site.port, "/metrics") == 200
    before = site.memory()
    alone = cpu_of(site, lambda: [status_of(site.port, "/metrics") for _ in range(20)])
    found: list[int] = []
    scrapes = head("/metrics", "Connection: close\r\n")
    with Probe(site.port, site.id) as seen:
        crowd = cpu_of(site, lambda: found.extend(statuses(site.port, scrapes, 200)))
    assert found == [200] * 200
    assert set(seen.statuses) == {200}
    assert seen.memory - before < 60_000_000
    assert crowd < 10 * alone + 0.5, "two hundred at once cost no more than one after another"


@pytest.mark.scenario
def test_a_port_of_metrics_is_answered_whatever_its_clients_do(start_site, free_port):
    """Each client had a thread of its own, for ever: 800 half-sent requests were 800 threads, and scrapes got no answer."""
    site = start_site(REPLSITE_METRICS_PORTS=str(free_port))
    wait_until(lambda: status_of(free_port, "/metrics") == 200)
    threads = psutil.Process(site.id).num_threads()
    with Probe(site.port, site.id) as seen:
        half = [connect(free_port, said) for said in (b"", b"GET /met", head("/metrics")[:-2], b"x" * 15_000) * 100]
        deaf = [connect(free_port, head("/metrics"), takes=2048) for _ in range(20)]
        assert [status_of(free_port, "/metrics") for _ in range(3)] == [200] * 3
        assert psutil.Process(site.id).num_threads() <= threads + 5
        found = statuses(free_port, head("/metrics"), 150)
        append()
    assert found.count(200) >= 100, "some give way to others that come at once"
    assert set(seen.statuses) == {200}
    ours = {one.getsockname()[1] for one in half + deaf}
    process = psutil.Process(site.id)
    wait_until(lambda: not ours & {one.raddr.port for one in process.net_connections("tcp") if one.raddr})
    for one in half + deaf:
        one.close()


def test_who_has_its_metrics_and_stays_gives_way(start_site, free_port):
    """Two hundred that did not close kept every scrape out for ten seconds, and might come again."""
    start_site(REPLSITE_METRICS_PORTS=str(free_port))
    wait_until(lambda: status_of(free_port, "/metrics") == 200)
    stay = [connect(free_port, head("/metrics")) for _ in range(200)]
    for one in stay:
        assert one.recv(200).startswith(b"HTTP/1.1 200 ")
    assert [status_of(free_port, "/metrics") for _ in range(3)] == [200] * 3
    for one in stay:
        one.close()


@pytest.mark.speed
def test_the_description_of_the_api_is_made_once(start_site):
    """Anybody may ask for it: 300 at once kept `/health/live` waiting for eight seconds."""
    site = start_site()
    path = "/api/v1/openapi.json"
    first = cpu_of(site, lambda: status_of(site.port, path))
    found: list[int] = []
    with Probe(site.port, site.id) as seen:
        crowd = cpu_of(site, lambda: found.extend(statuses(site.port, head(path, "Connection: close\r\n"), 60)))
    assert found.count(200) >= 30 and set(found) <= {200, 503}
    assert set(seen.statuses) == {200}
    assert crowd < 5 * first + 0.5, "sixty cost no more than a few of the first"


def test_a_port_of_metrics_answers_other_methods(start_site, free_port):
    start_site(REPLSITE_METRICS_PORTS=str(free_port))
    for method, answer in (("HEAD", b"HTTP/1.1 200 "), ("POST", b"HTTP/1.1 405 ")):
        with connect(free_port, head("/metrics", method=method)) as client:
            found = b""
            while data := client.recv(65_536):
                found += data
        assert found.startswith(answer)
        assert found.endswith(b"\r\n\r\n"), "no body"


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
            client.read_until("RDATA caches")
        over.set()
        for one in threads:
            one.join()
    assert set(seen.statuses) == {200}
    assert len(seen.statuses) > 10


class Flood:
    """A client that says REPLICATE as fast as it can, and counts how often it is answered."""

    def __init__(self, port: int, writer: str) -> None:
        self.asked, self.answers = 0, 0
        self._line = f"\nPOSITION caches {writer} ".encode()
        self._socket = connect(port)
        self._begun, self._over = time.monotonic(), threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._say, self._read)]

    def __enter__(self) -> Flood:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for one in self._threads:
            one.join()
        self._socket.close()

    def most_answers(self) -> float:
        """One for each turn until now, the one at once, and those that others asked for."""
        seconds = time.monotonic() - self._begun
        return seconds / ANSWER_AGAIN_SECONDS + seconds / OTHERS_AGAIN_SECONDS + 2

    def _say(self) -> None:
        with contextlib.suppress(OSError):
            while not self._over.is_set():
                self._socket.sendall(b"REPLICATE\n" * 100)
                self.asked += 100

    def _read(self) -> None:
        rest = b""
        with contextlib.suppress(OSError):
            while data := self._socket.recv(1 << 20):
                rest += data
                whole = rest.rfind(b"\n")  # begins the next look: the line feed before a line is looked for with it
                self.answers += rest.count(self._line, 0, whole)
                rest = rest[max(whole, 0) :]


@pytest.mark.scenario
def test_fifty_writers_append_while_a_client_floods_with_replicate(start_site, database_url):
    """An answer has a line for each writer of a stream: with fifty writers `/health/live` took nine seconds."""
    names, turns = [f"w-{number:02}" for number in range(50)], 3
    site = start_site()
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(len(names)) as pool:
        writers = [stack.enter_context(asked_process(MODULE, database_url, name)) for name in names]

        def append_by_each(turn: int, run: Callable[..., Iterable[str]] = pool.map) -> list[str]:
            tokens = list(run(lambda writer, name: writer.ask("append", f"{name}-{turn}"), writers, names))
            assert all(map(str.isdigit, tokens)), tokens
            return tokens

        follower = stack.enter_context(positioned(site.replication))
        told = [append_by_each(0, map)]  # they enter the stream one after the other, under its lock
        follower.read_until(f"RDATA caches {names[-1]} ")
        seen = stack.enter_context(Probe(site.port, site.id))
        with Flood(site.replication, names[0]) as flood:
            wait_until(lambda: flood.answers >= 2)
            told += [append_by_each(turn) for turn in range(1, turns)]
            answered = len(seen.statuses)
            wait_until(lambda: len(seen.statuses) >= answered + 3, what="pages are answered during the flood")
            wait_until(lambda: flood.asked > 20 * flood.answers, what="more is asked than answered")
            answers, most = flood.answers, flood.most_answers()
            for name, token in zip(names, told[-1], strict=True):
                follower.read_until(f"RDATA caches {name} {token} ")
            unasked = len(follower.of(f"POSITION caches {names[0]} "))  # whenever others have written
            assert answers - unasked <= most, "one answer a turn, however often it is asked for"
        assert set(seen.statuses) == {200}
    for number, name in enumerate(names):
        lines = [line.split(" ", 4) for line in follower.of("RDATA", "caches", name)]
        got = [(int(token), json.loads(row)[0]) for _, _, _, token, row in lines]
        assert got == [(int(told[turn][number]), f"{name}-{turn}") for turn in range(turns)], "each once, in order"


def test_hints_of_a_client_do_not_wait_before_the_facts_of_a_slow_follower(start_site):
    """A follower on a slow line got the hints of others first, 64 kB of them a second, and was cut for them in the end."""
    site = start_site(REPLSITE_SEND_STALL_LIMIT_SECONDS="600")
    slow = WireClient(site.replication)
    slow.say("NAME slow\nREPLICATE")
    slow.read_until("POSITION caches")

    def waits_for(name: str) -> int:
        return Reader.objects.filter(name=name).values_list("buffer_bytes", flat=True).first() or 0

    with slow, positioned(site.replication, "quick") as quick, positioned(site.replication, "flood") as flood:
        while waits_for("slow") < 64 * 1024:
            [token] = registry.get("caches").append(CacheInvalidation(cache_name="x", keys=["k" * 10_000]))
            quick.read_until(f"RDATA caches master {token} ")
        flood.say("\n".join(f"REMOTE_SERVER_UP {'a' * 50}{number}.org" for number in range(500)))
        quick.read_until(f"REMOTE_SERVER_UP {'a' * 50}499.org")
        [token] = append()
        slow.read_until(f"RDATA caches master {token} ")
        assert slow.of("REMOTE_SERVER_UP") == []
        with positioned(site.replication, "other") as other:  # the flood has had its part of this second
            other.say("REMOTE_SERVER_UP again.org")
            slow.read_until("REMOTE_SERVER_UP again.org")


def test_facts_of_a_slow_follower_wait_behind_few_hints_of_others(start_site):
    """A quarter of a megabyte of them lay before each fact, in the kernel and here: on a line of 8 kB/s half a minute."""
    site = start_site(REPLSITE_SEND_STALL_LIMIT_SECONDS="600")
    with (
        WireClient(site.replication, "NAME slow\nREPLICATE", takes=4096) as slow,
        positioned(site.replication, "quick") as quick,
        positioned(site.replication, "flood") as flood,
    ):
        slow.read_until("POSITION caches")
        for turn in range(6):
            hints = [f"REMOTE_SERVER_UP {'a' * 224}{turn}{number:03}.org" for number in range(240)]
            flood.say("\n".join(hints))
            quick.read_until(hints[-1])
            time.sleep(1)  # as much is relayed for one client in a second
        [token] = append()
        quick.read_until(f"RDATA caches master {token} ")
        assert sum(map(len, quick.of("REMOTE_SERVER_UP"))) > 256 * 1024
        slow.read_until(f"RDATA caches master {token} ")
        assert sum(map(len, slow.of("REMOTE_SERVER_UP"))) < 64 * 1024


def test_connections_that_come_and_go_are_counted_and_few_of_them_are_told_of(start_site):
    site, begun = start_site(), time.monotonic()
    for _ in range(1_000):
        connect(site.replication).close()
    with positioned(site.replication) as client:
        append()
        client.read_until("RDATA caches")
    counted("peer closed", "closed", 900)
    turns = time.monotonic() - begun + 2  # the table is told once a second
    assert Reader.objects.count() <= MOST_LOST * turns


def test_connections_that_come_and_go_fill_no_log(start_site, tmp_path):
    """Each wrote up to two and a half thousand bytes: follows, its error, closing, ended, each with its name. And the end of one
    was logged again with each piece of input that had been read before it."""
    path = tmp_path / "log"
    with path.open("wb") as log:
        site = start_site(stderr=log, REPLSITE_LOG_LEVEL="INFO")
        before = path.stat().st_size
        made = connect(site.replication)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):
            made.sendall(b"x" * 20_000)
            for _ in range(20_000):
                made.send(b"x")
        drain(made)
        counted("line too long", "closed")
        assert path.read_text().count("event=replication.closing") == 1
        wide = "\u4e00"
        said = f"NAME {wide * 200}\nERROR {wide * 500}\nREPLICATE\nBOGUS\n"
        for _ in range(400):
            with connect(site.replication, said.encode()) as made:
                drain(made)
        counted("parse error", "closed", 400)
    lines = path.read_bytes()[before:].decode().splitlines()
    for event in ("replication.follows", "replication.client_error", "replication.closing", "replication.ended"):
        assert any(event in line for line in lines)
    assert sum(" event=replication." in line for line in lines) < 400


def test_connections_that_do_not_say_who_they_are_give_way_to_followers(start_site):
    """As many as the limit were there for ever, and a follower was turned away."""
    site = start_site(REPLSITE_CONNECTION_LIMIT="5")
    with positioned(site.replication) as first:
        for said in (b"", b"P", b"\n", b"PING 1\nUSER_SYNC w @a:b start 1\n", b"x" * 16_000):
            silent = [connect(site.replication, said) for _ in range(20)]
            for one in silent[-4:]:
                assert one.recv(100).startswith(b"SERVER "), said
            with positioned(site.replication) as client:
                [token] = append()
                for one in (client, first):
                    one.read_until(f"RDATA caches master {token} ")
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
        one.read_until("RDATA caches")
        one.socket.close()
    wait_until(lambda: connect(site.replication).recv(100).startswith(b"SERVER "))


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
    assert status_of(ports["http"], "/metrics") == 200
    append()
    counted("address limit")
    for one in held:
        one.close()
