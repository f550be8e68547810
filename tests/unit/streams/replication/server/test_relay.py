"""Telling everybody: what goes to whom here, in what pieces to other servers, and what is dropped."""

from __future__ import annotations

import base64
import math
import time
import uuid
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import pytest

from streams.conf import StreamSettings
from streams.replication.common.command_hooks import subscribe
from streams.replication.protocol.commands import LockReleased, NewActiveTask, RemoteServerUp, format_line
from streams.replication.server.broadcaster import PIECE_BYTES, RELAY_BYTES, Broadcaster, RelayedLine
from streams.replication.server.relay import (
    ALL_RELAYED_A_SECOND,
    LONGEST_PAUSE_SECONDS,
    PART_BYTES,
    PAUSES,
    RELAYED_BYTES,
    WAITING_LIMIT_BYTES,
    Part,
    Relay,
    parts_of,
)
from tests.support.async_waiting import wait_for


class FakePeer:
    """What the relay and the broadcaster use of a client."""

    def __init__(self, *, knows_later_commands: bool = False) -> None:
        self.knows_later_commands = knows_later_commands
        self.buffered_bytes = self.unsent_bytes = 0
        self.pieces: list[tuple[bytes, int]] = []
        self.label, self.is_open, self.key = "other", True, uuid.uuid4().hex
        self.connected_at = 0.0

    @property
    def heard(self) -> bytes:
        return b"".join(piece for piece, _ in self.pieces)

    def write_shared(self, data: bytes, lines: int, now: float) -> None:
        if data:
            self.pieces.append((data, lines))

    def cut_when_slow(self, limit_bytes: int, stall_limit_seconds: float, now: float, lines: object) -> bool:
        return False


@pytest.fixture
def broadcaster():
    made = Broadcaster(StreamSettings(writer="master"))
    made.clients = {name: FakePeer() for name in ("sender", "other")}
    return made


@pytest.fixture
def relay(broadcaster):
    return Relay(broadcaster)


def heard_elsewhere(relay, data: bytes) -> None:
    relay._receive([Part.parse(payload) for payload in parts_of("elsewhere", data)])


UP = RemoteServerUp("remote.example")
LOCK = LockReleased("w", "lock", "key")


def test_all_but_the_sender_hear_it(relay, broadcaster):
    relay.pass_on([UP], broadcaster.clients["sender"])
    assert broadcaster.clients["other"].heard == format_line(UP)
    assert broadcaster.clients["sender"].heard == b""


async def test_who_said_a_later_command_may_be_told_one(relay, broadcaster):
    sender, other = broadcaster.clients.values()
    relay.pass_on([LOCK], sender)
    assert other.heard == b""
    relay.pass_on([LOCK], other)
    await wait_for(lambda: sender.heard == format_line(LOCK))


async def test_what_comes_within_a_moment_goes_out_together_and_to_no_sender(relay, broadcaster):
    """A hundred clients with a line each were a hundred writes to each of a thousand followers."""
    crowd = [FakePeer() for _ in range(100)]
    broadcaster.clients |= {str(number): peer for number, peer in enumerate(crowd)}
    lines = [f"REMOTE_SERVER_UP {number}\n".encode() for number in range(100)]
    for number, peer in enumerate(crowd):
        relay.pass_on([RemoteServerUp(str(number))], peer)
    other = broadcaster.clients["other"]
    await wait_for(lambda: other.heard == b"".join(lines))
    assert len(other.pieces) < 50
    for number, peer in enumerate(crowd):
        assert peer.heard == b"".join(lines[:number] + lines[number + 1 :])


@pytest.mark.parametrize(
    "sizes", [[100, 2_000] * 100, [PIECE_BYTES], [PIECE_BYTES + 1], [9, 3 * PIECE_BYTES, 9, PIECE_BYTES, 9]]
)
def test_much_is_written_in_pieces_of_whole_lines_that_all_clients_share(broadcaster, sizes):
    """A transport copies the piece that it gets, and TLS encrypts it: one of 8 MB was 8 MB for each client that read nothing."""
    lines = [RelayedLine("ERROR", b"x" * (size - 1) + b"\n", None) for size in sizes]
    broadcaster.relay(lines)
    sender, other = broadcaster.clients.values()
    assert other.heard == b"".join(line.data for line in lines)
    for (piece, number), (shared, _) in zip(other.pieces, sender.pieces, strict=True):
        assert piece is shared
        assert piece.endswith(b"\n")
        assert piece.count(b"\n") == number
        assert len(piece) <= PIECE_BYTES or number == 1


def test_what_all_say_at_once_is_looked_at_once(broadcaster):
    """For each sender all lines were gone through: half a second for a line of each of 2,000."""
    asked = Counter()

    class Line:
        word = "REMOTE_SERVER_UP"

        def __init__(self, number: int, sender: FakePeer) -> None:
            self.number, self._sender = number, sender

        @property
        def data(self) -> bytes:
            asked["data"] += 1
            return f"{self.number}\n".encode()

        @property
        def sender(self) -> FakePeer:
            asked["sender"] += 1
            return self._sender

    crowd = broadcaster.clients = {str(number): FakePeer() for number in range(50)}
    peers = [*crowd.values(), *crowd.values(), broadcaster.clients["7"], broadcaster.clients["7"]]
    lines = [Line(number, peer) for number, peer in enumerate(peers)]
    broadcaster.relay(lines)
    assert max(asked.values()) <= 3 * len(lines)
    for peer in crowd.values():
        assert peer.heard.split() == [b"%d" % number for number, sender in enumerate(peers) if sender is not peer]
        assert sum(number for _, number in peer.pieces) == peer.heard.count(b"\n")
    assert broadcaster.counts.sent == {"REMOTE_SERVER_UP other": len(lines) * 49}


async def test_a_write_that_takes_long_is_followed_by_a_longer_pause(relay, broadcaster, monkeypatch):
    """With five thousand followers a write takes a while, and what clients say to others may not take all of the time."""
    writes = []

    def write(lines, wants=None) -> None:
        begun = time.monotonic()
        while time.monotonic() < begun + 0.02:
            pass
        writes.append((begun, time.monotonic()))

    monkeypatch.setattr(broadcaster, "relay", write)

    def say_more() -> bool:
        relay.pass_on([UP], broadcaster.clients["sender"])
        return len(writes) > 5

    await wait_for(say_more)
    for (begun, ended), (next_begun, _) in pairwise(writes):
        assert next_begun - ended > min((PAUSES - 1) * (ended - begun), LONGEST_PAUSE_SECONDS / 2)


def test_a_process_that_stood_still_during_a_write_pauses_for_a_second(relay, broadcaster, monkeypatch):
    monkeypatch.setattr(broadcaster, "relay", lambda lines, wants: time.sleep(0.3))
    relay.pass_on([UP], broadcaster.clients["sender"])
    assert relay._next_write <= time.monotonic() + LONGEST_PAUSE_SECONDS


@pytest.mark.parametrize(
    "command", [RemoteServerUp("a" * 256), LockReleased("w", "l", "k" * 1_025), NewActiveTask("t" * 256)]
)
async def test_what_is_longer_than_any_name_is_told_to_nobody_and_counted(relay, broadcaster, command):
    """A name of 16 kB went to all clients, whose lines it filled."""
    sender, other = broadcaster.clients.values()
    other.knows_later_commands = True
    relay.pass_on([command, UP], sender)
    heard_elsewhere(relay, f"REMOTE_SERVER_UP {'a' * 256}\nREMOTE_SERVER_UP far\n".encode())
    await wait_for(lambda: other.heard == format_line(UP) + b"REMOTE_SERVER_UP far\n")
    assert relay.dropped == Counter([command.WORD, "REMOTE_SERVER_UP"])


async def test_what_all_other_servers_say_has_a_bound(relay, broadcaster, monkeypatch):
    """A client at each of fifty servers could tell the followers of one server fifty times as much."""
    monkeypatch.setattr("streams.replication.server.relay.OTHERS_RELAYED_A_SECOND", 10)
    begun = time.monotonic()
    for server in range(30):
        relay._receive([Part.parse(payload) for payload in parts_of(f"server{server}", b"REMOTE_SERVER_UP a\n" * 5)])
    other = broadcaster.clients["other"]
    await wait_for(lambda: relay._timer is None)
    assert 0 < other.heard.count(b"\n") <= 10 * (time.monotonic() - begun + 1)
    assert relay.dropped["REMOTE_SERVER_UP"] >= 150 - 10 * (time.monotonic() - begun + 1)


@pytest.mark.parametrize("number", [2, 10, 100])
def test_who_says_little_is_heard_beside_clients_that_flood(relay, broadcaster, monkeypatch, number):
    """Two clients used up what all together may say, each second before anybody else."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("streams.replication.server.relay.time", SimpleNamespace(monotonic=lambda: clock.now))
    sent: list = []
    monkeypatch.setattr(relay, "_send_to_clients", sent.append)
    crowd, honest = [FakePeer() for _ in range(number)], FakePeer()
    heard, most = 0, 0
    for _ in range(20):
        sent.clear()
        for _ in range(10):
            clock.now += 0.1
            for one in crowd:
                relay.pass_on([RemoteServerUp("a")] * 1_000, one)
        relay.pass_on([UP], honest)
        heard += any(line.sender is honest for lines in sent for line in lines)
        most = max(most, sum(map(len, sent)))
    assert heard >= 18, "in the first second nobody knows how many flood"
    assert most <= 2 * ALL_RELAYED_A_SECOND


@pytest.mark.parametrize("number", [2, 10, 50])
@pytest.mark.parametrize("lasts", [0.3, 1.0])
@pytest.mark.parametrize("says_at", [0, 11, 19])
def test_who_says_little_is_heard_beside_clients_that_flood_from_new_connections(
    relay, broadcaster, monkeypatch, number, lasts, says_at
):
    """Each new connection got a share of its own, beside those of the second before."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("streams.replication.server.relay.time", SimpleNamespace(monotonic=lambda: clock.now))
    sent: list = []
    monkeypatch.setattr(relay, "_send_to_clients", sent.extend)
    crowd, honest, heard = [FakePeer() for _ in range(number)], FakePeer(), 0
    for tick in range(25 * 20):
        clock.now = 100.0 + tick / 20
        for place, client in enumerate(crowd):
            if clock.now >= client.connected_at + lasts * (1 + place / number):
                client.key, client.connected_at = uuid.uuid4().hex, clock.now
            relay.pass_on([RemoteServerUp("a")] * 200, client)
        if tick % 20 == says_at:
            relay.pass_on([UP], honest)
            heard += sent[-1].sender is honest if sent else 0
    assert heard >= 23, "in the first second nobody knows how many flood"


@pytest.mark.parametrize("number", [120, 400, 1_500])
def test_a_long_command_is_heard_beside_many_clients_that_say_little(relay, broadcaster, monkeypatch, number):
    """The share of each was less than the command, though all together said a fraction of what they may."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("streams.replication.server.relay.time", SimpleNamespace(monotonic=lambda: clock.now))
    sent: list = []
    monkeypatch.setattr(relay, "_send_to_clients", sent.extend)
    crowd, honest = [FakePeer() for _ in range(number)], FakePeer()
    for _ in range(20):
        clock.now += 1.0
        for one in crowd:
            relay.pass_on([RemoteServerUp("a")], one)
        relay.pass_on([RemoteServerUp("a" * 250), LockReleased("w", "l", "k" * 900)], honest)
    assert sum(line.sender is honest for line in sent) >= 2 * 18
    assert len(sent) >= 18 * (number + 2)


@pytest.mark.parametrize("number", [200, 1_000])
def test_a_long_command_is_heard_beside_many_clients_that_want_more_than_their_share(
    relay, broadcaster, monkeypatch, number
):
    """Beside a thousand clients with three commands a second, no LOCK_RELEASED of 240 bytes was ever heard."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("streams.replication.server.relay.time", SimpleNamespace(monotonic=lambda: clock.now))
    sent: list = []
    monkeypatch.setattr(relay, "_send_to_clients", sent.extend)
    crowd, honest = [FakePeer() for _ in range(number)], FakePeer()
    heard, most, short = 0, 0, 0
    for _ in range(10):
        clock.now += 1.01
        sent.clear()
        for place, one in enumerate(crowd):
            relay.pass_on([RemoteServerUp("a")] * (3_000 // number), one)
            if place == number // 10:
                relay.pass_on([LockReleased("w", "lock", "k" * 900)] * 2, honest)
        heard += sum(line.sender is honest for line in sent)
        short = len({id(line.sender) for line in sent} - {id(honest)})
        most = max(most, sum(math.ceil(len(line.data) / RELAYED_BYTES) for line in sent))
    assert 8 <= heard <= 12, "one a second"
    assert short == number, "who says little is heard as before"
    assert most <= ALL_RELAYED_A_SECOND


def test_a_server_whose_clients_say_little_is_heard_beside_servers_whose_clients_flood(relay, monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("streams.replication.server.relay.time", SimpleNamespace(monotonic=lambda: clock.now))
    sent: list = []
    monkeypatch.setattr(relay, "_send_to_clients", sent.append)

    def receive(server: str, data: bytes) -> None:
        relay._receive([Part.parse(payload) for payload in parts_of(server, data)])

    heard = 0
    for _ in range(20):
        sent.clear()
        for _ in range(10):
            clock.now += 0.1
            for server in ("north", "south"):
                receive(server, b"REMOTE_SERVER_UP a\n" * 2_000)
        receive("west", format_line(UP))
        heard += any(line.data == format_line(UP) for lines in sent for line in lines)
    assert heard >= 18


async def test_other_servers_get_it_once_however_often_it_is_said_in_a_moment(relay, broadcaster):
    for _ in range(3):
        relay.pass_on([UP], broadcaster.clients["sender"])
    assert relay._collect() == format_line(UP)
    assert relay._collect() is None


def test_what_waits_for_the_database_is_bounded_and_counted(relay, broadcaster, monkeypatch):
    for name in ("RELAYED_A_SECOND", "ALL_RELAYED_A_SECOND"):
        monkeypatch.setattr(f"streams.replication.server.relay.{name}", 10**6)
    long = [RemoteServerUp(f"{number}{'a' * 240}") for number in range(2_000)]
    relay.pass_on(long, broadcaster.clients["sender"])
    assert len(relay._collect()) <= WAITING_LIMIT_BYTES
    assert relay.dropped["REMOTE_SERVER_UP"] > 500


@pytest.mark.parametrize("size", [0, 1, 5_249, 5_250, 5_251, 50_000])
def test_pieces_fit_a_notification_and_make_the_whole(size):
    data = bytes(range(256)) * (size // 256) + b"\0" * (size % 256)
    payloads = parts_of("server", data)
    parts = [Part.parse(payload) for payload in payloads]
    assert all(len(payload) < 8_000 for payload in payloads)
    assert base64.b64decode("".join(part.text for part in parts)) == data
    assert [part.number for part in parts] == list(range(len(parts)))
    assert all(len(part.text) <= PART_BYTES for part in parts)


async def test_a_client_for_which_much_waits_is_left_out_and_counted(relay, broadcaster):
    other = broadcaster.clients["other"]
    other.unsent_bytes = RELAY_BYTES + 1
    relay.pass_on([UP], broadcaster.clients["sender"])
    heard_elsewhere(relay, format_line(UP))
    relay._write_due()
    assert (other.heard, relay.dropped) == (b"", {UP.WORD: 2})


async def test_lines_of_a_whole_second_at_once_are_left_out_for_who_does_not_take_them(relay, broadcaster):
    class Slow(FakePeer):
        def write_shared(self, data: bytes, lines: int, now: float) -> None:
            super().write_shared(data, lines, now)
            self.unsent_bytes += len(data)

    slow = broadcaster.clients["slow"] = Slow()
    relay.pass_on([RemoteServerUp(f"{number:03}{'a' * 40}") for number in range(1_000)], broadcaster.clients["sender"])
    quick = broadcaster.clients["other"]
    assert len(quick.heard) > 3 * RELAY_BYTES
    assert RELAY_BYTES < len(slow.heard) < 2.1 * RELAY_BYTES and quick.heard.startswith(slow.heard)
    assert relay.dropped == {UP.WORD: quick.heard.count(b"\n") - slow.heard.count(b"\n")}


def test_what_other_servers_say_goes_to_all_clients_and_no_further(relay, broadcaster):
    said = format_line(UP) + b"".join(format_line(RemoteServerUp(f"{number}{'a' * 240}")) for number in range(100))
    heard_elsewhere(relay, said)
    assert all(peer.heard == said for peer in broadcaster.clients.values())
    assert relay._collect() is None


def test_its_own_words_are_not_heard_again(relay, broadcaster):
    relay._receive([Part.parse(payload) for payload in parts_of(relay._key, format_line(UP))])
    assert broadcaster.clients["other"].heard == b""


@pytest.mark.parametrize(
    "payload",
    ["", "nonsense", "a b c d e", "a b 1 x text", "a b -1 1 text", "a b 1 1 text", f"a b 0 {'9' * 5000} text"],
)
def test_payloads_that_are_none_are_passed_over(payload):
    assert Part.parse(payload) is None


@pytest.mark.parametrize("text", ["!!!!", base64.b64encode(b"BOGUS\n").decode(), base64.b64encode(b"\xff\n").decode()])
def test_messages_that_cannot_be_read_are_counted(relay, text):
    relay._receive([Part("elsewhere", "m", 0, 1, text)])
    assert relay.dropped == {"relay": 1}


def test_messages_without_an_end_do_not_pile_up(relay):
    for number in range(200):
        relay._receive([Part("elsewhere", str(number), 0, 2, "a" * PART_BYTES)])
    assert (
        sum(len(text) for parts in relay._unfinished.values() for text in parts) <= 2 * WAITING_LIMIT_BYTES + PART_BYTES
    )
    assert relay.dropped["relay"] >= 1


def test_a_new_connection_forgets_what_was_under_way(relay, broadcaster):
    first, *_ = (Part.parse(payload) for payload in parts_of("elsewhere", b"x" * 20_000))
    relay._receive([first])
    relay._receive([])
    assert not relay._unfinished


async def test_handlers_of_this_process_hear_both(relay, broadcaster):
    heard = []
    stop = subscribe(RemoteServerUp, heard.append)
    relay.pass_on([UP], broadcaster.clients["sender"])
    heard_elsewhere(relay, b"REMOTE_SERVER_UP far\n")
    stop()
    relay.pass_on([UP], broadcaster.clients["sender"])
    assert heard == [UP, RemoteServerUp("far")]
