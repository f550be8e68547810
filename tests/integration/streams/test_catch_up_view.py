"""Catch-up over HTTP, server side: bodies, statuses and error codes as a real 1.43 server gives them."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from django.test import Client

from streams import registry
from streams.models import StreamPosition
from streams.replication.server import catch_up_view
from streams.replication.server.catch_up_view import TXN_ID_LIMIT, AnswerCache, RangeQuery
from tests.support import writing
from tests.support.waiting import wait_until
from tests.support.writing import as_instance, fact, stored, stream

pytestmark = pytest.mark.django_db(transaction=True)
PATH = "/_synapse/replication/get_repl_stream_updates"
_ids = iter(range(10**9))


@pytest.fixture(autouse=True)
def _fresh_cache(monkeypatch):
    monkeypatch.setattr(catch_up_view, "_cache", AnswerCache())


def ask(name: str, after: object, upto: object, txn_id: str | None = None, **headers: str):
    txn_id = txn_id or f"t{next(_ids)}"
    more = headers.pop("query", "")
    return Client(headers=headers).get(f"{PATH}/{name}/{txn_id}?from_token={after}&upto_token={upto}{more}")


def complete(ids: list[int], name: str = "caches", writer: str = "master") -> list[int]:
    """The same, once their writer's position covers them: until then nobody is told of them."""
    wait_until(lambda: writer in stored(name) and stored(name)[writer].position >= ids[-1])
    return ids


def append(count: int = 1, writer: str = "master") -> list[int]:
    return complete(writing.append(count), writer=writer)


def tokens(response) -> list[int]:
    return [update[0] for update in response.json()["updates"]]


def test_body_is_written_as_the_original_writes_it():
    (token,) = complete(stream().append(fact('n"\u2615')))
    ts = type(fact()).objects.get(stream_id=token).invalidation_ts
    response = ask("caches", token - 1, token)
    wanted = f'{{"updates":[[{token},["n\\"\\u2615",["k"],{ts}]]],"upto_token":{token},"limited":false}}'
    assert (response.status_code, response.content) == (200, wanted.encode())
    assert response["Content-Type"] == "application/json"


def test_an_empty_range_is_an_empty_answer():
    response = ask("caches", 20, 21)
    assert response.content == b'{"updates":[],"upto_token":21,"limited":false}'


@pytest.mark.parametrize(("after", "upto"), [(5, 5), (9, 3)])
def test_nothing_to_ask_for_is_an_empty_answer(after, upto):
    assert ask("caches", after, upto).content == b'{"updates":[],"upto_token":%d,"limited":false}' % upto


def test_the_widest_range_is_answered():
    [token] = append()
    answer = ask("caches", -(2**63), 2**63 - 1)
    assert (answer.status_code, tokens(answer)[-1:]) == (200, [token])


@pytest.mark.parametrize("name", ["a%00b", "a" * 201], ids=["NUL", "long"])
def test_a_writer_whose_name_cannot_be_one_is_refused(name):
    answer = ask("caches", 0, 5, query=f"&instance_name={name}")
    assert (answer.status_code, answer.json()["errcode"]) == (400, "M_INVALID_PARAM")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_what_is_not_get_is_told_so_without_cookies(method):
    client = Client(enforce_csrf_checks=True)
    answer = client.generic(method, f"{PATH}/caches/t{next(_ids)}?from_token=0&upto_token=5")
    assert (answer.status_code, answer.json()["errcode"]) == (405, "M_UNRECOGNIZED")


def test_every_stream_answers():
    for name in registry.names():
        assert ask(name, 0, 10**6).json() == {"updates": [], "upto_token": ask_position(name), "limited": False}, name


def ask_position(name: str) -> int:
    return 1 if name == "presence_federation" else 10**6


def test_an_unknown_stream_is_refused_as_recorded():
    response = ask("nosuch", 0, 5)
    assert (response.status_code, response.content) == (400, b'{"errcode":"M_UNKNOWN","error":"Unknown stream"}')


@pytest.mark.parametrize(
    ("url", "status", "code"),
    [
        ("/caches/t?upto_token=5", 400, "M_MISSING_PARAM"),
        ("/caches/t?from_token=5", 400, "M_MISSING_PARAM"),
        ("/caches/t?from_token=x&upto_token=5", 400, "M_INVALID_PARAM"),
        ("/caches/t?from_token=0&upto_token=9223372036854775808", 400, "M_INVALID_PARAM"),
        ("/caches?from_token=0&upto_token=5", 400, "M_UNRECOGNIZED"),
        ("/caches/?from_token=0&upto_token=5", 400, "M_UNRECOGNIZED"),
        ("/caches/t/u?from_token=0&upto_token=5", 400, "M_UNRECOGNIZED"),
        ("?from_token=0&upto_token=5", 400, "M_UNRECOGNIZED"),
        ("/../presence_set_state/x", 400, "M_UNRECOGNIZED"),
        (f"/caches/{'t' * 201}?from_token=0&upto_token=5", 400, "M_UNRECOGNIZED"),
    ],
)
def test_bad_questions_have_their_error_codes(url, status, code):
    response = Client().get(PATH + url)
    assert (response.status_code, response.json()["errcode"]) == (status, code)
    assert response.json()["error"]


def test_other_methods_are_refused():
    assert Client().post(f"{PATH}/caches/t?from_token=0&upto_token=5").status_code == 405


def test_a_stream_that_is_told_under_one_name_is_asked_for_by_it_whoever_wrote():
    """Who follows knows that name alone; the facts of all others would be missed."""
    typing = registry.get("typing")
    with as_instance("web-1"):
        [token] = complete(typing.append(typing.models[0](**typing.sample(1, 1))), "typing", "web-1")
        by_name = ask("typing", 0, token, query="&instance_name=master").json()["updates"]
        with_names = ask("typing", 0, token, query="&with_instances=true").json()["updates"]
    assert [update[0] for update in by_name] == [token]
    assert [update[2] for update in with_names] == ["master"]


# --- whole tokens, bounded answers --------------------------------------------------------------------------------


def walk(name: str, after: int, upto: int) -> tuple[list[int], int]:
    """All tokens as a client collects them, and the number of answers."""
    found, answers = [], 0
    while True:
        body = ask(name, after, upto).json()
        assert body["upto_token"] > after
        found += [update[0] for update in body["updates"]]
        answers, after = answers + 1, body["upto_token"]
        if not body["limited"]:
            assert after == upto
            return found, answers


def test_limited_answers_hold_whole_tokens_and_lose_nothing(monkeypatch):
    monkeypatch.setattr(catch_up_view, "ROWS_PER_ANSWER", 4)
    with stream().reserve(6) as reservation:
        for number in reservation.ids:
            for _ in range(3):
                row = fact()
                row.stream_id = number
                reservation.write(row)
    ids = complete(reservation.ids)
    found, answers = walk("caches", ids[0] - 1, ids[-1])
    assert found == [number for number in ids for _ in range(3)]
    assert answers > 3


def test_an_answer_is_cut_at_its_size(monkeypatch):
    monkeypatch.setattr(catch_up_view, "ANSWER_LIMIT_BYTES", 20_000)
    written = complete(stream().append(*(fact("x" * 9_000) for _ in range(9))))
    found, answers = walk("caches", written[0] - 1, written[-1])
    assert found == written
    assert answers == 3


def test_rows_above_their_writers_position_are_not_told():
    """A committed row with an earlier one pending behind it is not complete yet."""
    written = append(3)
    StreamPosition.objects.filter(stream="caches").update(position=written[1])
    assert tokens(ask("caches", written[0] - 1, written[-1])) == written[:2]


def test_one_writer_or_all():
    mine = append(2)
    with as_instance("south"):
        theirs = append(2, "south")
    after, upto = mine[0] - 1, theirs[-1]
    assert tokens(ask("caches", after, upto)) == mine + theirs
    assert tokens(ask("caches", after, upto, query="&instance_name=south")) == theirs
    named = ask("caches", after, upto, query="&with_instances=true").json()["updates"]
    assert [update[2] for update in named] == ["master"] * 2 + ["south"] * 2


# --- transaction IDs ----------------------------------------------------------------------------------------------


def test_an_equal_id_gets_the_answer_given_before():
    written = append()
    first = ask("caches", 1, written[0] + 1, "same").content
    append()
    assert ask("caches", 1, written[0] + 1, "same").content == first
    assert ask("caches", 1, written[0] + 1, "other").content != first


def test_an_equal_id_with_another_question_gets_its_own_answer():
    written = append(2)
    assert tokens(ask("caches", written[0] - 1, written[0], "same")) == written[:1]
    assert tokens(ask("caches", written[0], written[1], "same")) == written[1:]
    assert ask("backfill", 0, 5, "same").json()["updates"] == []


def test_answers_are_forgotten_after_half_an_hour():
    now = [0.0]
    cache, question = AnswerCache(lambda: now[0]), RangeQuery("caches", 0, 1)
    cache.keep("t", question, b"answer")
    now[0] = 30 * 60 - 1
    assert cache.get("t", question) == b"answer"
    now[0] += 2
    assert cache.get("t", question) is None


def test_the_cache_is_bounded_in_bytes():
    cache = AnswerCache(limit_bytes=24_000)
    for number in range(100):
        cache.keep(f"t{number}", RangeQuery("caches", number, number + 1), b"x" * 1_000)
    kept = [number for number in range(100) if cache.get(f"t{number}", RangeQuery("caches", number, number + 1))]
    assert kept == list(range(94, 100))


# --- who may ask --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "status"),
    [(None, 401), ("Bearer wrong", 403), ("Basic s3cret", 403), ("Bearer s3cret", 200), ("Bearer s3cret\u00e9", 403)],
)
def test_the_secret_is_asked_for_when_there_is_one(settings, header, status):
    settings.REPLSITE_REPLICATION_SECRET = "s3cret"
    response = ask("caches", 0, 1, **({"Authorization": header} if header else {}))
    assert response.status_code == status
    assert "s3cret" not in response.content.decode()


@pytest.mark.parametrize(
    ("address", "status"),
    [("127.0.0.1", 200), ("::1", 200), ("::ffff:10.1.2.3", 200), ("10.1.2.3", 200), ("10.2.0.1", 403)],
)
def test_without_a_secret_only_near_networks_may_ask(settings, address, status):
    settings.REPLSITE_PLAIN_NETWORKS = ["10.1.2.0/24"]
    response = Client(REMOTE_ADDR=address).get(f"{PATH}/caches/t?from_token=0&upto_token=1")
    assert response.status_code == status


def test_without_a_secret_nobody_may_ask_through_a_proxy():
    assert ask("caches", 0, 1, **{"X-Forwarded-For": "127.0.0.1"}).status_code == 403


def test_the_secret_is_not_shown_in_the_settings_object(settings):
    from streams.conf import stream_settings

    settings.REPLSITE_REPLICATION_SECRET = "s3cret"
    assert "s3cret" not in repr(stream_settings())


def test_a_database_that_is_away_is_no_empty_answer(monkeypatch):
    def away(*_: object, **__: object) -> None:
        raise catch_up_view.driver.OperationalError("gone")

    monkeypatch.setattr(catch_up_view.driver, "direct_connection", away)
    response = ask("caches", 0, 1)
    assert response.status_code == 503
    assert "updates" not in json.loads(response.content)


# --- trimmed ------------------------------------------------------------------------------------------------------


def test_below_the_low_water_mark_the_answer_says_resync():
    from streams.models import LowWaterMark

    written = append(5)
    CacheInvalidation = type(fact())
    CacheInvalidation.objects.writable().filter(stream_id__lte=written[2]).delete()
    LowWaterMark.objects.create(stream="caches", position=written[2], writers={"master": written[2]})
    gone = ask("caches", written[0], written[-1])
    assert (gone.status_code, gone.json()["errcode"]) == (410, "REPLSITE_RESYNC_NEEDED")
    assert "resync needed" in gone.json()["error"]
    assert tokens(ask("caches", written[2], written[-1])) == written[3:]


def test_a_stream_in_memory_that_began_anew_is_told_from_its_beginning():
    """As a 1.43 worker asks after a restart: from its old position down to the new one."""
    from streams import registry

    typing = registry.get("typing")
    written = complete(typing.append(*(typing.models[0](room_id=f"!{n}:a", user_ids=[]) for n in range(3))), "typing")
    assert tokens(ask("typing", 500, written[-1])) == written
    assert tokens(ask("caches", 500, 3)) == []


def test_the_memory_of_short_answers_to_long_questions_is_bounded():
    """Names of 16,000 characters were kept with answers of 45 bytes, and counted as nothing."""
    longest = "\U0001f600".ljust(TXN_ID_LIMIT, "a")
    tracemalloc.start()
    try:
        cache = AnswerCache(limit_bytes=1_000_000)
        for number in range(2_000):
            text = f"{number:06d}{longest}"[:TXN_ID_LIMIT]
            cache.keep(text, RangeQuery("caches", 10**9 + number, 10**9, text + "x"), b"{}" + str(number).encode())
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
