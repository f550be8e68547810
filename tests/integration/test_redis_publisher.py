"""``serve --redis``: server processes that publish on a real Redis, and followers that hear only that."""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
from collections.abc import Iterator

import pytest
import redis

from streams.conf import stream_settings
from streams.db import driver
from streams.models import CacheInvalidation, Reader
from streams.replication.redis.publisher import _Lock
from tests.support.forging import forger
from tests.support.redis_server import RedisServer, redis_server
from tests.support.waiting import wait_until
from tests.support.wire_client import WireClient, ready_ports
from tests.support.writing import append, fact, session, stored, stream, terminate

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
    wait_until(lambda: len(watcher.of("REPLICATE")) >= times, 30.0, "the server said REPLICATE")
    wait_until(lambda: watcher.of("POSITION caches"), 20.0, "positions")


def written() -> list[tuple]:
    facts = CacheInvalidation.objects.order_by("stream_id", "id")
    return [(str(token), name) for token, name in facts.values_list("stream_id", "cache_name")]


def test_it_says_replicate_then_positions_then_facts(serve, watcher):
    serve()
    is_publishing(watcher)
    append(3)
    wait_until(lambda: len(watcher.rows()) == 3, 20.0)
    assert watcher.lines[0] == "REPLICATE "
    assert watcher.lines[1].startswith("POSITION ")
    assert watcher.rows() == written()
    words = {line.split(" ")[0] for line in watcher.read()}
    assert words == {"REPLICATE", "POSITION", "RDATA"}  # neither SERVER nor PING


def test_replicate_of_somebody_else_is_answered(serve, server, watcher):
    serve()
    is_publishing(watcher)
    append()
    wait_until(watcher.rows, 20.0)
    token = watcher.rows()[0][0]
    server.publish(CHANNEL, "REPLICATE ")
    wait_until(lambda: f"POSITION caches master {token} {token}" in watcher.read(), 20.0)


def test_what_cannot_be_understood_does_no_harm(serve, server, watcher):
    serve()
    is_publishing(watcher)
    server.publish(CHANNEL, "", "BOGUS x", "RDATA events other 5 nojson", b"\xff", "RDATA caches other 999999 []")
    append()
    wait_until(lambda: len(watcher.of("RDATA caches master")) == 1, 20.0)


def test_remote_server_up_is_not_relayed_to_redis_but_from_it(serve, server, watcher):
    process = serve()
    is_publishing(watcher)
    with WireClient(process.ports["replication"], "REPLICATE") as client:
        client.read_until("POSITION caches")
        server.publish(CHANNEL, "REMOTE_SERVER_UP from.redis")
        client.read_until("REMOTE_SERVER_UP from.redis")
        client.say("REMOTE_SERVER_UP from.tcp")
        append()
        wait_until(watcher.rows, 20.0)
    assert watcher.of("REMOTE_SERVER_UP") == ["REMOTE_SERVER_UP from.redis"]


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
        wait_until(lambda: again.of(f"POSITION caches master {missed[-1]} {missed[-1]}"), 30.0)
        last = append()[0]
        wait_until(lambda: str(last) in [token for token, _ in again.rows()], 20.0)
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
    wait_until(lambda: len(watcher.rows()) >= 4, 20.0)
    assert [name for _, name in watcher.rows()] == ["one", "two"] * 2
    first.kill()
    is_publishing(watcher, times=2)
    last = append()[0]
    wait_until(lambda: str(last) in [token for token, _ in watcher.rows()], 30.0)
    assert len(watcher.rows()) == 5
    assert second.poll() is None


def test_a_publisher_that_loses_its_lock_stops_publishing(serve, watcher):
    serve()
    is_publishing(watcher)
    with session() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = %s",
            ["replsite redis publisher"],
        )
    is_publishing(watcher, times=2)  # it came back with the lock anew
    append()
    wait_until(watcher.rows, 20.0)
    assert len(watcher.rows()) == 1


def test_it_is_shown_as_a_reader(serve, watcher):
    serve()
    is_publishing(watcher)
    reader = wait_until(lambda: Reader.objects.filter(name="redis", closed_at=None).first(), 20.0)
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
        client.read_until(f"RDATA caches master {last} ", 30.0)
    closed = wait_until(lambda: Reader.objects.filter(name="redis", close_reason="too slow").first(), 20.0)
    assert closed.buffer_bytes == 0
    is_publishing(watcher, times=2)
    again = append()[0]
    wait_until(lambda: str(again) in [token for token, _ in watcher.rows()], 30.0)


async def test_whoever_takes_the_lock_over_begins_when_the_one_that_lost_it_has_stopped():
    """Rows of one batch from both would be one fact with its rows twice."""
    alias = stream_settings().database
    one, two = _Lock(alias, "test"), _Lock(alias, "test")
    await one.acquire()
    watching = asyncio.create_task(one.watch())
    await asyncio.sleep(0)
    await asyncio.to_thread(terminate, one._connection._connection.get_backend_pid())
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
    wait_until(lambda: watcher.of("POSITION account_data"), 30.0)
    set_tags("@u:x", "!r:x", {"m.favourite": {}})
    group_changed("+g:x", "@u:x", {})
    signatures_changed("@u:x")
    devices_changed(["@u:x"])
    add_receipt("!r:x", "m.read", "@u:x", "$e", {"ts": 1})
    append(1)
    wait_until(lambda: watcher.of("RDATA receipts") and watcher.of("RDATA device_lists") and watcher.rows(), 30.0)
    asked = len(watcher.of("POSITION caches"))
    watcher._client.publish(CHANNEL, "REPLICATE ")
    wait_until(lambda: len(watcher.of("POSITION caches")) > asked, 30.0)
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
    wait_until(lambda: watcher.of("POSITION groups") and watcher.of("POSITION tag_account_data"), 30.0)


def test_a_later_worker_catches_up_at_the_host_that_it_names(serve, watcher):
    """``Host: master``: the name is good for missed facts, and for no page of the site."""
    process = serve(env={"REPLSITE_REDIS_SYNAPSE_VERSION": "1.163", "REPLSITE_REPLICATION_HOSTS": "master"})
    is_publishing(watcher)
    (token,) = append(1)
    wait_until(watcher.rows, 30.0)
    path = "/_synapse/replication/get_repl_stream_updates"
    query = f"from_token={token - 1}&upto_token={token}"

    def ask(path: str, host: str) -> tuple[int, bytes]:
        client = http.client.HTTPConnection("127.0.0.1", process.ports["http"], timeout=30)
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
    link = http.client.HTTPConnection("127.0.0.1", process.ports["http"], timeout=10)
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
    wait_until(lambda: health_of_redis(process)["well"], 20.0)
