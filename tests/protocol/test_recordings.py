"""Recordings of a real 1.43 server and its clients, replayed against both of our sides.

Where we differ on purpose, `DELIBERATE` says so; ``docs/reference/wire-differences.md`` is its page for people.
"""

from __future__ import annotations

import pytest

from streams.replication.protocol.commands import (
    Command,
    Name,
    Ping,
    Position,
    RData,
    Replicate,
    format_line,
    parse_line,
)
from streams.replication.protocol.connection import ClientConnection, CloseReason, ServerConnection, State
from streams.replication.protocol.cursors import Cursors, Fact, MissingRange
from tests.protocol import recordings

#: Recording -> what 1.43 does there and we do not.
DELIBERATE = {
    "e15_blank_line": "1.43 closes for a blank line; we ignore it, as documented and as later versions do",
    "t2_one_ping_then_silence": "1.43 gives up after 25 s; we do after 15 s, as documented",
}
#: Recordings in which the server ends the connection because of the client's input, and our reason.
REFUSED = {
    "e01_unknown_command": CloseReason.PARSE_ERROR,
    "e03_client_sends_rdata": CloseReason.INVALID_COMMAND,
    "e04_client_sends_bad_rdata": CloseReason.PARSE_ERROR,
    "e07_user_sync_bad_state": CloseReason.PARSE_ERROR,
    "e08_user_sync_too_few": CloseReason.PARSE_ERROR,
    "e11_federation_ack_one_field": CloseReason.PARSE_ERROR,
    "e17_leading_space": CloseReason.PARSE_ERROR,
    "e30_crlf": CloseReason.PARSE_ERROR,
    "e32_invalid_utf8": CloseReason.INVALID_UTF8,
    "e35_line_16385": CloseReason.LINE_TOO_LONG,
    "e38_after_error_ignored": CloseReason.PARSE_ERROR,
}


def replay_to_server(name: str) -> tuple[ServerConnection, list[Command], bytes]:
    """Everything that the recorded client sent, into our server side."""
    server = ServerConnection("localhost:19110")
    server.connected(0.0)
    commands: list[Command] = []
    for step in recordings.steps(name):
        if step.who == "client":
            commands += server.receive(step.data, step.seconds)
    return server, commands, server.pop_output()


def server_lines(name: str) -> list[bytes]:
    return [step.data for step in recordings.steps(name) if step.who == "server"]


def free_text_cut(line: bytes) -> bytes:
    """What follows ``failed to parse line: `` is free text."""
    head, found, _ = line.partition(b"failed to parse line: ")
    return head + found


@pytest.mark.parametrize("name", recordings.names())
def test_server_takes_what_clients_sent(name):
    server, _, _ = replay_to_server(name)
    assert server.close_reason == REFUSED.get(name)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_server_refuses_with_the_recorded_error(name):
    _, _, output = replay_to_server(name)
    said = [line for line in server_lines(name) if line.startswith(b"ERROR")]
    ours = [line for line in output.splitlines(keepends=True) if line.startswith(b"ERROR")]
    assert [free_text_cut(line) for line in ours] == [free_text_cut(line) for line in said][: len(ours)]
    assert len(ours) == len(said)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_server_drops_everything_after_the_refusal(name):
    server, _, _ = replay_to_server(name)
    assert server.receive(b"REPLICATE\n", 1.0) == []
    assert server.pop_output() == b""


@pytest.mark.parametrize("name", sorted(set(recordings.names()) - REFUSED.keys()))
def test_client_lines_survive_parsing_and_formatting(name):
    sent = [step.data.rstrip(b"\n").decode() for step in recordings.steps(name) if step.who == "client"]
    commands = [parse_line(line) for line in sent if line.strip()]
    again = [format_line(command).decode().rstrip("\n") for command in commands]
    assert [line.rstrip(" ") for line in again] == [
        "REPLICATE" if line.startswith("REPLICATE") else line.rstrip(" ") for line in sent if line.strip()
    ]


@pytest.mark.parametrize("name", recordings.names())
def test_server_lines_are_written_byte_for_byte(name):
    lines = [line for line in server_lines(name) if not line.startswith(b"ERROR")]
    assert [format_line(parse_line(line[:-1].decode())) for line in lines] == lines


@pytest.mark.parametrize("name", recordings.names())
def test_client_takes_what_the_server_sent(name):
    client = ClientConnection("worker1", "localhost:19110")
    client.connected(0.0)
    lines = server_lines(name)
    heard = [command for line in lines for command in client.receive(line, 1.0)]
    assert len(heard) == len(lines)
    assert client.state is State.OPEN


def test_server_greets_as_recorded():
    server = ServerConnection("localhost:19110")
    server.connected(1795226126.422)
    assert server.pop_output().splitlines(keepends=True) == server_lines("w1_real_generic_worker")[:2]


def test_client_greets_as_the_real_worker_does():
    client = ClientConnection("worker1", "localhost:19110")
    client.connected(1795226126.422)
    sent = [step.data for step in recordings.steps("w1_real_generic_worker") if step.who == "client"]
    assert client.pop_output() == b"".join(sent[:3])


def test_a_client_that_never_pings_is_kept_for_a_minute():
    server = ServerConnection("localhost:19110")
    server.connected(0.0)
    for step in recordings.steps("t1_no_client_ping"):
        if step.who == "client":
            server.receive(step.data, step.seconds)
    while server.deadline < 62.0:
        server.tick(server.deadline)
    assert server.state is State.OPEN


def test_a_client_that_pinged_once_is_given_up_after_fifteen_seconds():
    server, _, _ = replay_to_server("t2_one_ping_then_silence")
    while server.state is State.OPEN:
        now = server.deadline
        server.tick(now)
    assert server.close_reason is CloseReason.PING_TIMEOUT
    assert 15.0 <= now < 15.1
    assert server.pop_output().endswith(b"ERROR ping timeout\n")


def test_the_real_worker_is_never_given_up():
    server = ServerConnection("localhost:19110")
    server.connected(0.0)
    sent = [step.data for step in recordings.steps("w1_real_generic_worker") if step.who == "client"]
    pings = [float(line.split()[1]) / 1000 for line in sent if line.startswith(b"PING")]
    for seconds in (ping - pings[0] for ping in pings):
        while server.deadline < seconds:
            server.tick(server.deadline)
        server.receive(b"PING 1\n", seconds)
    assert server.state is State.OPEN


def test_a_follower_of_the_recording_misses_nothing():
    """Tokens without rows (13): POSITION 281 282 moves on, and 284, 285 are a gap that means nothing."""
    cursors = Cursors(streams=["events"])
    events = [cursors.apply(parse_line(line[:-1].decode())) for line in server_lines("13_position_without_rows")[2:]]
    assert [event.token for event in events if isinstance(event, Fact)] == [281, 283, 286]
    assert not [event for event in events if isinstance(event, MissingRange)]
    assert cursors.positions() == {"events": {"master": 286}}


def test_the_longest_recorded_batch_is_one_fact():
    cursors = Cursors(streams=["events"], can_reset=lambda name: True)
    cursors.begin_connection()
    facts = []
    for line in server_lines("09_remote_join_backfill_A"):
        command = parse_line(line[:-1].decode())
        if isinstance(command, Position | RData):
            facts.append(cursors.apply(command))
    assert max(len(fact.rows) for fact in facts if isinstance(fact, Fact)) == 133


def test_ping_variants_are_all_accepted():
    _, commands, _ = replay_to_server("e20_ping_variants")
    assert [c.text for c in commands if isinstance(c, Ping)][-4:] == ["", "", "not a number \u2603", " two  spaces "]


def test_arguments_of_replicate_are_ignored():
    _, commands, _ = replay_to_server("e22_replicate_with_args")
    assert [command for command in commands if not isinstance(command, Name | Ping)] == [Replicate(), Replicate()]


def test_every_deliberate_difference_has_a_recording():
    assert DELIBERATE.keys() <= set(recordings.names())
