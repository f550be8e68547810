"""What waits for a slow client: sent whole and in order, there once for all, and gone with the connection."""

from __future__ import annotations

import tracemalloc

import daphne.server  # noqa: F401 - first: it installs the reactor
import pytest
from autobahn.twisted.websocket import WebSocketServerFactory
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.abstract import FileDescriptor
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionLost
from twisted.python.failure import Failure

from streams.replication.transport import websocket_output
from streams.replication.transport.websocket_output import PIECE_BYTES, PreparedTexts, SharedOutput
from tests.support.effort import examples


class NoReactor:
    """Takes part in nothing."""

    def addWriter(self, _): ...
    def removeWriter(self, _): ...
    def addReader(self, _): ...
    def removeReader(self, _): ...


class Wire(FileDescriptor):
    """Twisted's own buffers over a client that takes so much at a time."""

    def __init__(self, takes: int = 10**9) -> None:
        super().__init__(NoReactor())
        self.connected = 1
        self.takes = takes
        self.sent = b""
        self.is_closed = False

    def writeSomeData(self, data):
        taken = bytes(data[: self.takes])
        self.sent += taken
        return len(taken)

    def _postLoseConnection(self):
        self.is_closed = True

    def getPeer(self):
        return IPv4Address("TCP", "127.0.0.1", 4711)

    getHost = getPeer

    def go_on(self, rounds: int = 10_000) -> None:
        for _ in range(rounds):
            if not (self._tempDataLen or self.dataBuffer):
                break
            self.doWrite()


@settings(max_examples=examples(60))
@given(st.data())
def test_everything_arrives_whole_and_in_order_however_slow_the_client_is(data):
    wire = Wire(data.draw(st.integers(1, 9)))
    output, written = SharedOutput(wire), b""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(websocket_output, "PIECE_BYTES", data.draw(st.integers(1, 20)))
        for text in data.draw(st.lists(st.binary(min_size=1, max_size=60), max_size=8)):
            output.write(text)
            written += text
            wire.go_on(data.draw(st.integers(0, 9)))
        wire.go_on()
    assert (wire.sent, output.waiting_bytes) == (written, 0)


def test_a_page_for_many_slow_clients_is_there_once():
    page, wires = bytes(400_000), [Wire(takes=0) for _ in range(100)]
    tracemalloc.start()
    try:
        outputs = [SharedOutput(wire) for wire in wires]
        for output, wire in zip(outputs, wires, strict=True):
            output.write(page)
            wire.go_on(3)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < len(wires) * (2 * PIECE_BYTES + 5_000)
    assert all(output.waiting_bytes > 300_000 for output in outputs)


def test_a_close_waits_until_everything_is_sent():
    wire = Wire()
    output = SharedOutput(wire)
    output.write(b"x" * (3 * PIECE_BYTES))
    output.write(b"close")
    wire.loseConnection()
    wire.go_on()
    wire.doWrite()
    assert wire.sent.endswith(b"xclose") and len(wire.sent) == 3 * PIECE_BYTES + 5
    assert wire.is_closed


def test_nothing_is_kept_of_a_connection_that_is_lost():
    wire = Wire(takes=10)
    output = SharedOutput(wire)
    output.write(b"x" * 100_000)
    wire.connectionLost(Failure(ConnectionLost()))
    assert output.waiting_bytes == 0
    output.write(b"y")
    assert output.waiting_bytes == 0, "nor of what is written to it afterwards"


def test_the_producer_that_was_there_before_is_replaced():
    class Http:
        def pauseProducing(self): ...
        def resumeProducing(self): ...
        def stopProducing(self): ...

    wire = Wire()
    wire.registerProducer(Http(), True)
    SharedOutput(wire).write(b"hello")
    wire.go_on()
    assert wire.sent == b"hello"


def test_a_text_for_many_is_encoded_once_and_only_the_last_are_kept():
    texts, prepare = PreparedTexts(kept=2), WebSocketServerFactory().prepareMessage
    first = texts.of("ä" * 200, prepare)
    assert texts.of("ä" * 200, prepare) is first
    assert first.payloadHybi == b"\x81\x7e\x01\x90" + "ä".encode() * 200
    texts.of("b", prepare)
    texts.of("c", prepare)
    assert texts.of("ä" * 200, prepare) is not first


def test_bytes_that_many_are_sent_are_framed_once_too():
    texts, prepare = PreparedTexts(), WebSocketServerFactory().prepareMessage
    first = texts.of(b"\xff" * 200, prepare)
    assert texts.of(b"\xff" * 200, prepare) is first
    assert first.payloadHybi == b"\x82\x7e\x00\xc8" + b"\xff" * 200
