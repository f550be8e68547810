"""Following over Redis: a real Redis server, and what a real Synapse 1.163 published, played again."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from streams.catalog.models import CacheInvalidation
from streams.conf import stream_settings
from streams.replication.client.follower import FollowerOptions
from streams.replication.client.http_catch_up import HttpCatchUp, HttpServers
from streams.replication.errors import RedisRefused
from streams.replication.follow_command import _plain_line
from streams.replication.protocol.ordering import FollowedRow, View
from streams.replication.redis import subscriber
from streams.replication.redis.subscriber import RedisConnector
from streams.replication.transport.addresses import RedisAddress
from tests.support.following import Followed, running
from tests.support.redis_homeserver import RedisHomeserver, redis_homeserver
from tests.support.redis_server import RedisServer, redis_server
from tests.support.scripted_http import scripted_http
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import append, fact, stored, stream

RECORDING = Path(__file__).parents[2] / "data" / "redis" / "r1_redis_modern_synapse.txt.gz"
CHANNEL = "new.example"


@pytest.fixture
def server(tmp_path, free_port) -> Iterator[RedisServer]:
    with redis_server(tmp_path, free_port) as server:
        yield server


def hearing(server: RedisServer, url: str = "", catch_up=None, **options) -> AbstractContextManager[Followed]:
    connector = RedisConnector(RedisAddress.parse(url or server.url), CHANNEL, "test follower")
    return running(Followed(FollowerOptions(None, "test", connector=connector, **options), catch_up))


def subscribed(server: RedisServer) -> None:
    wait_until(lambda: server.listeners(CHANNEL) == 1, what="the follower subscribed")


def recorded() -> list[tuple[str, str]]:
    """(channel, message) of the recording, in order; our own REPLICATE is the first."""
    with gzip.open(RECORDING, "rt", encoding="utf-8", newline="\n") as lines:
        found = [line.removesuffix("\n")[1:].partition("] ")[::2] for line in lines if line.startswith("[")]
    assert len(found) == 100
    return found


def rows_by_hand(messages: list[tuple[str, str]]) -> dict[str, list[tuple]]:
    """What the recording says happened, read in the most obvious way: rows per stream in order, with final tokens."""
    rows: dict[str, list[tuple]] = {}
    begun: dict[str, list] = {}
    for channel, message in messages:
        words = message.split(" ", 4)
        if channel != CHANNEL or words[0] != "RDATA" or words[4] == "nojson":
            continue
        _, stream, instance, token, row = words
        begun.setdefault(stream, []).append(json.loads(row))
        if token != "batch":
            rows.setdefault(stream, []).extend((instance, int(token), one) for one in begun.pop(stream))
    return rows


def test_what_a_real_server_published_comes_out_right(server):
    messages = recorded()
    with hearing(server) as heard:
        subscribed(server)
        for channel, message in messages[1:]:
            server.publish(channel, message)
        wanted = rows_by_hand(messages)
        last = max(token for _, token, _ in wanted["events"])
        wait_until(lambda: heard.position("events", "persister1") >= last, what="the last event")
        wait_until(lambda: len(heard.rows) >= sum(map(len, wanted.values())), what="all rows")
        assert {stream: heard.of(stream) for stream in wanted} == wanted
        assert not heard.gaps
        assert not heard.error


def test_a_follower_says_replicate_and_nothing_else(server):
    import redis

    with redis.Redis(port=server.port, protocol=2) as client, client.pubsub() as watcher:
        watcher.psubscribe("*")
        wait_until(lambda: (watcher.get_message(timeout=1.0) or {}).get("type") == "psubscribe")
        with hearing(server) as heard:
            server_said = []
            wait_until(lambda: server_said.append(watcher.get_message(timeout=0.1)) or any(server_said))
            server.publish(CHANNEL, "POSITION events master 5 5", 'RDATA events master 6 ["ev",[]]', "REPLICATE ")
            wait_until(lambda: heard.position("events") == 6)
        heard_by_others = [one for one in server_said if one]
        while (message := watcher.get_message(timeout=0.5)) is not None:
            heard_by_others.append(message)
    said = [(one["channel"].decode(), one["data"].decode()) for one in heard_by_others if one["type"] == "pmessage"]
    assert said[0] == (CHANNEL, "REPLICATE ")
    assert len(said) == 4  # ours, and the three of the test


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("view", ["writer", "linear"])
def test_our_own_facts_over_redis_equal_the_table(server, start_manage, view):
    """Those that it was told on the channel, in batches, and those that a POSITION says it missed: from the table."""
    ours = stream_settings().server_name

    def tell(homeserver: RedisHomeserver, tokens: list[int]) -> None:
        for token in tokens:
            facts = CacheInvalidation.objects.filter(stream_id=token).order_by("id")
            homeserver.tell_fact(token, *(json.dumps([fact.cache_name, fact.keys, 1]) for fact in facts))

    def two_rows() -> int:
        with stream().reserve(1) as reservation:
            for name in ("one", "two"):
                row = fact(name)
                row.stream_id = reservation.ids[0]
                reservation.write(row)
        return int(reservation.ids[0])

    first, *before = append(5)
    told = [*append(3), two_rows(), *append(3)]
    missed = append(7)
    last = append(1)
    wait_until(lambda: stored()["master"].position >= last[-1])
    with redis_homeserver(server, ours, "caches", "master", before[-1]) as homeserver:
        span = ["--from", f"caches={first}", "--until", f"caches={last[-1]}", "--view", view]
        process = start_manage("follow", server.url, "--streams", "caches", "--json", *span, "--timeout", "60")
        wait_until(lambda: homeserver.answers, what="the follower asked for positions")
        tell(homeserver, told)
        homeserver.position = missed[-1]  # what was said meanwhile got lost
        homeserver.tell_position()
        tell(homeserver, last)
        output, _ = process.communicate(timeout=DEADLINE_SECONDS)
    rows = [(one["token"], one["row"][0]) for one in map(json.loads, output.splitlines())]
    facts = CacheInvalidation.objects.filter(stream_id__gt=first).order_by("stream_id", "id")
    assert process.returncode == 0
    assert rows == list(facts.values_list("stream_id", "cache_name"))


def test_user_ips_are_on_a_channel_of_their_own(server):
    with hearing(server):
        subscribed(server)
        assert server.publish(f"{CHANNEL}/USER_IP", "USER_IP @u:h []") == [0]


def test_writers_that_answer_late_are_known_before_any_row_counts(server):
    """Each process answers REPLICATE in its own time; a row of one must not hide the lower ones of another."""
    with hearing(server) as heard:
        subscribed(server)
        server.publish(CHANNEL, "POSITION caches master 16 16", "RDATA caches master 18 [18]")
        server.publish(CHANNEL, "POSITION caches worker 16 16", "RDATA caches worker 17 [17]")
        wait_until(lambda: len(heard.rows) == 2)
        assert sorted(heard.of("caches")) == [("master", 18, [18]), ("worker", 17, [17])]


def test_own_echoes_are_passed_over(server):
    with hearing(server, own_instance="me") as heard:
        subscribed(server)
        server.publish(CHANNEL, "POSITION caches me 1 1", "RDATA caches me 2 []", "POSITION caches master 1 1")
        server.publish(CHANNEL, "RDATA caches master 3 [3]")
        wait_until(lambda: heard.rows)
        assert heard.of("caches") == [("master", 3, [3])]


@pytest.mark.parametrize(
    ("position", "rows", "gaps"),
    [
        ("POSITION events master 5 5", [6, 9], []),  # new <= current: ignored
        ("POSITION events master 4 8", [6, 9], []),  # prev <= current <= new: nothing is missing
        ("POSITION events master 7 8", [6, 9], [(6, 8)]),
    ],
)
def test_positions_by_the_rules_of_later_versions(server, position, rows, gaps):
    with hearing(server) as heard:
        subscribed(server)
        server.publish(CHANNEL, "POSITION events master 5 5", "RDATA events master 6 [6]")
        wait_until(lambda: heard.position("events") == 6)
        server.publish(CHANNEL, position, "RDATA events master 9 [9]")
        wait_until(lambda: heard.position("events") == 9)
        assert [row.token for row in heard.rows] == rows
        assert [(gap.after, gap.upto) for gap in heard.gaps] == gaps


def test_a_stream_in_memory_begins_anew_and_a_stored_one_does_not(server):
    with hearing(server) as heard:
        subscribed(server)
        for stream in ("typing", "events"):
            server.publish(CHANNEL, f"POSITION {stream} master 5 5", f"RDATA {stream} master 6 [6]")
        wait_until(lambda: len(heard.rows) == 2)
        for stream in ("typing", "events"):
            server.publish(CHANNEL, f"POSITION {stream} master 0 0", f"RDATA {stream} master 1 [1]")
        server.publish(CHANNEL, "RDATA events master 7 [7]")
        wait_until(lambda: heard.position("events") == 7)
        assert [token for _, token, _ in heard.of("typing")] == [6, 1]
        assert [token for _, token, _ in heard.of("events")] == [6, 7]


@pytest.mark.parametrize("view", list(View))
def test_what_a_stream_holds_since_it_began_anew_is_fetched(server, view):
    answer = {"updates": [[1, [1]], [3, [3]]], "upto_token": 3, "limited": False}
    with scripted_http((200, json.dumps(answer).encode())) as http:
        catch_up = HttpCatchUp(HttpServers.parse([http.url]), writers_of=lambda stream: ["master"])
        with hearing(server, catch_up=catch_up, view=view) as heard:
            subscribed(server)
            server.publish(CHANNEL, "POSITION typing master 5 5", "RDATA typing master 6 [6]")
            wait_until(lambda: len(heard.rows) == 1)
            server.publish(CHANNEL, "POSITION typing master 3 3", "RDATA typing master 4 [4]")
            wait_until(lambda: len(heard.rows) == 4)
            assert [token for _, token, _ in heard.of("typing")] == [6, 1, 3, 4]
            assert heard.position("typing") == 4
    assert "from_token=0&upto_token=3" in http.paths[0]


def test_a_name_or_an_error_that_any_program_may_publish_does_not_end_a_follower(server):
    """One message ``SERVER evil`` ended all of them, with an error that blamed the address."""
    with hearing(server) as heard:
        subscribed(server)
        server.publish(CHANNEL, "POSITION events master 5 5", "SERVER evil", "ERROR lie", "RDATA events master 6 [6]")
        wait_until(lambda: heard.position("events") == 6)
        assert heard.error is None
        assert heard.follower.link.ignored == 2


def test_names_are_printed_without_what_a_terminal_obeys():
    row = FollowedRow("caches", "a\x1b[31m\u202e", 5, ["\x1b"])
    assert _plain_line(row) == b'caches a\\x1b[31m\\u202e 5 ["\\u001b"]\n'


def test_after_a_restart_of_redis_nothing_is_missed_in_silence(server):
    with hearing(server) as heard:
        subscribed(server)
        server.publish(CHANNEL, "POSITION events master 5 5", "RDATA events master 6 [6]")
        wait_until(lambda: heard.position("events") == 6)
        server.kill()
        server.start()
        subscribed(server)
        server.publish(CHANNEL, "POSITION events master 9 9", "RDATA events master 10 [10]")
        wait_until(lambda: heard.position("events") == 10)
        assert [row.token for row in heard.rows] == [6, 10]
        assert [(gap.after, gap.upto) for gap in heard.gaps] == [(6, 9)]
        assert heard.follower.connects == 2


def test_a_connection_that_is_cut_is_noticed_and_made_anew(server):
    with hearing(server) as heard:
        subscribed(server)
        server.command("CLIENT", "KILL", "TYPE", "pubsub")
        wait_until(lambda: heard.follower.connects == 2)
        subscribed(server)


def test_a_redis_that_hangs_is_noticed(server, monkeypatch):
    monkeypatch.setattr(subscriber, "PING_SECONDS", 0.2)
    monkeypatch.setattr(subscriber, "SILENCE_LIMIT_SECONDS", 1.0)
    with hearing(server) as heard:
        subscribed(server)
        first = wait_until(lambda: heard.follower.link)
        server.command("CLIENT", "PAUSE", "4000")
        wait_until(lambda: "nothing was received" in str(first._error))


@pytest.mark.parametrize(("limit", "most"), [("WAITING_LIMIT", 100), ("WAITING_LIMIT_BYTES", 2_800)])
def test_a_slow_handler_bounds_what_waits(server, monkeypatch, limit, most):
    monkeypatch.setattr(subscriber, limit, most)
    go_on = threading.Event()
    with hearing(server) as heard:

        async def slowly(rows) -> None:
            await asyncio.get_running_loop().run_in_executor(None, go_on.wait)
            heard.rows.extend(rows)

        heard.follower._handle = slowly
        try:
            subscribed(server)
            link = wait_until(lambda: heard.follower.link)
            server.publish(CHANNEL, "POSITION events master 5 5", "RDATA events master 6 [6]")
            wait_until(lambda: link._is_settled)
            server.publish(CHANNEL, *(f"RDATA events master {token:04} [0]" for token in range(7, 1_000)))
            wait_until(lambda: not link._has_room.is_set())
            assert len(link._waiting) == 100
        finally:
            go_on.set()
        wait_until(lambda: heard.position("events") == 999)
        assert [row.token for row in heard.rows] == list(range(6, 1_000))


def test_a_wrong_password_ends_the_follower(tmp_path, free_port):
    with redis_server(tmp_path, free_port, "--requirepass", "s3cret") as server:
        with hearing(server, url=f"redis://:wrong@127.0.0.1:{free_port}") as heard:
            wait_until(lambda: heard.error)
        assert isinstance(heard.error, RedisRefused)
        assert "wrong" not in str(heard.error).replace("WRONGPASS", "")
