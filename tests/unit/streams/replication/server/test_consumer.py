"""The consumer on a made-up connection: life cycle, and what reaches whom. No socket, no database."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from structlog.contextvars import get_contextvars

from streams.conf import StreamSettings
from streams.replication.protocol.connection import CloseReason
from streams.replication.server.broadcast_reader import Piece
from streams.replication.server.broadcaster import (
    ANSWER_AGAIN_SECONDS,
    ANSWER_OTHERS_SECONDS,
    OTHERS_AGAIN_SECONDS,
    Broadcaster,
)
from streams.replication.server.consumer import SLICE_BYTES, ReplicationConsumer
from streams.replication.server.relay import GAP_SECONDS
from streams.replication.server.worker_reports import WorkerReports
from tests.support.async_waiting import wait_for
from tests.support.tcp_scope import TcpCommunicator


@pytest.fixture
async def broadcaster():
    """One that was not started: it knows that no stream has writers, and reads nothing."""
    made = Broadcaster(StreamSettings(server_name="example.org", writer="master"))
    made._announcer.start({})
    yield made
    for peer in list(made.clients.values()):
        peer.lost()


@pytest.fixture
async def connect(broadcaster):
    """Connect clients; all are gone at the end."""
    clients: list[TcpCommunicator] = []

    async def make() -> TcpCommunicator:
        client = TcpCommunicator(ReplicationConsumer.as_asgi(broadcaster=broadcaster))
        await client.connect()
        clients.append(client)
        return client

    yield make
    for client in clients:
        await client.disconnect()
    assert not broadcaster.clients


async def test_a_client_is_greeted_on_connect(connect):
    client = await connect()
    assert client.transport.sent.startswith(b"SERVER example.org\nPING ")


async def test_replicate_is_answered_with_every_stream(connect):
    client = await connect()
    await client.send(b"NAME x\nREPLI")
    await client.send(b"CATE\n")
    sent = await client.receive_until(b"POSITION caches master 1 1\n")
    assert sent.index(b"POSITION events") < sent.index(b"POSITION caches")


async def test_all_others_get_the_answer_once_for_all_who_asked(connect):
    first, second, third = await connect(), await connect(), await connect()
    for client in (second, third):
        await client.send(b"REPLICATE\n")
    await first.receive_until(b"POSITION caches")
    assert first.transport.sent.count(b"POSITION caches") == 1


async def test_who_asked_before_gets_later_answers_too(connect):
    first, second = await connect(), await connect()
    await first.send(b"REPLICATE\n")
    await first.receive_until(b"POSITION caches")
    await second.send(b"REPLICATE\n")
    await wait_for(lambda: first.transport.sent.count(b"POSITION caches") == 2)


async def test_clients_that_come_ask_and_go_are_no_reason_to_tell_others_again_and_again(connect, broadcaster):
    """Each was new, so 300 followers got all positions twenty times a second."""
    onlooker, begun = await connect(), time.monotonic()
    for number in range(1, 13):
        guest = await connect()
        await guest.send(b"REPLICATE\n")
        await guest.receive_until(b"POSITION caches")
        await guest.disconnect()
        await wait_for(lambda number=number: broadcaster.commands["REPLICATE"] == number)
        await asyncio.sleep(ANSWER_OTHERS_SECONDS + 0.02)
    assert onlooker.transport.sent.count(b"POSITION caches") <= 1 + (time.monotonic() - begun) / OTHERS_AGAIN_SECONDS
    await wait_for(lambda: onlooker.transport.sent.count(b"POSITION caches") >= 2)


async def test_positions_that_others_asked_for_do_not_wait_before_the_facts_of_a_slow_client(connect, broadcaster):
    """One that asked again and again had a follower on a slow line get all positions each second, and cut for them."""
    slow, quick, asking = [await connect() for _ in range(3)]
    slow.transport.stuck = True
    next(iter(broadcaster.clients.values())).write_shared(b"RDATA caches x\n" * 5_000, 5_000, 0.0)
    await asking.send(b"REPLICATE\n")
    await quick.receive_until(b"POSITION caches")
    assert b"POSITION" not in slow.transport.sent
    slow.transport.stuck = False
    slow.transport.take(len(slow.transport.waiting))
    await asking.send(b"REPLICATE\n")
    await slow.receive_until(b"POSITION caches")


async def test_remote_server_up_is_relayed_unchanged_but_not_back(connect):
    sender, other = await connect(), await connect()
    await sender.send(b"REMOTE_SERVER_UP \n")
    await other.receive_until(b"REMOTE_SERVER_UP \n")
    assert b"REMOTE" not in sender.transport.sent


async def test_a_flood_is_relayed_in_few_pieces(connect):
    """A write per line and client would keep all of them waiting for seconds."""
    sender, other = await connect(), await connect()
    writes: list[bytes] = []
    other.transport.write = lambda data, lines=None: writes.append(data)
    flood = [b"REMOTE_SERVER_UP %d\n" % number for number in range(1_000)]
    begun = time.monotonic()
    await sender.send(b"".join(flood))
    await wait_for(lambda: sum(map(len, writes)) == sum(map(len, flood)))
    assert b"".join(writes) == b"".join(flood)
    assert len(writes) <= 2 + (time.monotonic() - begun) / GAP_SECONDS


async def test_what_one_client_tells_all_others_has_a_bound(connect, broadcaster, monkeypatch):
    """It costs as much as there are clients, and cuts those that cannot take as much."""
    monkeypatch.setattr("streams.replication.server.relay.RELAYED_A_SECOND", 10)
    sender, other = await connect(), await connect()
    begun = time.monotonic()
    await sender.send(b"".join(b"REMOTE_SERVER_UP %d\n" % number for number in range(500)) + b"NAME done\n")
    await wait_for(lambda: "done" in {peer.name for peer in broadcaster.clients.values()})
    assert other.transport.sent.count(b"REMOTE_SERVER_UP") <= 10 * (time.monotonic() - begun + 2)


async def test_what_one_client_tells_all_others_has_a_bound_in_bytes(connect, broadcaster):
    """Lines of 16 kB went out with seven megabytes a second, and cut every client on a slower line."""
    sender, other = await connect(), await connect()
    begun = time.monotonic()
    await sender.send((b"REMOTE_SERVER_UP " + b"a" * 250 + b"\n") * 2_000 + b"REMOTE_SERVER_UP b\nNAME done\n")
    await wait_for(lambda: "done" in {peer.name for peer in broadcaster.clients.values()})
    sent = other.transport.sent.count(b"a")
    assert 0 < sent <= 64_000 * (time.monotonic() - begun + 1)


async def test_who_asks_again_and_again_gets_one_more_answer(connect, broadcaster):
    """Ten bytes asked for kilobytes, as often as they came."""
    hostile, begun = await connect(), time.monotonic()
    await hostile.send(b"REPLICATE\n" * 2_000 + b"NAME done\n")
    await wait_for(lambda: "done" in {peer.name for peer in broadcaster.clients.values()})
    await wait_for(lambda: hostile.transport.sent.count(b"POSITION caches") >= 2)
    seconds = time.monotonic() - begun
    assert hostile.transport.sent.count(b"POSITION caches") <= 3 + seconds / ANSWER_AGAIN_SECONDS


async def test_an_answer_that_is_not_taken_is_not_followed_by_another(connect, broadcaster):
    deaf, other = await connect(), await connect()
    deaf.transport.stuck = True
    await deaf.send(b"REPLICATE\n")
    await wait_for(lambda: broadcaster.commands["REPLICATE"] == 1)
    await wait_for(lambda: broadcaster._answer_others is None)
    deaf.transport.waiting += b"x" * 5_000
    for number in range(2, 8):
        await deaf.send(b"REPLICATE\n")
        await wait_for(lambda number=number: broadcaster.commands["REPLICATE"] == number)
        await asyncio.sleep(ANSWER_AGAIN_SECONDS)  # an absence: an answer would come in that time
    assert bytes(deaf.transport.waiting).count(b"POSITION caches") == 1
    deaf.transport.take(10**6)
    await wait_for(lambda: deaf.transport.sent.count(b"POSITION caches") == 2)
    await other.send(b"REPLICATE\n")
    await other.receive_until(b"POSITION caches")


async def test_a_flood_is_no_reason_for_others_to_wait(connect, broadcaster):
    hostile, other = await connect(), await connect()
    await hostile.send(b"PING 1\n" * 30_000)
    await other.send(b"REPLICATE\n")
    await other.receive_until(b"POSITION caches")
    assert broadcaster.commands["PING"] < 30_000


async def test_many_clients_that_each_say_little_take_turns(connect, broadcaster):
    """Each stayed within what is free for one, and eight hundred of them kept the loop for seconds."""
    other, *crowd = [await connect() for _ in range(201)]
    for one in crowd:
        await one.send(b"PING 1\n" * 147)
    await wait_for(lambda: broadcaster.commands["PING"] == 147 * len(crowd))
    for one in crowd:
        await one.send(b"PING 1\n" * 140)
    await other.send(b"REPLICATE\n")
    await other.receive_until(b"POSITION caches", 20)
    assert broadcaster.commands["PING"] < 287 * len(crowd)
    await wait_for(lambda: broadcaster.commands["PING"] == 287 * len(crowd))


async def test_who_comes_does_not_stand_behind_all_that_flood(connect, broadcaster):
    """A follower that connected while four hundred flooded was told no position for ten seconds."""
    crowd = [await connect() for _ in range(100)]
    known, late = list(broadcaster.clients.values()), await connect()
    for one in crowd:
        await one.send(b"PING 1\n" * 1_000)
    await wait_for(lambda: all(peer.connection.bytes_in >= SLICE_BYTES for peer in known))
    taken = broadcaster.commands["PING"]
    await late.send(b"NAME late\nREPLICATE\n")
    await late.receive_until(b"POSITION caches", 20)
    assert broadcaster.commands["PING"] < taken + len(crowd) // 2 * SLICE_BYTES // len(b"PING 1\n")


async def test_what_all_clients_together_tell_others_has_a_bound(connect, broadcaster, monkeypatch):
    monkeypatch.setattr("streams.replication.server.relay.ALL_RELAYED_A_SECOND", 50)
    reports = WorkerReports(broadcaster)
    crowd = [TcpCommunicator(ReplicationConsumer.as_asgi(broadcaster=broadcaster, reports=reports)) for _ in range(20)]
    other, begun = await connect(), time.monotonic()
    for one in crowd:
        await one.connect()
        await one.send(b"REMOTE_SERVER_UP a\n" * 50 + b"NAME done\n")
    await wait_for(lambda: all(peer.name == "done" for peer in list(broadcaster.clients.values())[1:]))
    for one in crowd:
        await one.disconnect()
    assert 0 < other.transport.sent.count(b"REMOTE_SERVER_UP") <= 50 * (time.monotonic() - begun + 1)


async def test_relaying_cuts_clients_that_take_nothing(connect, broadcaster, monkeypatch):
    for name in ("RELAYED_A_SECOND", "ALL_RELAYED_A_SECOND"):
        monkeypatch.setattr(f"streams.replication.server.relay.{name}", 10**6)
    monkeypatch.setattr("streams.replication.server.broadcaster.CHECK_EVERY_BYTES", 10_000)
    # Below RELAY_BYTES: a client for which more waits is left out, and with small batches of lines would never reach the limit.
    broadcaster.settings = replace(broadcaster.settings, send_buffer_limit_bytes=15_000)
    sender, stuck = await connect(), await connect()
    stuck.transport.stuck = True
    line = b"REMOTE_SERVER_UP " + b"a" * 250 + b"\n"
    for _ in range(40):
        await sender.send(line * 50)
    await wait_for(lambda: stuck.transport.is_closing)
    assert stuck.transport.buffered_bytes < 1_000
    assert broadcaster.clients


async def test_a_name_that_is_too_long_costs_no_connection(connect, broadcaster):
    """Anybody may choose a long name, and a worker that reports it is not to blame."""
    sender, other = await connect(), await connect()
    await sender.send(b"REMOTE_SERVER_UP " + b"a" * 16_000 + b"\nREMOTE_SERVER_UP b\nUSER_SYNC w @a:b start 1\n")
    await other.receive_until(b"REMOTE_SERVER_UP b\n")
    assert other.transport.sent.count(b"REMOTE_SERVER_UP") == 1
    await wait_for(lambda: broadcaster.commands["USER_SYNC"] == 1)


async def test_input_that_waits_for_its_turn_is_no_silence():
    """A crowd that sent a line each kept a worker's PING waiting, and the worker was closed for it."""
    # The timeout is long enough for a busy machine between the first line and the second.
    broadcaster = Broadcaster(StreamSettings(writer="master", ping_interval_seconds=0.05, ping_timeout_seconds=1.0))
    client = TcpCommunicator(ReplicationConsumer.as_asgi(broadcaster=broadcaster))
    await client.connect()
    await client.send(b"PING 1\n")
    await wait_for(lambda: broadcaster.commands["PING"] == 1)
    async with broadcaster.turn, broadcaster.first_turn:
        await client.send(b"PING 2\n" * 1_000)
        await wait_for(lambda: client.transport.sent.count(b"PING") > 1.5 / 0.05)  # so the timeout is over
        assert not client.transport.is_closing
    await wait_for(lambda: broadcaster.commands["PING"] == 1_001)
    await client.receive_until(b"ERROR ping timeout\n")
    await client.disconnect()


@pytest.mark.parametrize(("most", "written"), [(1, [9, 18, 18, 18]), (2, [18, 18, 27]), (16, [18, 18, 27])])
async def test_clients_that_follow_different_streams_share_the_bytes(connect, broadcaster, monkeypatch, most, written):
    """Of a thousand clients that read nothing each had a copy of its own."""
    monkeypatch.setattr("streams.replication.server.broadcaster.MOST_CHOICES", most)
    clients, writes = [await connect() for _ in range(3)], []
    for client, names in zip(clients, [b"events,caches", b"caches,typing", b"caches"], strict=True):
        await client.send(b"REPLICATE " + names + b"\n")
        client.transport.write = lambda data, lines=None: writes.append(data)
    await wait_for(lambda: all(peer.follows for peer in broadcaster.clients.values()))
    pieces = [Piece(stream, b"RDATA %s\n" % stream.encode() * 9, 9, 9) for stream in ("caches", "events", "caches")]
    broadcaster._write_pieces(pieces, list(broadcaster.clients.values()))
    facts = [data for data in writes if b"RDATA" in data]  # the others may be told positions meanwhile
    assert sorted(data.count(b"\n") for data in facts) == written
    assert len({id(data) for data in facts}) == len(set(written))


async def test_errors_of_a_client_are_logged_once(connect, broadcaster, caplog):
    client = await connect()
    await client.send(b"ERROR one\x1b[2J\n" + b"ERROR again\n" * 9)
    await wait_for(lambda: broadcaster.commands["ERROR"] == 10)
    said = [record.getMessage() for record in caplog.records if "client_error" in record.getMessage()]
    assert len(said) == 1
    assert "\x1b" not in said[0]


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        (b"NAME sender\nFEDERATION_ACK sender 5\n", {"sender": 5}),
        (b"NAME other\nFEDERATION_ACK sender 5\n", {}),
        (b"FEDERATION_ACK sender 5\nNAME sender\n", {}),
        (b"FEDERATION_ACK  5\n", {}),
        (b"NAME sender\nNAME other\nFEDERATION_ACK sender 5\n", {"sender": 5}),
    ],
)
async def test_an_acknowledgement_counts_for_the_name_that_the_client_gave(broadcaster, said, counts):
    """It frees what the sender of that name has not sent: nobody else may say it."""
    reports = WorkerReports(broadcaster)
    client = TcpCommunicator(ReplicationConsumer(broadcaster, reports))
    await client.connect()
    await client.send(said + b"ERROR done\n")
    await wait_for(lambda: broadcaster.commands["ERROR"] == 1 or not broadcaster.clients)
    assert reports._buffer.drain().acknowledged == counts
    assert bool(reports.figures().get("FEDERATION_ACK")) != bool(counts)
    await client.disconnect()


async def test_a_name_is_kept_for_the_table(connect, broadcaster):
    client = await connect()
    await client.send(b"NAME wor\x00k\x1ber\n")
    [peer] = broadcaster.clients.values()
    await wait_for(lambda: peer.name == "wor\\x00k\\x1ber")


async def test_commands_are_counted(connect, broadcaster):
    client = await connect()
    await client.send(b"PING 1\nPING 2\nUSER_SYNC i @a:b start 5\n")
    await wait_for(lambda: broadcaster.commands == {"PING": 2, "USER_SYNC": 1})


async def test_a_broken_rule_closes_with_the_reason(connect):
    client = await connect()
    await client.send(b"BOGUS\n")
    await client.receive_until(b"ERROR failed to parse line")
    assert client.transport.is_closing


async def test_the_end_of_input_is_answered_before_closing(connect):
    client = await connect()
    await client.send(b"REPLICATE\n")
    await client.send_input({"type": "tcp.eof"})
    assert b"POSITION caches" in await client.receive_until(b"POSITION caches")
    await wait_for(lambda: client.transport.is_closing)


async def test_a_lost_client_is_counted_by_its_reason(broadcaster):
    client = TcpCommunicator(ReplicationConsumer.as_asgi(broadcaster=broadcaster))
    await client.connect()
    await client.disconnect()
    assert broadcaster.closed == {CloseReason.PEER_CLOSED: 1}


async def test_a_mistake_of_ours_says_internal_error_and_is_raised(broadcaster):
    client = TcpCommunicator(ReplicationConsumer.as_asgi(broadcaster=broadcaster))
    await client.connect()
    await client.send_input({"type": "tcp.unheard"})
    with pytest.raises(ValueError, match=r"tcp\.unheard"):
        await client.wait()
    assert client.transport.sent.endswith(b"ERROR internal error\n")
    assert broadcaster.closed == {CloseReason.FAILED: 1}


async def test_commands_are_counted_by_word_and_by_the_name_that_clients_give_themselves(connect, broadcaster):
    client = await connect()
    await client.send(b"NAME worker1\nPING 1\nREPLICATE\n")
    await client.receive_until(b"POSITION caches master 1 1\n")
    odd = await connect()
    await odd.send(b"NAME <b>\nPING 1\n")
    await wait_for(lambda: broadcaster.counts.received["PING other"] == 1)
    broadcaster.count_sent()
    received, sent = broadcaster.counts.received, broadcaster.counts.sent
    assert (received["NAME other"], received["PING worker1"], received["REPLICATE worker1"]) == (2, 1, 1)
    assert sent["SERVER other"] == 2, "they were greeted before they had a name"
    assert sent["POSITION worker1"] == client.transport.sent.count(b"\nPOSITION ")


async def test_lines_of_a_connection_say_whose_it_is(connect, broadcaster, monkeypatch):
    seen = []
    monkeypatch.setattr(broadcaster, "answer_replicate", lambda peer: seen.append(get_contextvars()))
    for number, name in enumerate(("one", "other"), start=50_001):
        client = TcpCommunicator(ReplicationConsumer.as_asgi(broadcaster=broadcaster), ("127.0.0.1", number))
        await client.connect()
        await client.send(f"NAME {name}\nREPLICATE\n".encode())
        await wait_for(lambda number=number: len(seen) == number - 50_000)
        await client.disconnect()
    assert [(found["client"], found["address"]) for found in seen] == [
        ("one", "127.0.0.1:50001"),
        ("other", "127.0.0.1:50002"),
    ]
    assert "client" not in get_contextvars()
