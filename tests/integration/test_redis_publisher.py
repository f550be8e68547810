"""``serve --redis``: server processes that publish on a real Redis, and followers that hear only that."""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
from collections.abc import Iterator

import pytest
import redis

from streams.catalog.models import CacheInvalidation
from streams.conf import stream_settings
from streams.db import driver
from streams.models import FederationAcknowledgement, Reader, WireCount
from streams.replication.protocol.commands import Command, RemoteServerUp
from streams.replication.redis.publisher import RedisPublisher, _Lock
from streams.replication.server.broadcaster import Broadcaster
from streams.replication.server.client import ReplicationClient
from streams.replication.transport.addresses import RedisAddress
from tests.support.async_waiting import wait_for
from tests.support.forging import forger
from tests.support.redis_server import RedisServer, redis_server
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.wire_client import WireClient, ready_ports
from tests.support.writing import append, cut, fact, stored, stream, terminate

pytestmark = pytest.mark.django_db(transaction=True)
CHANNEL = "localhost"


@pytest.fixture
def server(tmp_path, free_port) -> Iterator[RedisServer]:
    with redis_server(tmp_path, free_port) as server:
        yield server


@pytest.fixture
def serve(start_manage, server):
    def start(**more) -> subprocess.Popen[str]:
        process = start_manage(
            "serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0", "--redis", server.url, **more
        )
        process.ports = ready_ports(process)
        return process

    return start


class Watcher:
    """Hears a channel as an outside process does."""

    def __init__(self, server: RedisServer) -> None:
        self._client = redis.Redis(port=server.port, protocol=2)
        self._pubsub = self._client.pubsub()
        self._pubsub.subscribe(CHANNEL)
        self.lines: list[str] = []

    def close(self) -> None:
        self._pubsub.close()
        self._client.close()

    def read(self) -> list[str]:
        while (message := self._pubsub.get_message(timeout=0.05)) is not None:
            if message["type"] == "message":
                self.lines.append(message["data"].decode("utf-8", "replace"))
        return self.lines

    def of(self, *words: str) -> list[str]:
        return [line for line in self.read() if line.startswith(" ".join(words))]

    def rows(self) -> list[tuple]:
        """Token and name of the cache, of every row of the tested stream."""
        found = [line.split(" ", 4) for line in self.of("RDATA caches")]
        return [(token, json.loads(row)[0]) for _, _, _, token, row in found]


@pytest.fixture
def watcher(server) -> Iterator[Watcher]:
    watcher = Watcher(server)
    yield watcher
    watcher.close()


def is_publishing(watcher: Watcher, times: int = 1) -> None:
    wait_until(lambda: len(watcher.of("REPLICATE")) >= times, what="the server said REPLICATE")
    wait_until(lambda: watcher.of("POSITION caches"), what="positions")


def written() -> list[tuple]:
    facts = CacheInvalidation.objects.order_by("stream_id", "id")
    return [(str(token), name) for token, name in facts.values_list("stream_id", "cache_name")]


def test_it_says_replicate_then_positions_then_facts(serve, watcher):
    serve()
    is_publishing(watcher)
    append(3)
    wait_until(lambda: len(watcher.rows()) == 3)
    assert watcher.lines[0] == "REPLICATE "
    assert watcher.lines[1].startswith("POSITION ")
    assert watcher.rows() == written()
    words = {line.split(" ")[0] for line in watcher.read()}
    assert words == {"REPLICATE", "POSITION", "RDATA"}  # neither SERVER nor PING


def test_replicate_of_somebody_else_is_answered(serve, server, watcher):
    serve()
    is_publishing(watcher)
    append()
    wait_until(watcher.rows)
    token = watcher.rows()[0][0]
    server.publish(CHANNEL, "REPLICATE ")
    wait_until(lambda: f"POSITION caches master {token} {token}" in watcher.read())


def test_what_cannot_be_understood_does_no_harm(serve, server, watcher):
    serve()
    is_publishing(watcher)
    server.publish(CHANNEL, "", "BOGUS x", "RDATA events other 5 nojson", b"\xff", "RDATA caches other 999999 []")
    append()
    wait_until(lambda: len(watcher.of("RDATA caches master")) == 1)


UNSENDABLE = [
    b"REMOTE_SERVER_UP a\nPOSITION caches master 1 99999999",
    b"REMOTE_SERVER_UP " + b"x" * 20_000,
    b"NEW_ACTIVE_TASK a\nb",
    'LOCK_RELEASED ["a", "b", "{}"]'.format("\u00e4" * 8_000).encode(),
]


def test_a_message_that_is_no_line_does_not_end_the_publishing(serve, server, watcher):
    """A message on Redis may hold a line feed and be longer than any line. Every program on the channel can send it."""
    process = serve()
    is_publishing(watcher)
    with WireClient(process.ports["replication"], "REPLICATE") as client:
        client.read_until("POSITION caches")
        server.publish(CHANNEL, *UNSENDABLE, "REMOTE_SERVER_UP after.them")
        client.read_until("REMOTE_SERVER_UP after.them")
        assert client.of("REMOTE_SERVER_UP") == ["REMOTE_SERVER_UP after.them"]
        assert not any("99999999" in line for line in client.lines)
    append()
    wait_until(lambda: len(watcher.of("RDATA caches master")) == 1)
    assert len(watcher.of("REPLICATE")) == 1  # the link is the same
    assert health_of_redis(process)["well"]
    wait_until(lambda: WireCount.objects.filter(kind="dropped", name="REMOTE_SERVER_UP", total=2).exists())


def test_a_client_whose_command_gets_too_long_in_ascii_keeps_its_connection(serve):
    process = serve()
    with WireClient(process.ports["replication"], "REPLICATE") as client:
        client.read_until("POSITION caches")
        client.say(UNSENDABLE[-1].decode())
        client.say("REPLICATE")
        client.read_until(lambda _: len(client.of("POSITION caches")) == 2)
    wait_until(lambda: WireCount.objects.filter(kind="dropped", name="LOCK_RELEASED", total=1).exists())


async def test_an_unforeseen_error_does_not_end_the_publisher(server):
    """The task is nobody's: if it ended, nothing would be published, and health would say that all is well."""
    broadcaster = Broadcaster()
    said: list[Command] = []

    def take(_: ReplicationClient, commands: list[Command]) -> None:
        said.extend(commands)
        raise RuntimeError("a fault of ours")

    publisher = RedisPublisher(broadcaster, RedisAddress("127.0.0.1", server.port, channel=CHANNEL), take)
    await publisher.start()
    try:
        await wait_for(lambda: publisher.is_publishing)
        await asyncio.to_thread(server.publish, CHANNEL, "REMOTE_SERVER_UP one")
        await wait_for(lambda: "a fault of ours" in broadcaster.redis_trouble)
        await wait_for(lambda: publisher.is_publishing)
        assert broadcaster.redis_trouble == ""
        assert publisher.links == 2
    finally:
        await publisher.stop()


LONG = [
    b'USER_IP @a:b ["t","1.2.3.4","a","d",1' + b" " * 100_000 + b"]",
    b"NAME " + b"x" * 100_000,
    b"FEDERATION_ACK " + b"x" * 100_000 + b" 5",
]


async def test_a_message_that_is_much_longer_than_a_line_is_not_read(server):
    """One of 8 MB, from a program that may only publish, held up every page and every fact for eight seconds."""
    words: list[str] = []
    publisher = RedisPublisher(
        Broadcaster(),
        RedisAddress("127.0.0.1", server.port, channel=CHANNEL),
        lambda _, commands: words.extend(type(command).__name__ for command in commands),
    )
    await publisher.start()
    try:
        await wait_for(lambda: publisher.is_publishing)
        await asyncio.to_thread(server.publish, CHANNEL, *LONG, "REMOTE_SERVER_UP here")
        await wait_for(lambda: words)
    finally:
        await publisher.stop()
    assert words == ["RemoteServerUp"]


async def test_a_flood_on_the_channel_leaves_turns_to_other_connections(server):
    """The messages that are buffered were handled in one piece: 0.1 s, again and again, in which nobody else was served."""
    taken, at_end = 0, asyncio.Event()

    def take(_: ReplicationClient, commands: list[Command]) -> None:
        nonlocal taken
        taken += 1
        if commands == [RemoteServerUp("the.last")]:
            at_end.set()

    publisher = RedisPublisher(Broadcaster(), RedisAddress("127.0.0.1", server.port, channel=CHANNEL), take)
    await publisher.start()
    try:
        await wait_for(lambda: publisher.is_publishing)
        flood = ["REMOTE_SERVER_UP one"] * 20_000 + ["REMOTE_SERVER_UP the.last"]
        publishing = asyncio.create_task(asyncio.to_thread(server.publish, CHANNEL, *flood))
        most, before = 0, 0
        while not at_end.is_set():
            await asyncio.sleep(0)
            most, before = max(most, taken - before), taken
        await publishing
    finally:
        await publisher.stop()
    assert taken == len(flood)
    assert most < 500


def test_remote_server_up_is_not_relayed_to_redis_but_from_it(serve, server, watcher):
    process = serve()
    is_publishing(watcher)
    with WireClient(process.ports["replication"], "REPLICATE") as client:
        client.read_until("POSITION caches")
        server.publish(CHANNEL, "REMOTE_SERVER_UP from.redis")
        client.read_until("REMOTE_SERVER_UP from.redis")
        client.say("REMOTE_SERVER_UP from.tcp")
        append()
        wait_until(watcher.rows)
    assert watcher.of("REMOTE_SERVER_UP") == ["REMOTE_SERVER_UP from.redis"]


def test_an_acknowledgement_from_redis_counts_for_nobody(serve, server, watcher):
    """Whoever may publish could say it in the name of any sender, and free what that one has not sent."""
    serve()
    is_publishing(watcher)
    server.publish(CHANNEL, "NAME sender", "FEDERATION_ACK sender 5")
    wait_until(lambda: WireCount.objects.filter(kind="dropped", name="FEDERATION_ACK", total=1).exists())
    assert not FederationAcknowledgement.objects.exists()


@pytest.mark.parametrize("view", ["writer", "linear"])
def test_our_own_follower_over_redis_equals_the_table(serve, server, watcher, run_manage, view):
    serve()
    is_publishing(watcher)
    first = append()[0]
    for number in range(20):
        append(7)
        if number == 10:
            stream().append(fact("x" * 20_000))  # no line of TCP can hold it: fetched
    last = append()[0]
    wait_until(lambda: stored()["master"].position >= last)
    span = ["--from", f"caches={first}", "--until", f"caches={last}", "--view", view]
    done = run_manage("follow", server.url, "--streams", "caches", "--json", *span, "--timeout", "40")
    assert done.returncode == 0, done.stderr
    assert [(str(row["token"]), row["row"][0]) for row in map(json.loads, done.stdout.splitlines())] == written()[1:]


def test_after_a_restart_of_redis_it_comes_back_and_tells_positions(serve, server, watcher):
    serve()
    is_publishing(watcher)
    server.kill()
    missed = append(3)
    server.start()
    again = Watcher(server)
    try:
        wait_until(lambda: again.of(f"POSITION caches master {missed[-1]} {missed[-1]}"))
        last = append()[0]
        wait_until(lambda: str(last) in [token for token, _ in again.rows()])
    finally:
        again.close()


def test_a_redis_that_is_not_there_does_not_keep_the_server_from_serving(start_manage, free_port):
    url = f"redis://127.0.0.1:{free_port}"
    process = start_manage("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0", "--redis", url)
    with WireClient(ready_ports(process)["replication"], "REPLICATE") as client:
        append()
        client.read_until("RDATA caches")


def test_of_two_servers_one_publishes_and_the_other_takes_over(serve, server, watcher):
    """Rows of a batch that came twice would be taken for more rows of the same fact."""
    first = serve()
    is_publishing(watcher)
    second = serve(env={"REPLSITE_INSTANCE": "second"})
    with stream().reserve(2) as reservation:
        for token in reservation.ids:
            for name in ("one", "two"):
                row = fact(name)
                row.stream_id = token
                reservation.write(row)
    wait_until(lambda: len(watcher.rows()) >= 4)
    assert [name for _, name in watcher.rows()] == ["one", "two"] * 2
    first.kill()
    is_publishing(watcher, times=2)
    last = append()[0]
    wait_until(lambda: str(last) in [token for token, _ in watcher.rows()])
    assert len(watcher.rows()) == 5
    assert second.poll() is None


def test_a_publisher_that_loses_its_lock_stops_publishing(serve, watcher):
    serve()
    is_publishing(watcher)
    assert cut("replsite redis publisher")
    is_publishing(watcher, times=2)  # it came back with the lock anew
    append()
    wait_until(watcher.rows)
    assert len(watcher.rows()) == 1


def test_it_is_shown_as_a_reader(serve, watcher):
    serve()
    is_publishing(watcher)
    reader = wait_until(lambda: Reader.objects.filter(name="redis", closed_at=None).first())
    assert "redis://127.0.0.1" in reader.address


def test_a_url_that_is_none_is_refused(run_manage):
    done = run_manage("serve", "--redis", "http://h")
    assert done.returncode == 2
    assert "redis://" in done.stderr


def test_a_redis_that_takes_nothing_is_cut_and_found_again(serve, server, watcher):
    """What waits for it is bounded like that of any client; TCP goes on meanwhile."""
    process = serve(env={"REPLSITE_SEND_BUFFER_LIMIT_BYTES": "100000"})
    is_publishing(watcher)
    server.command("CLIENT", "PAUSE", "4000")
    with WireClient(process.ports["replication"], "REPLICATE") as client:
        client.read_until("POSITION caches")
        for _ in range(6):
            stream().append(*(fact("z" * 1_000) for _ in range(100)))
        last = append()[0]
        client.read_until(f"RDATA caches master {last} ")
    closed = wait_until(lambda: Reader.objects.filter(name="redis", close_reason="too slow").first())
    assert closed.buffer_bytes == 0
    is_publishing(watcher, times=2)
    again = append()[0]
    wait_until(lambda: str(again) in [token for token, _ in watcher.rows()])


async def test_whoever_takes_the_lock_over_begins_when_the_one_that_lost_it_has_stopped():
    """Rows of one batch from both would be one fact with its rows twice."""
    alias = stream_settings().database
    one, two = _Lock(alias, "test"), _Lock(alias, "test")
    await one.acquire()
    watching = asyncio.create_task(one.watch())
    await asyncio.sleep(0)
    await asyncio.to_thread(terminate, one._connection._connection.info.backend_pid)
    await two.acquire()
    assert watching.done()
    with pytest.raises((OSError, driver.DatabaseError)):
        await watching
    await one.end()
    await two.end()


# --- the pieces ---------------------------------------------------------------------------------------------------


async def test_a_peer_on_redis_says_neither_server_nor_ping():
    from streams.replication.redis.publisher import ChannelClient

    peer = ChannelClient("redis://there", "localhost")
    assert peer.waiting.chunk() == []
    peer.flush()
    assert peer.waiting.chunk() == []
    assert peer.is_open


async def test_bytes_wait_until_redis_confirmed_them():
    from streams.replication.redis.publisher import ChannelClient

    peer = ChannelClient("redis://there", "localhost")
    peer.write_shared(b"RDATA s w 1 []\n", 1, 0.0)
    pieces = peer.waiting.chunk()
    assert (pieces, peer.buffered_bytes) == ([b"RDATA s w 1 []\n"], 15)
    peer.waiting.confirmed(15)
    assert peer.buffered_bytes == 0


@pytest.mark.parametrize(
    ("line", "is_published"),
    [
        (b'RDATA s w 1 ["x"]', True),
        (b"POSITION s w 1 1", True),
        (b"REPLICATE ", True),
        (b"REMOTE_SERVER_UP x", False),
        (b"PING 1", False),
        (b"ERROR x", False),
        (b"", False),
    ],
)
def test_only_facts_positions_and_the_question_go_to_redis(line, is_published):
    from streams.replication.redis.publisher import _is_published

    assert _is_published(line) is is_published


# --- workers of later versions ------------------------------------------------------------------------------------


def test_later_workers_get_no_stream_that_they_do_not_know(serve, watcher):
    """At a POSITION of such a stream they end their link; and a REPLICATE of theirs would bring it again."""
    from streams.homeserver.append import add_receipt, devices_changed, group_changed, set_tags, signatures_changed

    serve(env={"REPLSITE_REDIS_SYNAPSE_VERSION": "1.163"})
    is_publishing(watcher)
    wait_until(lambda: watcher.of("POSITION account_data"))
    set_tags("@u:x", "!r:x", {"m.favourite": {}})
    group_changed("+g:x", "@u:x", {})
    signatures_changed("@u:x")
    devices_changed(["@u:x"])
    add_receipt("!r:x", "m.read", "@u:x", "$e", {"ts": 1})
    append(1)
    wait_until(lambda: watcher.of("RDATA receipts") and watcher.of("RDATA device_lists") and watcher.rows())
    asked = len(watcher.of("POSITION caches"))
    watcher._client.publish(CHANNEL, "REPLICATE ")
    wait_until(lambda: len(watcher.of("POSITION caches")) > asked)
    assert {line.split()[1] for line in watcher.of("POSITION")} == {
        "events", "backfill", "presence", "presence_federation", "typing", "receipts", "push_rules", "pushers", "caches",
        "device_lists", "to_device", "account_data",
    }  # fmt: skip
    assert not [
        line for line in watcher.of("RDATA") if line.split()[1] in ("tag_account_data", "groups", "user_signature")
    ]
    assert [json.loads(line.split(" ", 4)[4]) for line in watcher.of("RDATA device_lists")] == [["@u:x", False, False]]
    (receipt,) = watcher.of("RDATA receipts")
    assert json.loads(receipt.split(" ", 4)[4]) == ["!r:x", "m.read", "@u:x", "$e", None, {"ts": 1}]


def test_others_get_all_streams(serve, watcher):
    serve()
    is_publishing(watcher)
    wait_until(lambda: watcher.of("POSITION groups") and watcher.of("POSITION tag_account_data"))


def test_a_later_worker_catches_up_at_the_host_that_it_names(serve, watcher):
    """``Host: master``: the name is good for missed facts, and for no page of the site."""
    process = serve(env={"REPLSITE_REDIS_SYNAPSE_VERSION": "1.163", "REPLSITE_REPLICATION_HOSTS": "master"})
    is_publishing(watcher)
    (token,) = append(1)
    wait_until(watcher.rows)
    path = "/_synapse/replication/get_repl_stream_updates"
    query = f"from_token={token - 1}&upto_token={token}"

    def ask(path: str, host: str) -> tuple[int, bytes]:
        client = http.client.HTTPConnection("127.0.0.1", process.ports["http"], timeout=DEADLINE_SECONDS)
        try:
            client.request("GET", path, headers={"Host": host})
            answer = client.getresponse()
            return answer.status, answer.read()
        finally:
            client.close()

    for host in ("master", "master:8080", "127.0.0.1"):
        status, body = ask(f"{path}/caches/{host}?{query}", host)
        assert (status, [found for found, _ in json.loads(body)["updates"]]) == (200, [token])
    assert ask(f"{path}/caches/t?{query}", "elsewhere")[0] == 400
    for page in ("/admin/login/", "/health/live", "/metrics"):
        assert ask(page, "master")[0] == 400, page


def health_of_redis(process) -> dict:
    """The part about Redis of what anybody is told."""
    link = http.client.HTTPConnection("127.0.0.1", process.ports["http"], timeout=DEADLINE_SECONDS)
    link.request("GET", "/health")
    return next(part for part in json.load(link.getresponse())["parts"] if part["name"] == "redis")


def test_a_stranger_that_holds_the_channels_lock_is_told(serve, server, watcher):
    """A session that may only read keeps every server from publishing; that is not what a server waits for in silence."""
    with forger() as stranger:
        stranger.execute(
            "SELECT pg_try_advisory_lock(%s), pg_backend_pid()",
            [driver.publisher_key(f"127.0.0.1:{server.port} {CHANNEL}")],
        )
        is_held, session_number = stranger.fetchone()
        assert is_held
        process = serve(stderr=subprocess.PIPE)
        told = next(line for line in process.stderr if "redis.not_publishing" in line)
        assert f"session {session_number}" in told
        assert not health_of_redis(process)["well"]
        assert not watcher.read()
    is_publishing(watcher)
    wait_until(lambda: health_of_redis(process)["well"])
    second = serve(env={"REPLSITE_INSTANCE": "second"})
    assert health_of_redis(second)["well"], "one that waits for a server of ours is well"


def test_a_redis_that_is_away_is_told_by_health(serve, server, watcher):
    process = serve()
    is_publishing(watcher)
    server.kill()
    wait_until(lambda: not health_of_redis(process)["well"])
    server.start()
    wait_until(lambda: health_of_redis(process)["well"])
