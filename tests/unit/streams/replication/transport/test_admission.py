"""Who comes in through the replication port, in which language, and what the others are told, on real sockets.

Each on both event loops: that of the standard library and uvloop.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time

import pytest

from streams.replication.protocol.access import Access
from streams.replication.transport import tcp_scope
from streams.replication.transport.tcp_scope import ListenerLimits, TcpListener
from streams.replication.transport.tls import (
    HANDSHAKE,
    MOST_IN_TURN,
    MOST_OF_HANDSHAKE,
    Certificates,
    Handshake,
    Refusal,
    TlsFiles,
    client_context,
    explain,
    refusal_of,
)
from tests.support.async_waiting import wait_for
from tests.support.certificates import Authority
from tests.support.new_keys import ask_for_new_keys
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
    """A port whose application is the test."""

    def __init__(self) -> None:
        self.scopes, self.connections = [], []

    async def application(self, scope, receive, send) -> None:
        self.scopes.append(scope)
        self.connections.append(scope["extensions"]["tcp.transport"])
        await self.connections[-1].is_lost.wait()

    @property
    def refusals(self):
        return self.server.refusals


@contextlib.asynccontextmanager
async def listening(certificates, *networks, access=None, **limits):
    host = Host()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        host.port = listener.getsockname()[1]
        access = access or Access(networks, has_tls=True)
        host.server = TcpListener(host.application, [listener], ListenerLimits(**limits), access, certificates)
        host.server.start()
        yield host
        await host.server.stop()
        await host.server.end()
        await wait_for(lambda: not len(host.server))


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
        await wait_for(lambda: host.refusals == {Refusal.NO_CERTIFICATE: 1})
        assert not host.connections


async def test_an_expired_certificate_is_refused_by_name(authority, certificates):
    async with listening(certificates) as host:
        assert await refused(host, files(authority, "old", expired=True)) == (
            "our client certificate has expired: have it renewed"
        )
        await wait_for(lambda: host.refusals == {Refusal.EXPIRED: 1})


async def test_a_certificate_of_a_stranger_is_refused_by_name(authority, stranger, certificates):
    mine = stranger.sign("client")
    async with listening(certificates) as host:
        heard = await refused(host, TlsFiles(*mine, str(authority.file)))
        assert heard.startswith("the server does not know the authority of our client certificate")
        await wait_for(lambda: host.refusals == {Refusal.UNTRUSTED: 1})


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
        await wait_for(lambda: host.refusals == {Refusal.OLD_TLS: 1})


@pytest.mark.parametrize("said", [b"NAME worker1\nPING 1\nREPLICATE \n", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100])
async def test_plain_text_to_a_tls_port_is_answered_in_plain_text(certificates, said):
    async with listening(certificates) as host:
        reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
        writer.write(said)
        assert (await reader.read(-1)).startswith(b"ERROR this port speaks TLS only")
        await wait_for(lambda: host.refusals == {Refusal.NOT_TLS: 1})
        writer.close()


@pytest.mark.parametrize("said", [b"", b"\x16", b"\x16\x03\x01\x02\x00"])
async def test_who_does_not_finish_the_handshake_is_refused(certificates, said):
    async with listening(certificates, handshake_seconds=0.05) as host:
        reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
        writer.write(said)
        await reader.read(-1)
        await wait_for(lambda: host.refusals == {Refusal.TIMEOUT: 1})
        writer.close()


async def test_broken_handshakes_are_refused(certificates):
    async with listening(certificates) as host:
        reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
        writer.write(b"\x16\x03\x01\x00\x05hello" * 3)
        await reader.read(-1)
        await wait_for(lambda: host.refusals == {Refusal.HANDSHAKE: 1})
        writer.close()


@pytest.mark.parametrize("said", [b"", b"\x16", b"\x16\x03\x01\x00\x05hel"])
async def test_a_client_that_goes_during_the_handshake_is_counted_once(certificates, said):
    async with listening(certificates) as host:
        _, writer = await asyncio.open_connection("127.0.0.1", host.port)
        writer.write(said)
        await wait_for(lambda: len(host.server))
        writer.transport.abort()
        await wait_for(lambda: not len(host.server))
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
    monkeypatch.setattr(tcp_scope, "FIRST_BYTE_SECONDS", 0.05)
    async with listening(certificates, "127.0.0.0/8") as host:
        _, writer = await asyncio.open_connection("127.0.0.1", host.port)
        await accepted(host)
        assert "tls" not in host.scopes[0]["extensions"]
        writer.transport.abort()


async def test_a_first_byte_that_came_during_a_long_iteration_counts(authority, certificates, monkeypatch):
    """It was greeted in plain text, with which a client that uses TLS can do nothing."""
    monkeypatch.setattr(tcp_scope, "FIRST_BYTE_SECONDS", 0.05)
    async with listening(certificates, "127.0.0.0/8") as host:
        (client,) = await begun(host, b"", 1)
        client.sendall(client_hello(authority))
        time.sleep(0.1)  # noqa: ASYNC251 - the long iteration
        await wait_for(lambda: len(host.server._unfinished) == 1)
        assert not host.scopes
        client.close()


async def test_one_connection_too_many_is_turned_away(certificates):
    async with listening(certificates, "127.0.0.0/8", connections=1) as host:
        _, first = await asyncio.open_connection("127.0.0.1", host.port)
        first.write(b"NAME x\n")
        (await wait_for(lambda: host.connections and host.connections[0])).know()
        reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
        assert await reader.read(-1) == b"ERROR too many connections\n"
        assert host.refusals == {Refusal.CONNECTION_LIMIT: 1}
        for one in (first, writer):
            one.transport.abort()


@pytest.mark.parametrize("is_secure", [False, True], ids=["plain", "tls"])
async def test_who_makes_room_for_others_is_told_why(authority, certificates, monkeypatch, is_secure):
    """It ended without a word. A client that uses TLS and is silent never agrees to the close."""
    monkeypatch.setattr(tcp_scope, "LINGER_SECONDS", 0.1)
    async with listening(certificates if is_secure else None, access=Access(has_tls=is_secure), connections=2) as host:
        context = client_context(files(authority)) if is_secure else None
        made = [await asyncio.open_connection("127.0.0.1", host.port, ssl=context)]
        silent = await accepted(host)
        made += [await asyncio.open_connection("127.0.0.1", host.port, ssl=context) for _ in range(2)]
        made[0][1].transport.pause_reading()
        await asyncio.wait_for(silent.is_lost.wait(), DEADLINE_SECONDS)
        assert await silent.receive() == {"type": "tcp.disconnect", "reason": "made room"}
        made[0][1].transport.resume_reading()
        assert await made[0][0].read(-1) == b"ERROR too many connections\n"
        for _, writer in made:
            writer.transport.abort()


async def test_who_makes_room_and_takes_nothing_is_gone_at_once(certificates):
    async with listening(None, access=Access(), connections=1) as host:
        with socket.create_connection(("127.0.0.1", host.port)) as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent = await accepted(host)
            silent.write(b"x" * 20_000_000)
            _, writer = await asyncio.open_connection("127.0.0.1", host.port)
            await asyncio.wait_for(silent.is_lost.wait(), tcp_scope.LINGER_SECONDS / 2)
            writer.transport.abort()


async def test_without_tls_loopback_comes_in_and_others_do_not():
    access = Access(["10.1.0.0/16"])
    async with listening(None, access=access) as host:
        _, writer = await asyncio.open_connection("127.0.0.1", host.port)
        await accepted(host)
        writer.transport.abort()
    far = type("Far", (), {"transport_for": lambda _, host: access.transport_for("192.0.2.1")})()
    async with listening(None, access=far) as host:
        reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
        assert (await reader.read(-1)).startswith(b"ERROR clients from this network are not allowed")
        assert host.refusals == {Refusal.NETWORK: 1}
        writer.close()


# --- floods of handshakes -------------------------------------------------------------------------------------------


def client_hello(authority) -> bytes:
    """The first bytes of a client, which anybody may send again and again."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        client_context(files(authority)).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1").do_handshake()
    return outgoing.read()


async def begun(host, said: bytes, number: int) -> list[socket.socket]:
    """So many clients that all say this, and no more."""
    made = []
    for _ in range(number):
        made.append(await asyncio.to_thread(socket.create_connection, ("127.0.0.1", host.port)))
    await wait_for(lambda: len(host.server) == number)
    for one in made:
        one.sendall(said)
    return made


@pytest.mark.speed
async def test_a_thousand_handshakes_at_once_leave_the_loop_time_for_others(authority, certificates):
    """Their first bytes held the loop for a second."""
    async with listening(certificates) as host:
        flood, slowest = await begun(host, client_hello(authority), 1_000), 0.0
        connecting = asyncio.create_task(opened(host, files(authority)))
        while not connecting.done():
            before = time.monotonic()
            await asyncio.sleep(0)
            slowest = max(slowest, time.monotonic() - before)
        connecting.result()[1].transport.abort()
        for one in flood:
            one.close()
    assert slowest < 0.3


async def test_a_crowd_of_followers_has_begun_before_the_first_of_them_is_done(authority, certificates):
    """Of a thousand that came back at once, 872 were cut in favour of the last 128."""
    async with listening(certificates) as host:
        crowd = await begun(host, client_hello(authority), 200)
        await wait_for(lambda: len(host.server._unfinished) == 200)
        assert not host.refusals
        for one in crowd:
            one.close()


async def test_handshakes_that_are_never_ended_give_way_to_others(authority, certificates, monkeypatch):
    monkeypatch.setattr(tcp_scope, "UNFINISHED_HANDSHAKES", 5)
    async with listening(certificates, handshake_seconds=600) as host:
        flood = await begun(host, client_hello(authority), 20)
        await wait_for(lambda: host.refusals == {Refusal.HANDSHAKE: 15})
        assert len(host.server._unfinished) == 5
        _, writer = await opened(host, files(authority))
        await accepted(host)
        writer.transport.abort()
        for one in flood:
            one.close()


async def test_hellos_in_pieces_do_not_begin_a_handshake(authority, certificates):
    """Those who send all but its last byte hold none of the few places of handshakes."""
    hello = client_hello(authority)
    async with listening(certificates) as host:
        flood = await begun(host, hello[:-1], 20)
        await asyncio.sleep(0.05)  # an absence: none begins
        assert not len(host.server._unfinished)
        _, writer = await opened(host, files(authority))
        await accepted(host)
        writer.transport.abort()
        for one in flood:
            one.close()


@pytest.mark.parametrize(
    "record",
    [b"\1", b"", b"\1\0", b"\0\0\0\0", b"\1\0\0\0", b"\1\xff\xff\xff" + b"x" * 100, b"\x0b\0\0\1x", b"x" * 16_384],
    ids=[
        "a byte",
        "nothing",
        "a head's beginning",
        "a request",
        "an empty hello",
        "a long hello",
        "another message",
        "noise",
    ],
)
async def test_a_hello_without_end_keeps_nobody_from_beginning(authority, certificates, record):
    """Eight clients that sent the first byte of a hello in a record of its own kept all others out for ten seconds."""
    async with listening(certificates, handshake_seconds=600) as host:
        flood = await begun(host, b"\x16\3\1" + len(record).to_bytes(2) + record, 20)
        await asyncio.sleep(0.05)  # all have begun, or never do
        _, writer = await asyncio.wait_for(opened(host, files(authority)), DEADLINE_SECONDS)
        await accepted(host)
        writer.transport.abort()
        for one in flood:
            one.close()


# --- what costs much and says nothing ---------------------------------------------------------------------------------


async def test_a_client_that_asks_for_new_keys_again_and_again_is_let_go(authority, certificates):
    """Each request costs the loop as much as a hundred lines. Two clients, without a certificate, stopped all others."""
    async with listening(certificates) as host:
        asking = asyncio.create_task(asyncio.to_thread(ask_for_new_keys, host.port, *authority.sign("client"), 100_000))
        connection = await accepted(host)
        await wait_for(connection.is_lost.is_set)
        assert await asking < 100_000


async def test_single_bytes_in_records_of_their_own_leave_others_their_turn(authority, certificates):
    said = b"PING 1\n" * 1_000
    async with listening(certificates) as host:
        _, writer = await opened(host, files(authority))
        connection = await accepted(host)
        for place in range(len(said)):
            writer.write(said[place : place + 1])
        got: list[bytes] = []
        while sum(map(len, got)) < len(said):
            got.append((await connection.receive())["bytes"])
        assert b"".join(got) == said
        assert max(map(len, got)) <= MOST_IN_TURN
        writer.transport.abort()


def shaking(certificates, told):
    """The server's side of a handshake, as the event loop has it: (object, what comes in)."""
    token = HANDSHAKE.set(Handshake(lambda: None, told.append, lambda: None))
    try:
        incoming = ssl.MemoryBIO()
        return certificates.context().wrap_bio(incoming, ssl.MemoryBIO(), server_side=True), incoming
    finally:
        HANDSHAKE.reset(token)


def go_on(made):
    with pytest.raises(ssl.SSLWantReadError):
        made.do_handshake()


async def test_a_handshake_of_very_many_records_fails(authority, certificates):
    hello, told = client_hello(authority)[5:], []
    made, incoming = shaking(certificates, told)
    for place in range(MOST_OF_HANDSHAKE + 1):
        assert not told
        incoming.write(b"\x16\3\1\0\1" + hello[place : place + 1])
        go_on(made)
    assert refusal_of(told[0]) is Refusal.HANDSHAKE


async def test_what_comes_after_a_failed_handshake_is_not_kept(certificates):
    told = []
    made, incoming = shaking(certificates, told)
    incoming.write(b"\x16\3\1\0\5noise")
    go_on(made)
    for _ in range(3):
        incoming.write(b"x" * 100_000)
        go_on(made)
        assert not incoming.pending
    assert len(told) == 1
