"""Whatever a peer does: the server stays up and small, others are served, and the end is counted under a reason."""

from __future__ import annotations

import socket
import struct
from collections import Counter
from contextlib import ExitStack

import psutil
import pytest

from streams.models import Reader, WireCount
from tests.support.floods import connect, read_slowly
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.wire_client import WireClient, positioned, ready_ports
from tests.support.writing import append, fact, stream

pytestmark = pytest.mark.django_db(transaction=True)


class Server:
    """A replication server process with short times."""

    def __init__(self, start_manage, **env: str) -> None:
        given = {
            "REPLSITE_SEND_BUFFER_LIMIT_BYTES": "200000",
            "REPLSITE_CLOSE_LIMIT_SECONDS": "1",
            "REPLSITE_PING_TIMEOUT_SECONDS": "2",
            "REPLSITE_PING_INTERVAL_SECONDS": "1",
        }
        self.process = start_manage("runreplication", "--bind", "127.0.0.1:0", env=given | env)
        self.port = ready_ports(self.process)["replication"]

    def memory(self) -> int:
        return psutil.Process(self.process.pid).memory_info().rss

    def is_well(self) -> None:
        with positioned(self.port) as client:
            append()
            client.read_until("RDATA caches")


@pytest.fixture
def server(start_manage):
    made = Server(start_manage)
    yield made
    made.is_well()
    assert made.process.poll() is None


def closed(reason: str, kind: str = "closed", times: int = 1) -> None:
    counted = WireCount.objects.filter(kind=kind, name=reason)
    wait_until(lambda: sum(counted.values_list("total", flat=True)) >= times, what=f"{kind}: {reason}")


SAID = [
    ("invalid UTF-8", b"NAME \xff\xfe\n", None),
    ("parse error", b"\0\0\0\0\n", b"ERROR failed to parse line"),
    ("parse error", b"REPLICATE\r\n", b"ERROR failed to parse line"),
    ("parse error", b"BOGUS %s %d {}\n", b"ERROR failed to parse line"),
    ("line too long", b"x" * 17_000, b"ERROR Line length exceeded"),
    ("line too long", b"PING " + b"x" * 17_000 + b"\n", b"ERROR Line length exceeded"),
    ("invalid command", b"RDATA caches w 5 []\n", b"ERROR invalid command: RDATA"),
    ("invalid command", b"SERVER evil\n", b"ERROR invalid command: SERVER"),
    ("spoke HTTP", b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"is this the replication port?"),
    ("spoke HTTP", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"is this the replication port?"),
    ("spoke TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"ERROR this port does not speak TLS"),
    ("ping timeout", b"PING 1\n", b"ERROR ping timeout"),
]


def test_what_is_said_ends_with_its_reason(server):
    with ExitStack() as stack:
        clients = [stack.enter_context(WireClient(server.port)) for _ in SAID]
        for client, (_, said, _) in zip(clients, SAID, strict=True):
            client.socket.sendall(said)
        for client, (reason, said, answer) in zip(clients, SAID, strict=True):
            text = "\n".join(client.read_to_end()).encode()
            assert text.count(b"ERROR") == (answer is not None), (reason, said)
            assert (answer or b"") in text, (reason, said)
    ends = Counter(reason for reason, _, _ in SAID)
    for reason, times in ends.items():
        closed(reason, times=times)
    wait_until(lambda: set(Reader.objects.values_list("close_reason", flat=True)) >= set(ends))


def test_who_goes_has_closed(server):
    """By half, in the middle of a line, or with a reset."""
    for said in (b"", b"PING 1\n", b"NAME half a li"):
        with WireClient(server.port) as client:
            client.socket.sendall(said)
            client.socket.shutdown(socket.SHUT_WR)
            assert not [line for line in client.read_to_end() if line.startswith("ERROR")], said
    client = WireClient(server.port, "NAME x")
    client.read_until("SERVER")
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()
    closed("peer closed", times=4)


ODD = [
    b"\n\n \n\t\nREPLICATE\n",
    b"REPLICATE \r\n",
    b"NAME nul\0\nPING 1\r\nREPLICATE\n",
    b"ERROR it hurts\nREPLICATE\n",
    b'USER_SYNC w @c:a start 5\nCLEAR_USER_SYNC w\nFEDERATION_ACK s 0\nUSER_IP @c:a ["t","::1","ua",null,5]\nREPLICATE\n',
]


def test_odd_input_that_is_allowed_ends_nothing(server):
    for said in ODD:
        with WireClient(server.port) as client:
            client.socket.sendall(said)
            client.read_until("POSITION caches")
            assert not client.of("ERROR"), said


@pytest.mark.memory
def test_a_peer_that_never_reads_is_cut_and_costs_little(server):
    before = server.memory()
    with WireClient(server.port) as deaf:
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.say("REPLICATE")
        for _ in range(12):
            stream().append(*(fact("x" * 8_000) for _ in range(100)))
        closed("too slow")
        assert server.memory() - before < 100_000_000
    assert server.memory() - before < 100_000_000


def ports_of_clients(server: Server) -> set[int]:
    return {one.raddr.port for one in psutil.Process(server.process.pid).net_connections("tcp") if one.raddr}


def test_a_peer_that_takes_nothing_is_let_go_however_little_waits(start_manage):
    """It never said PING, and the kernel keeps all for it: neither the time of PING nor the limits of bytes end it."""
    server = Server(start_manage, REPLSITE_SEND_STALL_LIMIT_SECONDS="1", REPLSITE_SEND_BUFFER_LIMIT_BYTES="16000000")
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", server.port))
        deaf.sendall(b"REPLICATE\n")
        wait_until(Reader.objects.exists)
        stream().append(*(fact("x" * 8_000) for _ in range(10)))
        wait_until(lambda: deaf.getsockname()[1] not in ports_of_clients(server))
    closed("peer closed")
    server.is_well()


def test_a_peer_that_reads_a_little_at_a_time_stays(start_manage):
    """The kernel counts its time from the first closed window, also while the other end takes what fits in a small buffer."""
    server = Server(start_manage, REPLSITE_SEND_STALL_LIMIT_SECONDS="1", REPLSITE_SEND_BUFFER_LIMIT_BYTES="16000000")
    with connect(server.port, b"REPLICATE\n", takes=4096) as slow:
        wait_until(Reader.objects.exists)
        stream().append(*(fact("x" * 8_000) for _ in range(40)))
        read_slowly(slow, seconds=6.0)
    server.is_well()


@pytest.mark.memory
def test_floods_of_every_kind_leave_memory_as_it_is(server):
    """Each is bounded by its own limit; together they must not add up."""
    server.is_well()
    before = server.memory()
    for line in (
        b"USER_SYNC w%d @u%d:b start 1\n",
        b"USER_SYNC w%d @u%d:b end 1\n",
        b'USER_IP @u%d:b ["t%d","ip","ua",null,5]\n',
        b"FEDERATION_ACK s%d %d\n",
        b"CLEAR_USER_SYNC w%d%d\n",
        b"NAME %d%d\n",
        b"REPLICATE %d%d\n",
    ):
        with WireClient(server.port) as client:
            client.socket.settimeout(DEADLINE_SECONDS)
            for start in range(0, 5_000, 1_000):
                client.socket.sendall(b"".join(line % (n, n) for n in range(start, start + 1_000)))
                client.socket.setblocking(False)
                try:
                    while client.socket.recv(1 << 20):
                        pass
                except BlockingIOError:
                    client.socket.settimeout(DEADLINE_SECONDS)
            client.socket.close()
    server.is_well()
    assert server.memory() - before < 60_000_000


def test_many_connections_are_refused_by_number(start_manage):
    server = Server(start_manage, REPLSITE_CONNECTION_LIMIT="3")
    clients = [WireClient(server.port, "NAME x") for _ in range(3)]
    for client in clients:
        client.say("REPLICATE")  # who says nothing would give way
        client.read_until("POSITION")
    with WireClient(server.port) as refused:
        assert refused.read_to_end() == ["ERROR too many connections"]
    closed("connection limit", "refused")
    clients.pop().socket.close()
    wait_until(lambda: _gets_in(server.port))
    for client in clients:
        client.socket.close()


def test_who_says_nothing_makes_room_and_is_told_so(start_manage):
    server = Server(start_manage, REPLSITE_CONNECTION_LIMIT="2")
    with WireClient(server.port) as silent, WireClient(server.port, "NAME x") as named:
        silent.read_until("SERVER")
        named.read_until("SERVER")
        with positioned(server.port, "y"):
            assert silent.read_to_end()[-1] == "ERROR too many connections"
            closed("made room")


def _gets_in(port: int) -> bool:
    with WireClient(port) as client:
        client.read_until(lambda line: line.startswith(("SERVER", "ERROR")))
        return bool(client.of("SERVER"))


def test_a_closing_connection_whose_peer_reads_nothing_is_aborted(server):
    with WireClient(server.port) as deaf:
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.say("REPLICATE")
        for _ in range(12):
            stream().append(*(fact("x" * 8_000) for _ in range(100)))
        closed("too slow")
        ours = deaf.socket.getsockname()[1]
        wait_until(lambda: ours not in ports_of_clients(server))
