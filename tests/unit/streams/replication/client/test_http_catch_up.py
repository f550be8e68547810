"""The client of catch-up over HTTP: what it makes of answers, refusals and servers that fail."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import parse_qs, urlsplit

import pytest

from streams.errors import ResyncNeeded
from streams.replication.client import http_catch_up
from streams.replication.client.http_catch_up import HttpCatchUp, HttpServer, HttpServers
from streams.replication.errors import BadAddress, CatchUpError, GapError
from streams.replication.protocol.ordering import FollowedRow
from tests.support.scripted_http import ScriptedHttp, scripted_http


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch):
    monkeypatch.setattr(http_catch_up, "FIRST_RETRY_SECONDS", 0.001)


def answer(updates: list, upto: int, limited: bool = False) -> tuple[int, bytes]:
    return 200, json.dumps({"updates": updates, "upto_token": upto, "limited": limited}).encode()


def refusal(status: int, code: str = "M_UNKNOWN", error: str = "no") -> tuple[int, bytes]:
    return status, json.dumps({"errcode": code, "error": error}).encode()


def fetch(server: ScriptedHttp | str, writer: str | None = "w", after: int = 0, upto: int = 10, **more):
    async def run():
        url = server if isinstance(server, str) else server.url
        catch_up = HttpCatchUp(HttpServers.parse([url]), **more)
        try:
            return await catch_up.fetch("typing", writer, after, upto, 5_000)
        finally:
            await catch_up.close()

    return asyncio.run(run())


def test_rows_are_the_writers_and_reach_the_wanted_end():
    with scripted_http(answer([[3, ["a"]], [7, ["b"]]], 10)) as server:
        rows = [FollowedRow("typing", "w", 3, ["a"]), FollowedRow("typing", "w", 7, ["b"])]
        assert fetch(server) == (rows, 10)


def test_a_limited_answer_reaches_its_own_end():
    with scripted_http(answer([[3, []]], 3, limited=True)) as server:
        assert fetch(server)[1] == 3


def test_an_answer_with_the_servers_own_lower_position_leaves_nothing():
    """As 1.43 answers for presence_federation."""
    with scripted_http(answer([[2, []]], 2)) as server:
        assert fetch(server)[1] == 10


def test_the_request_is_that_of_a_worker():
    with scripted_http(answer([], 10)) as server:
        fetch(server, secret="s3cret")
        fetch(server, writer=None)
    first, second = (urlsplit(path) for path in server.paths)
    assert first.path.startswith("/_synapse/replication/get_repl_stream_updates/typing/")
    assert parse_qs(first.query) == {"from_token": ["0"], "upto_token": ["10"], "instance_name": ["w"]}
    assert parse_qs(second.query)["with_instances"] == ["true"]
    assert first.path != second.path
    assert server.secrets == ["Bearer s3cret", None]


def test_rows_out_of_order_and_out_of_range_are_put_right():
    """1.43 sends device_lists unordered, and rows of caches beyond the wanted end."""
    with scripted_http(answer([[5, ["b"]], [2, ["a"]], [11, ["c"]], [0, ["d"]]], 10)) as server:
        assert [row.token for row in fetch(server)[0]] == [2, 5]


def test_rows_of_all_writers_carry_their_names():
    with scripted_http(answer([[3, ["a"], "north"], [4, ["b"], "south"]], 10)) as server:
        assert [row.instance for row in fetch(server, writer=None)[0]] == ["north", "south"]


def test_rows_without_names_are_those_of_the_only_writer_known():
    with scripted_http(answer([[3, ["a"]]], 10)) as server:
        assert fetch(server, writer=None, writers_of=lambda stream: ["master"])[0][0].instance == "master"
        with pytest.raises(GapError, match="--view writer"):
            fetch(server, writer=None, writers_of=lambda stream: ["a", "b"])


@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_passing_trouble_is_tried_again_under_the_same_id(status):
    with scripted_http(refusal(status), refusal(status), answer([[3, []]], 10)) as server:
        assert fetch(server)[1] == 10
    assert len(server.paths) == 3
    assert len(set(server.paths)) == 1


def test_trouble_that_stays_is_told_and_may_be_tried_later():
    with scripted_http(refusal(503, error="the database is away")) as server, pytest.raises(CatchUpError) as error:
        fetch(server)
    assert "(0, 10]" in str(error.value)
    assert "the database is away" in str(error.value)


def test_an_error_in_words_that_cannot_be_read_is_told():
    """It ended the follower, which was to try again."""
    body = b'{"error":%s}' % (b"[" * 2_000)
    with scripted_http((503, body)) as server, pytest.raises(CatchUpError, match="answers 503"):
        fetch(server)


def test_a_server_that_is_not_there_is_told(free_port):
    with pytest.raises(CatchUpError, match="cannot be asked"):
        fetch(f"http://127.0.0.1:{free_port}")


@pytest.mark.parametrize(
    ("status", "remedy"), [(400, ""), (401, "--secret-file"), (403, "--secret-file"), (404, ""), (301, "")]
)
def test_a_refusal_is_a_gap_that_is_never_passed_over(status, remedy):
    with scripted_http(refusal(status, error="Unknown stream\x1b[2J")) as server, pytest.raises(GapError) as error:
        fetch(server)
    assert remedy in str(error.value)
    assert str(status) in str(error.value)
    assert str(error.value).isprintable()
    assert len(server.paths) == 1


def test_below_the_low_water_mark_a_resync_is_needed():
    with (
        scripted_http(refusal(410, error="resync needed")) as server,
        pytest.raises(ResyncNeeded, match="resync needed"),
    ):
        fetch(server)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b'{"updates":[]}',
        b'{"updates":[[1]],"upto_token":10,"limited":false}',
        b'{"updates":[["x",[]]],"upto_token":10,"limited":false}',
        b'{"updates":[[true,[]]],"upto_token":10,"limited":false}',
        b'{"updates":[],"upto_token":0,"limited":true}',
        b'{"updates":[],"upto_token":99,"limited":true}',
        b'{"updates":[[3,[],5]],"upto_token":10,"limited":false}',
        b'{"updates":[[3,[],["w"]]],"upto_token":10,"limited":false}',
        b"[" * 100_000,
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(body):
    with scripted_http((200, body)) as server, pytest.raises(GapError):
        fetch(server)


def test_an_endless_answer_does_not_fill_memory(monkeypatch):
    monkeypatch.setattr(http_catch_up, "ANSWER_LIMIT_BYTES", 1_000)
    with scripted_http((200, b" " * 5_000)) as server, pytest.raises(CatchUpError, match="longer than 1000"):
        fetch(server)


@pytest.mark.parametrize(
    "url", ["", "example.org:80", "ftp://a", "http://", "http://a:x", "http://u:p@a", "http://a?b=c"]
)
def test_urls_that_cannot_be(url):
    with pytest.raises(BadAddress, match="--catch-up-url"):
        HttpServers.parse([url])


def test_servers_by_writer():
    servers = HttpServers.parse(["http://main:9093", "persister1=https://[::1]/sub/"])
    assert str(servers.server_for("events", "master")) == "http://main:9093"
    assert str(servers.server_for("events", "persister1")) == "https://[::1]:443/sub"
    assert servers.server_for("events", None) == HttpServer("main", 9093)
    with pytest.raises(BadAddress, match="WRITER=URL"):
        HttpServers.parse(["http://a", "http://b"])
    with pytest.raises(GapError, match="--catch-up-url other=URL"):
        HttpServers.parse(["persister1=http://a"]).server_for("events", "other")


def test_a_fact_of_another_writer_than_asked_for_is_refused():
    """It was handed out as that writer's, and came once more with that writer's own announcement."""
    with scripted_http(answer([[3, ["a"], "w"], [4, ["b"], "south"]], 10)) as server:
        with pytest.raises(GapError, match="a fact of writer 'south' in the place of one"):
            fetch(server)
        assert len(fetch(server, writer=None)[0]) == 2


def test_a_row_that_could_not_be_sent_on_is_refused():
    """Rows of the wire end at 900 levels, and those over HTTP came with up to 950: no recording got past them."""
    for depth in (900, 901, 945):
        body = b'{"updates":[[3,%s]],"upto_token":10,"limited":false}' % (b"[" * depth + b"]" * depth)
        with scripted_http((200, body)) as server:
            if depth == 900:
                assert len(fetch(server)[0]) == 1
            else:
                with pytest.raises(GapError, match="deeper than 900 levels"):
                    fetch(server)
