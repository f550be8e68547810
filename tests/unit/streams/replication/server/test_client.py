"""One client as the server sees it, with a transport made of a list."""

import asyncio
import time

import pytest
import uvloop

from streams.replication.protocol.commands import Name, RemoteServerUp
from streams.replication.protocol.connection import CloseReason, Limits
from streams.replication.server.client import ReplicationClient
from streams.runtime.logs import LineBound
from tests.support.async_waiting import wait_for
from tests.support.tcp_scope import MemoryTransport

LINES = LineBound(1_000, 10.0)


def _greeted() -> ReplicationClient:
    return ReplicationClient.accept(MemoryTransport(), "127.0.0.1:5", "example.org", Limits())


@pytest.fixture
async def peer():
    made = _greeted()
    yield made
    made.lost()


async def test_a_client_is_greeted_at_once(peer):
    assert peer._transport.sent.startswith(b"SERVER example.org\nPING ")


async def test_commands_are_returned_and_answers_written(peer):
    assert peer.receive(b"NAME x\nBOGUS\n") == [Name("x")]
    assert b"ERROR failed to parse line" in peer._transport.sent
    assert peer._transport.is_closing


async def test_shared_bytes_are_written_as_they_are_and_counted(peer):
    before = peer.connection.lines_out
    peer.write_shared(b"a\nb\n", 2, 1.0)
    assert peer._transport.sent.endswith(b"a\nb\n")
    assert peer.connection.lines_out == before + 2


async def test_nothing_goes_to_a_client_that_is_closing(peer):
    peer.close(CloseReason.STOPPING, "server stopping")
    peer.write_shared(b"late\n", 1, 1.0)
    peer.send(RemoteServerUp("x"))
    assert peer._transport.sent.endswith(b"ERROR server stopping\n")


async def test_too_many_waiting_bytes_end_a_client(peer):
    peer._transport.stuck = True
    peer.write_shared(b"x" * 2000 + b"\n", 1, 1.0)
    assert peer.cut_when_slow(1000, 30.0, 2.0, LINES)
    assert peer.connection.close_reason is CloseReason.TOO_SLOW
    assert peer._transport.waiting == b"ERROR Failed to keep up\n"


async def test_slow_clients_fill_no_log(caplog):
    """Each that was cut wrote a line, and one program may connect and be cut as often as it likes."""
    lines, clients = LineBound(3, 60.0), [_greeted() for _ in range(10)]
    for client in clients:
        client._transport.stuck = True
        client.write_shared(b"x" * 2000 + b"\n", 1, 1.0)
        assert client.cut_when_slow(1000, 30.0, 2.0, lines)
        client.lost()
    assert sum("client_too_slow" in one.getMessage() for one in caplog.records) == 3


async def test_a_client_that_takes_nothing_for_too_long_is_ended(peer):
    peer._transport.stuck = True
    peer.write_shared(b"x\n", 1, 1.0)
    start = asyncio.get_running_loop().time()
    assert not peer.cut_when_slow(1000, 30.0, start, LINES)
    assert not peer.cut_when_slow(1000, 30.0, start + 29.0, LINES)
    assert peer.cut_when_slow(1000, 30.0, start + 61.0, LINES)


async def test_a_slow_client_that_takes_something_is_kept(peer):
    peer._transport.stuck = True
    start = asyncio.get_running_loop().time()
    for second in range(0, 200, 20):
        peer.write_shared(b"x" * 10, 1, 1.0)
        peer._transport.take(5)
        assert not peer.cut_when_slow(1000, 30.0, start + second, LINES)


async def test_an_idle_client_is_pinged():
    made = ReplicationClient.accept(MemoryTransport(), "", "a", Limits(ping_interval_seconds=0.02))
    await wait_for(lambda: made._transport.sent.count(b"PING") >= 3)
    made.lost()


async def test_a_client_that_is_sent_nothing_again_and_again_is_pinged(peer):
    pinged_at = peer.connection.deadline
    peer.write_shared(b"", 0, pinged_at - 0.1)
    assert peer.connection.deadline == pinged_at


async def test_a_client_that_does_not_go_is_aborted():
    made = ReplicationClient.accept(MemoryTransport(), "", "a", Limits(abort_after_seconds=0.02))
    made.close(CloseReason.STOPPING)
    await wait_for(lambda: made._transport.is_aborted)
    made.lost()


async def test_figures_tell_the_reason_of_the_end(peer):
    peer.receive(b"\xff\n")
    assert peer.figures(1.0)["close_reason"] == "invalid UTF-8"


def test_a_deadline_that_has_come_already_has_a_handle_without_a_time_on_uvloop():
    async def late() -> list[Name]:
        peer = ReplicationClient.accept(MemoryTransport(), "", "example.org", Limits(ping_interval_seconds=0.001))
        while time.monotonic() < peer.connection.deadline:  # the loop was busy
            pass
        peer.flush()
        commands = peer.receive(b"NAME x\n")
        peer.lost()
        return commands

    assert uvloop.run(late()) == [Name("x")]
