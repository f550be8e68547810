"""What viewers are sent, under daphne's own protocol on Twisted's own buffers."""

from __future__ import annotations

import tracemalloc

import daphne.server  # noqa: F401 - first: it installs the reactor
import pytest
from daphne.ws_protocol import WebSocketFactory

from streams.replication.transport.http_limits import TOO_SLOW, HttpBounds, HttpLimits, _BoundedWebSocket, _Counted
from tests.unit.streams.replication.transport.test_websocket_output import Wire

PAGE = "ä" * 200_000


class Viewer:
    """A WebSocket that is open, to a client that takes nothing until it is told to."""

    def __init__(self, limits: HttpLimits) -> None:
        self.wire = Wire(takes=0)
        self.socket = _BoundedWebSocket()
        self.socket.factory = WebSocketFactory(None)
        self.counted = _Counted(limits, self.socket)
        self.counted.makeConnection(self.wire)
        self.socket.state = self.socket.STATE_OPEN
        self.socket.client_addr = ["127.0.0.1", 4711]

    def read(self) -> bytes:
        """Everything, from now on."""
        self.wire.takes = 10**9
        self.wire.go_on()
        return self.wire.sent


@pytest.fixture
def limits():
    return HttpLimits(HttpBounds(connections=1_000, body_bytes=1_000, websocket_buffer_bytes=4_000_000))


def framed(text: str) -> bytes:
    data = text.encode()
    return b"\x81\x7f" + len(data).to_bytes(8, "big") + data


def test_a_page_that_many_do_not_read_is_there_once(limits):
    """Each had its own copy: a thousand slow viewers of a page of 4 MB took 4 GB."""
    viewers = [Viewer(limits) for _ in range(50)]
    tracemalloc.start()
    try:
        for viewer in viewers:
            viewer.socket.serverSend(PAGE)
            viewer.wire.go_on(3)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * len(PAGE.encode()) + 50 * 80_000, f"{held:,}"
    assert [viewer.read() for viewer in viewers] == [framed(PAGE)] * 50


def test_short_and_long_texts_arrive_in_their_order(limits):
    viewer = Viewer(limits)
    for text in ("a", PAGE, "b", "ö" * 3_000):
        viewer.socket.serverSend(text)
        viewer.wire.go_on(2)
    assert viewer.read() == b"\x81\x01a" + framed(PAGE) + b"\x81\x01b" + b"\x81\x7e\x17\x70" + "ö".encode() * 3_000


def test_who_never_reads_is_cut_when_too_much_waits_and_nothing_of_it_is_kept(limits):
    viewer = Viewer(limits)
    aborted = []
    viewer.wire.abortConnection = lambda: aborted.append(True)
    for _ in range(30):
        viewer.socket.serverSend(PAGE)
    assert aborted == [True], "once"
    assert limits.refused[TOO_SLOW] == 1
    assert viewer.counted._output.waiting_bytes <= 4_500_000


def test_a_connection_is_counted_while_it_lives(limits):
    viewer = Viewer(limits)
    assert limits.open == 1
    viewer.socket.connectionLost = lambda reason: None
    viewer.counted.connectionLost()
    assert limits.open == 0
