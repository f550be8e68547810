"""Raw TCP connections as ASGI, on real sockets of this process; the reactor is not needed for that."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import socket

import pytest

from streams.replication.transport.tcp_places import TcpPlaces
from streams.replication.transport.tcp_scope import (
    ACCEPTED_AT_ONCE,
    INPUT_HIGH_BYTES,
    UNSENT_BYTES,
    TcpConnection,
    TcpListener,
)
from tests.support.async_waiting import wait_for


class Host:
    """A port whose connections have no application but the test."""

    def __init__(self) -> None:
        self.places = TcpPlaces(100)
        self.connections: list[TcpConnection] = []

    def make(self) -> TcpConnection:
        self.connections.append(TcpConnection(self.places))
        assert self.places.enter(self.connections[-1], "127.0.0.1") is None
        return self.connections[-1]


@pytest.fixture
async def host():
    made = Host()
    made.server = await asyncio.get_running_loop().create_server(made.make, "127.0.0.1", 0)
    made.port = made.server.sockets[0].getsockname()[1]
    yield made
    made.server.close()
    for connection in made.connections:
        connection.abort()
    await wait_for(lambda: not len(made.places))


@pytest.fixture
async def pair(host):
    """A connected client, and the connection as the application sees it, accepted."""
    reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
    connection = await wait_for(lambda: host.connections and host.connections[0])
    assert await connection.receive() == {"type": "tcp.connect"}
    connection.handle_reply({"type": "tcp.accept"})
    yield reader, writer, connection
    writer.transport.abort()


async def test_scope_names_both_ends(host, pair):
    scope = pair[2].scope
    assert (scope["type"], scope["server"]) == ("tcp", ["127.0.0.1", host.port])
    assert scope["client"] == list(pair[1].get_extra_info("sockname"))
    assert scope["extensions"]["tcp.transport"] is pair[2]


async def test_nothing_is_read_before_it_was_accepted(host):
    _, writer = await asyncio.open_connection("127.0.0.1", host.port)
    writer.write(b"early")
    connection = await wait_for(lambda: host.connections and host.connections[0])
    await connection.receive()
    waiting = asyncio.ensure_future(connection.receive())
    done, _ = await asyncio.wait([waiting], timeout=0.05)
    assert not done
    connection.handle_reply({"type": "tcp.accept"})
    assert await waiting == {"type": "tcp.receive", "bytes": b"early"}
    writer.transport.abort()


async def test_bytes_go_both_ways(pair):
    reader, writer, connection = pair
    writer.write(b"ping")
    assert (await connection.receive())["bytes"] == b"ping"
    connection.handle_reply({"type": "tcp.send", "bytes": b"pong"})
    assert await reader.readexactly(4) == b"pong"


async def test_reading_stops_while_the_application_takes_nothing(pair):
    _, writer, connection = pair
    writer.write(b"x" * 20_000_000)
    await wait_for(lambda: connection._input_bytes > INPUT_HIGH_BYTES)
    held = connection._input_bytes
    await asyncio.sleep(0.05)  # an absence: nothing more is read
    assert connection._input_bytes == held < 2_000_000


async def test_reading_stops_for_single_bytes_long_before_their_number_is_that_of_the_bound(pair):
    """Each is kept as a message: of 32,000 single bytes a client had eight megabytes."""
    _, _, connection = pair
    for _ in range(INPUT_HIGH_BYTES // 100):
        connection.data_received(b"x")
    assert not connection._transport.is_reading()
    for _ in range(INPUT_HIGH_BYTES // 100):
        assert (await connection.receive())["bytes"] == b"x"
    assert connection._transport.is_reading()
    assert connection._input_bytes == 0


async def test_reading_goes_on_when_the_application_does(pair):
    _, writer, connection = pair
    writer.write(b"x" * 3_000_000)
    total = 0
    while total < 3_000_000:
        total += len((await connection.receive())["bytes"])
    assert total == 3_000_000


async def test_output_waits_in_pieces_and_keeps_its_order(pair):
    reader, _, connection = pair
    pieces = [bytes([65 + number % 26]) * 300_000 for number in range(40)]
    for piece in pieces:
        connection.write(piece)
    assert connection.buffered_bytes > 1_000_000
    assert await reader.readexactly(12_000_000) == b"".join(pieces)
    await wait_for(lambda: connection.buffered_bytes == 0)


class Long(bytes):
    """A piece that nobody goes through."""

    def count(self, *_):
        raise AssertionError("its lines were counted")


async def test_waiting_lines_are_known_without_going_through_them(pair):
    """Of 500 clients that did not read they were counted each second, which took more than two seconds."""
    reader, _, connection = pair
    for _ in range(60):
        connection.write(Long(b"0123456789" * 30_000), 3)
    connection.write(b"the\nend\n")
    assert connection.waiting_lines % 3 == 2
    assert 20 < connection.waiting_lines < 182
    await reader.readexactly(60 * 300_000 + 8)
    assert connection.waiting_lines == 0
    for _ in range(60):
        connection.write(Long(b"0123456789" * 30_000), 3)
    connection.drop_waiting()
    assert connection.waiting_lines == 0


async def test_dropping_leaves_whole_pieces_and_what_comes_after(pair):
    reader, _, connection = pair
    piece = b"0123456789" * 30_000
    for _ in range(60):
        connection.write(piece)
    assert connection.drop_waiting() > 0
    connection.write(b"the end")
    connection.close()
    received = await reader.read(-1)
    assert received.endswith(b"the end")
    assert (len(received) - len(b"the end")) % len(piece) == 0


async def test_close_waits_for_what_was_written(pair):
    reader, _, connection = pair
    connection.write(b"y" * 5_000_000)
    connection.handle_reply({"type": "tcp.close"})
    connection.write(b"late")
    assert await reader.read(-1) == b"y" * 5_000_000


async def test_end_of_input_is_told_and_output_still_flows(pair):
    reader, writer, connection = pair
    writer.write_eof()
    assert await connection.receive() == {"type": "tcp.eof"}
    connection.write(b"answer")
    assert await reader.readexactly(6) == b"answer"


async def test_the_last_message_is_a_disconnect(host, pair):
    _, writer, connection = pair
    writer.transport.abort()
    assert (await connection.receive())["type"] == "tcp.eof"
    connection.handle_reply({"type": "tcp.close"})
    assert (await connection.receive())["type"] == "tcp.disconnect"
    assert not len(host.places)


async def test_abort_does_not_wait_for_the_peer(pair):
    _, _, connection = pair
    connection.write(b"y" * 20_000_000)
    connection.handle_reply({"type": "tcp.close", "abort": True})
    assert (await connection.receive())["type"] == "tcp.disconnect"


async def test_messages_of_another_scope_are_refused(pair):
    with pytest.raises(ValueError, match=r"http\.response\.start"):
        pair[2].handle_reply({"type": "http.response.start"})


# --- the listener ---------------------------------------------------------------------------------------------------


async def nothing(scope, receive, send) -> None:
    """An application that stays until the connection ends."""
    while (await receive())["type"] != "tcp.disconnect":
        pass


@contextlib.asynccontextmanager
async def accepting(application=nothing, backlog: int = 10):
    with socket.create_server(("127.0.0.1", 0), backlog=backlog) as listener:
        listener.setblocking(False)
        server = TcpListener(application, [listener])
        yield server, listener.getsockname()
        await server.stop()
        await server.end()
        await wait_for(lambda: not len(server))


async def test_a_crowd_is_accepted_a_few_at_a_time():
    """All two thousand at once kept followers waiting for two seconds."""
    number, seen, begun = 200, [], 0

    async def count(scope, receive, send) -> None:
        nonlocal begun
        begun += 1
        await nothing(scope, receive, send)

    async with accepting(count, number) as (server, address):
        clients = [socket.create_connection(address) for _ in range(number)]
        server.start()
        while not seen or seen[-1] < number:
            seen.append(begun)
            await asyncio.sleep(0)
        for client in clients:
            client.close()
    assert max(after - before for before, after in itertools.pairwise(seen)) <= ACCEPTED_AT_ONCE


async def test_what_a_closed_connection_has_not_sent_ends_with_the_same_time():
    """The kernel alone keeps it for minutes. An open connection has no such limit: it would end clients that read slowly."""
    found = []

    async def close(scope, receive, send) -> None:
        connection = scope["extensions"]["tcp.transport"]
        made = connection._transport.get_extra_info("socket")
        for end in (lambda: None, connection.close):
            end()
            found.append(made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))

    async with accepting(close) as (server, address):
        server.start()
        with socket.create_connection(address):
            assert await wait_for(lambda: found[1:] and found) == [0, 60_000]


async def test_what_a_client_does_not_read_waits_in_shared_pieces_and_not_in_the_kernel():
    """The kernel made a copy for each client: gigabytes for a thousand, and a loop that did little else meanwhile."""
    found = []

    async def say(scope, receive, send) -> None:
        connection = scope["extensions"]["tcp.transport"]
        for _ in range(400):
            connection.write(b"x" * 10_000)
        found.append(connection.kernel_bytes[0])
        await nothing(scope, receive, send)

    async with accepting(say) as (server, address):
        server.start()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.setblocking(False)
            await asyncio.get_running_loop().sock_connect(client, address)
            (kept,) = await wait_for(lambda: found)
    assert kept <= 2 * UNSENT_BYTES


async def test_accepting_goes_on_after_an_error(monkeypatch):
    """With no descriptor left, and with a client that is gone already."""
    monkeypatch.setattr("streams.replication.transport.tcp_scope.ACCEPT_AGAIN_SECONDS", 0)
    loop = asyncio.get_running_loop()
    accept, errors = loop.sock_accept, [OSError(errno.EMFILE, "Too many open files"), ConnectionAbortedError()]

    async def accept_or_fail(listener):
        if errors:
            raise errors.pop()
        return await accept(listener)

    monkeypatch.setattr(loop, "sock_accept", accept_or_fail)
    async with accepting() as (server, address):
        server.start()
        with socket.create_connection(address):
            await wait_for(lambda: len(server))


async def test_the_error_of_an_application_ends_its_connection_after_what_it_wrote(caplog):
    async def fail(scope, receive, send) -> None:
        await send({"type": "tcp.send", "bytes": b"internal error"})
        raise RuntimeError

    async with accepting(fail) as (server, address):
        server.start()
        reader, writer = await asyncio.open_connection(*address)
        assert await reader.read(-1) == b"internal error"
        writer.close()


async def test_an_application_that_ends_does_not_wait_for_a_client_that_reads_nothing(monkeypatch):
    monkeypatch.setattr("streams.replication.transport.tcp_scope.LINGER_SECONDS", 0.05)

    async def say(scope, receive, send) -> None:
        await send({"type": "tcp.send", "bytes": b"x" * 20_000_000})

    async with accepting(say) as (server, address):
        server.start()
        with socket.create_connection(address):
            await wait_for(lambda: len(server))
            await wait_for(lambda: not len(server))
