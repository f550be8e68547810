"""The gate of the replication port on real sockets: who comes in, in which language, and what the others are told.

Each on both event loops: that of the standard library and uvloop.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections import Counter

import pytest

from streams.replication.protocol.access import Access
from streams.replication.transport.admission import Admission, Turns
from streams.replication.transport.tcp_scope import TcpConnection
from streams.replication.transport.tls import Certificates, Refusal, TlsFiles, client_context, explain
from tests.support.async_waiting import wait_for
from tests.support.certificates import Authority
from tests.support.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


@pytest.fixture(scope="module")
def certificates(authority):
    return Certificates(TlsFiles(*authority.sign("server", server=True), str(authority.file)))


class Host:
    """What gates and connections need of their server."""

    handshake_limit_seconds = 5.0

    def __init__(self, certificates, access, room=100):
        self.certificates, self.access, self.room = certificates, access, room
        self.gates, self.refusals = set(), Counter()
        self.handshakes = Turns()
        self.connections, self.scopes, self.forgotten = [], [], []

    def tls_context(self):
        return self.certificates.context()

    def entered(self, gate, host):
        if len(self.gates) >= self.room:
            return Refusal.CONNECTION_LIMIT
        self.gates.add(gate)
        return None

    def passed(self, gate, above):
        self.gates.discard(gate)

    def left(self, gate):
        self.gates.discard(gate)

    def refused(self, reason, host, detail=""):
        self.refusals[reason] += 1

    def start_application(self, connection, scope):
        self.connections.append(connection)
        self.scopes.append(scope)

    def forget(self, connection):
        self.forgotten.append(connection)


@contextlib.asynccontextmanager
async def listening(certificates, *networks, room=100, limit=5.0):
    host = Host(certificates, Access(networks, has_tls=True), room)
    host.handshake_limit_seconds = limit
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Admission(host, host.access.of, TcpConnection(host)), "127.0.0.1", 0)
    host.port = server.sockets[0].getsockname()[1]
    yield host
    server.close()
    for one in [*host.connections, *host.gates]:
        one.abort()
    await wait_for(lambda: not host.gates and len(host.forgotten) == len(host.connections))


def files(authority, name="client", **more):
    return TlsFiles(*authority.sign(name, **more), str(authority.file))


async def accepted(host):
    connection = await wait_for(lambda: host.connections and host.connections[-1])
    assert (await connection.receive())["type"] == "tcp.connect"
    connection.handle_reply({"type": "tcp.accept"})
    return connection


async def opened(host, tls_files):
    return await asyncio.open_connection("127.0.0.1", host.port, ssl=client_context(tls_files))


async def refused(host, tls_files):
    """What a client learns: an error in words, or what it read."""
    try:
        reader, writer = await opened(host, tls_files)
        writer.write(b"NAME x\n")
        heard = await asyncio.wait_for(reader.read(-1), DEADLINE_SECONDS)
        writer.transport.abort()
    except ssl.SSLError as error:
        return explain(error)
    return heard.decode()


async def test_bytes_go_both_ways_in_tls(authority, certificates):
    async with listening(certificates) as host:
        reader, writer = await opened(host, files(authority))
        connection = await accepted(host)
        writer.write(b"ping")
        assert (await connection.receive())["bytes"] == b"ping"
        connection.write(b"pong")
        assert await reader.readexactly(4) == b"pong"
        writer.transport.abort()


async def test_the_application_knows_who_it_is(authority, certificates):
    async with listening(certificates) as host:
        _, writer = await opened(host, files(authority, "worker7"))
        await accepted(host)
        assert host.scopes[0]["extensions"]["tls"] == {"client_cert_name": "worker7", "tls_version": "TLSv1.3"}
        assert host.scopes[0]["client"] == list(writer.get_extra_info("sockname"))
        writer.transport.abort()


async def test_shared_pieces_keep_their_order_and_nothing_grows(authority, certificates):
    async with listening(certificates) as host:
        reader, writer = await opened(host, files(authority))
        connection = await accepted(host)
        pieces = [bytes([65 + number % 26]) * 300_000 for number in range(30)]
        for piece in pieces:
            connection.write(piece)
        assert connection.buffered_bytes > 1_000_000
        assert await reader.readexactly(9_000_000) == b"".join(pieces)
        await wait_for(lambda: connection.buffered_bytes == 0)
        writer.transport.abort()


async def test_reading_stops_while_the_application_takes_nothing(authority, certificates):
    async with listening(certificates) as host:
        _, writer = await opened(host, files(authority))
        connection = await accepted(host)
        writer.write(b"x" * 20_000_000)
        await wait_for(lambda: connection._paused_reading)
        held = connection._input_bytes
        await asyncio.sleep(0.05)  # an absence: nothing more is read
        assert connection._input_bytes == held < 2_000_000
        writer.transport.abort()


def read_all(port, tls_files):
    """A client in a thread that does TLS by OpenSSL alone, without an event loop's ways."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_SECONDS) as plain,
        client_context(tls_files).wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        received = b""
        while data := secure.recv(1 << 16):
            received += data
        return received


async def test_what_was_written_goes_out_before_the_end(authority, certificates):
    async with listening(certificates) as host:
        reading = asyncio.create_task(asyncio.to_thread(read_all, host.port, files(authority)))
        connection = await accepted(host)
        connection.write(b"y" * 3_000_000)
        connection.close()
        assert await reading == b"y" * 3_000_000


async def test_the_end_of_input_is_told(authority, certificates):
    async with listening(certificates) as host:
        _, writer = await opened(host, files(authority))
        connection = await accepted(host)
        writer.close()
        assert (await connection.receive())["type"] == "tcp.eof"
        connection.close()
        assert (await connection.receive())["type"] in ("tcp.eof", "tcp.disconnect")


async def test_a_client_without_a_certificate_is_told_so(authority, certificates):
    async with listening(certificates) as host:
        heard = await refused(host, TlsFiles(authorities=str(authority.file)))
        assert heard == "ERROR a client certificate is needed, from an authority that this server trusts\n"
        assert host.refusals == {Refusal.NO_CERTIFICATE: 1}
        assert not host.connections


async def test_an_expired_certificate_is_refused_by_name(authority, certificates):
    async with listening(certificates) as host:
        assert await refused(host, files(authority, "old", expired=True)) == (
            "our client certificate has expired: have it renewed"
        )
        assert host.refusals == {Refusal.EXPIRED: 1}


async def test_a_certificate_of_a_stranger_is_refused_by_name(authority, stranger, certificates):
    mine = stranger.sign("client")
    async with listening(certificates) as host:
        heard = await refused(host, TlsFiles(*mine, str(authority.file)))
        assert heard.startswith("the server does not know the authority of our client certificate")
        assert host.refusals == {Refusal.UNTRUSTED: 1}


async def test_a_client_that_does_not_trust_us_is_counted(authority, stranger, certificates):
    mine = TlsFiles(*authority.sign("client"), str(stranger.file))
    async with listening(certificates) as host:
        with pytest.raises(ssl.SSLCertVerificationError) as raised:
            await asyncio.to_thread(read_all, host.port, mine)
        assert explain(raised.value).startswith("the server's certificate is not trusted")
        await wait_for(lambda: host.refusals == {Refusal.OWN_CERTIFICATE: 1})


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1")
async def test_old_versions_of_tls_are_refused(authority, certificates):
    context = client_context(files(authority))
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    async with listening(certificates) as host:
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection("127.0.0.1", host.port, ssl=context)
        assert host.refusals == {Refusal.OLD_TLS: 1}


@pytest.mark.parametrize("said", [b"NAME worker1\nPING 1\nREPLICATE \n", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100])
async def test_plain_text_to_a_tls_port_is_answered_in_plain_text(certificates, said):
    async with listening(certificates) as host:
        reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
        writer.write(said)
        assert (await reader.read(-1)).startswith(b"ERROR this port speaks TLS only")
        assert host.refusals == {Refusal.NOT_TLS: 1}
        writer.close()


@pytest.mark.parametrize("said", [b"", b"\x16", b"\x16\x03\x01\x02\x00"])
async def test_who_does_not_finish_the_handshake_is_refused(certificates, said):
    async with listening(certificates, limit=0.05) as host:
        reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
        writer.write(said)
        await reader.read(-1)
        assert host.refusals == {Refusal.TIMEOUT: 1}
        writer.close()


async def test_broken_handshakes_are_refused(certificates):
    async with listening(certificates) as host:
        reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
        writer.write(b"\x16\x03\x01\x00\x05hello" * 3)
        await reader.read(-1)
        assert host.refusals == {Refusal.HANDSHAKE: 1}
        writer.close()


async def test_a_client_that_goes_during_the_handshake_is_counted_once(certificates):
    async with listening(certificates) as host:
        _, writer = await asyncio.open_connection("127.0.0.1", host.port)
        await wait_for(lambda: host.gates)
        writer.transport.abort()
        await wait_for(lambda: not host.gates)
        assert host.refusals == {Refusal.HANDSHAKE: 1}


async def test_a_named_network_may_speak_either(authority, certificates):
    async with listening(certificates, "127.0.0.0/8") as host:
        _, secure = await opened(host, files(authority))
        await accepted(host)
        reader, plain = await asyncio.open_connection("127.0.0.1", host.port)
        plain.write(b"NAME x\n")
        await wait_for(lambda: len(host.connections) == 2)
        connection = await accepted(host)
        assert (await connection.receive())["bytes"] == b"NAME x\n"
        connection.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        secure.transport.abort()
        plain.transport.abort()


async def test_a_silent_client_of_a_named_network_is_greeted_in_plain_text(certificates, monkeypatch):
    monkeypatch.setattr("streams.replication.transport.admission.FIRST_BYTE_SECONDS", 0.05)
    async with listening(certificates, "127.0.0.0/8") as host:
        _, writer = await asyncio.open_connection("127.0.0.1", host.port)
        await accepted(host)
        assert "tls" not in host.scopes[0]["extensions"]
        writer.transport.abort()


async def test_one_connection_too_many_is_turned_away(certificates):
    async with listening(certificates, "127.0.0.0/8", room=0) as host:
        reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
        assert await reader.read(-1) == b"ERROR too many connections\n"
        assert host.refusals == {Refusal.CONNECTION_LIMIT: 1}
        writer.close()


async def test_without_tls_loopback_comes_in_and_others_do_not():
    access = Access(["10.1.0.0/16"])
    async with listening(None) as host:
        host.access = access
        _, writer = await asyncio.open_connection("127.0.0.1", host.port)
        await accepted(host)
        writer.transport.abort()
        host.access = type("Far", (), {"of": lambda _, host: access.of("192.0.2.1")})()
        reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
        assert (await reader.read(-1)).startswith(b"ERROR clients from this network are not allowed")
        assert host.refusals == {Refusal.NETWORK: 1}
        writer.close()


async def test_many_handshakes_leave_the_loop_time_for_others():
    """The first bytes of 1,000 handshakes held the loop for a second."""
    turns, log, over = Turns(), [], asyncio.Event()

    def step():
        time.sleep(0.002)
        log.append("step")
        if log.count("step") == 50:
            over.set()

    for _ in range(50):
        turns.add(step)
    while not over.is_set():
        log.append("other")
        await asyncio.sleep(0)
    runs = "".join(word[0] for word in log).split("o")
    assert max(map(len, runs)) <= 4


async def test_the_error_of_one_step_leaves_the_others_their_turn():
    turns, done = Turns(), asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    turns.add(lambda: 1 / 0)
    turns.add(done.set)
    await asyncio.wait_for(done.wait(), DEADLINE_SECONDS)


async def test_a_client_is_not_read_until_the_turn_of_its_handshake(certificates):
    async with listening(certificates) as host:
        steps = []
        host.handshakes.add = steps.append
        _, writer = await asyncio.open_connection("127.0.0.1", host.port)
        writer.write(b"\x16" + b"x" * 8_000_000)
        await wait_for(lambda: steps)
        await asyncio.sleep(0.2)  # an absence: what is read in that time would be there
        (gate,) = host.gates
        assert len(steps) == 1
        assert gate._incoming.pending < 1_000_000
        steps[0]()
        writer.transport.abort()
