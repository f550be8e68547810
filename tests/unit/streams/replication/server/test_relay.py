"""Telling everybody: what goes to whom here, in what pieces to other servers, and what is dropped."""

from __future__ import annotations

import base64

import pytest

from streams.conf import StreamSettings
from streams.replication.common.command_hooks import subscribe
from streams.replication.protocol.commands import LockReleased, RemoteServerUp, format_line
from streams.replication.server.broadcaster import Broadcaster
from streams.replication.server.relay import PART_BYTES, WAITING_LIMIT_BYTES, Part, Relay, parts_of


class FakePeer:
    """What the relay and the broadcaster use of a client."""

    def __init__(self, *, knows_later_commands: bool = False) -> None:
        self.knows_later_commands = knows_later_commands
        self.heard = b""
        self.label, self.is_open = "other", True

    def write_shared(self, data: bytes, lines: int, now: float) -> None:
        self.heard += data

    def cut_when_slow(self, limit_bytes: int, stall_limit_seconds: float, now: float) -> bool:
        return False


@pytest.fixture
def broadcaster():
    made = Broadcaster(StreamSettings())
    made.peers = {name: FakePeer() for name in ("sender", "other")}
    return made


@pytest.fixture
def relay(broadcaster):
    return Relay(broadcaster)


def heard_elsewhere(relay, data: bytes) -> None:
    relay._receive([Part.parse(payload) for payload in parts_of("elsewhere", data)])


UP = RemoteServerUp("remote.example")
LOCK = LockReleased("w", "lock", "key")


def test_all_but_the_sender_hear_it(relay, broadcaster):
    relay.pass_on([UP], broadcaster.peers["sender"])
    assert broadcaster.peers["other"].heard == format_line(UP)
    assert broadcaster.peers["sender"].heard == b""


def test_who_said_a_later_command_may_be_told_one(relay, broadcaster):
    sender, other = broadcaster.peers.values()
    relay.pass_on([LOCK], sender)
    assert other.heard == b""
    relay.pass_on([LOCK], other)
    assert sender.heard == format_line(LOCK)


def test_other_servers_get_it_once_however_often_it_is_said_in_a_moment(relay, broadcaster):
    for _ in range(3):
        relay.pass_on([UP], broadcaster.peers["sender"])
    assert relay._collect() == format_line(UP)
    assert relay._collect() is None


def test_what_waits_for_the_database_is_bounded_and_counted(relay, broadcaster):
    long = [RemoteServerUp(f"{number}{'a' * 16_000}") for number in range(100)]
    relay.pass_on(long, broadcaster.peers["sender"])
    assert len(relay._collect()) <= WAITING_LIMIT_BYTES
    assert relay.dropped["REMOTE_SERVER_UP"] > 50


@pytest.mark.parametrize("size", [0, 1, 5_249, 5_250, 5_251, 50_000])
def test_pieces_fit_a_notification_and_make_the_whole(size):
    data = bytes(range(256)) * (size // 256) + b"\0" * (size % 256)
    payloads = parts_of("server", data)
    parts = [Part.parse(payload) for payload in payloads]
    assert all(len(payload) < 8_000 for payload in payloads)
    assert base64.b64decode("".join(part.text for part in parts)) == data
    assert [part.number for part in parts] == list(range(len(parts)))
    assert all(len(part.text) <= PART_BYTES for part in parts)


def test_what_other_servers_say_goes_to_all_clients_and_no_further(relay, broadcaster):
    heard_elsewhere(relay, format_line(UP) + format_line(RemoteServerUp("a" * 16_000)))
    assert all(peer.heard.startswith(format_line(UP)) for peer in broadcaster.peers.values())
    assert all(len(peer.heard) > 16_000 for peer in broadcaster.peers.values())
    assert relay._collect() is None


def test_its_own_words_are_not_heard_again(relay, broadcaster):
    relay._receive([Part.parse(payload) for payload in parts_of(relay._key, format_line(UP))])
    assert broadcaster.peers["other"].heard == b""


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


def test_handlers_of_this_process_hear_both(relay, broadcaster):
    heard = []
    stop = subscribe(RemoteServerUp, heard.append)
    relay.pass_on([UP], broadcaster.peers["sender"])
    heard_elsewhere(relay, b"REMOTE_SERVER_UP far\n")
    stop()
    relay.pass_on([UP], broadcaster.peers["sender"])
    assert heard == [UP, RemoteServerUp("far")]
