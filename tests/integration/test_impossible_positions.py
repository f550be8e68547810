"""A stored position above the sequence: nobody takes it for true, since the IDs up to it are still to be given out."""

from __future__ import annotations

import json

import pytest

from events.notifier import notifier
from streams.errors import WaitTimedOut
from streams.follow import Begin, Chunk, Handler, Reader
from streams.reading import cache_feed
from streams.replication.protocol.ordering import View
from streams.replication.server.http_catch_up import RangeQuery, stream_updates
from streams.waiting import wait
from tests.integration.cached_words import word
from tests.support.writing import session, stream

pytestmark = pytest.mark.django_db(transaction=True)
FAR = 1_000_000


def store(position: int) -> None:
    with session() as cursor:
        cursor.execute(
            "INSERT INTO streams_streamposition (stream, instance_name, position) VALUES ('caches', 'north', %s) "
            "ON CONFLICT (stream, instance_name) DO UPDATE SET position = excluded.position",
            [position],
        )


def fact_of_north() -> int:
    with session() as cursor:
        cursor.execute("SELECT nextval(%s)", [stream().declaration.sequence])
        token: int = cursor.fetchone()[0]
        cursor.execute(
            "INSERT INTO streams_cacheinvalidation (instance_name, stream_id, cache_name, keys) "
            "VALUES ('north', %s, 'x', '{a}')",
            [token],
        )
    return token


@pytest.mark.parametrize("view", list(View))
@pytest.mark.parametrize("begin", list(Begin))
def test_a_named_reader_misses_nothing(view, begin):
    seen: list[int] = []

    def handle(chunk: Chunk) -> None:
        seen.extend(fact.token for fact in chunk)

    reader = [Handler("caches", "r", handle, begin=begin, view=view)]
    first = fact_of_north()
    store(first)
    Reader("r", reader).catch_up()
    store(FAR)
    Reader("r", reader).catch_up()
    second = fact_of_north()
    store(second)
    Reader("r", reader).catch_up()
    assert seen == ([first, second] if begin is Begin.OLDEST else [second])


def test_a_new_reader_begins_where_facts_can_be():
    seen: list[int] = []
    first = fact_of_north()
    store(FAR)
    handler = Handler("caches", "r", lambda chunk: seen.extend(fact.token for fact in chunk), begin=Begin.NOW)
    Reader("r", [handler]).catch_up()
    second = fact_of_north()
    store(second)
    Reader("r", [handler]).catch_up()
    assert seen in ([second], [first, second])


def test_current_and_waiting():
    first = fact_of_north()
    store(FAR)
    assert stream().current().linear <= first
    assert stream().current().maximum("north") <= first
    with pytest.raises(WaitTimedOut):
        stream().wait_for(first + 1, 0.5)
    assert wait._views.get().seen("caches").linear <= first
    second = fact_of_north()
    store(second)
    assert second == first + 1


def test_who_asks_over_http_gets_what_there_is():
    """It asks up to where it was told; a position that is held lower must not hide facts up to there."""
    first = fact_of_north()
    store(FAR)
    told = json.loads(stream_updates(RangeQuery("caches", 0, first, "north")))
    assert [update[0] for update in told["updates"]] == [first]


def test_a_cache_that_is_filled_meanwhile():
    word.store.drop_all()
    store(FAR)
    assert cache_feed.is_hearing()
    word.store._values["a",] = "old"
    token = fact_of_north()
    with session() as cursor:
        cursor.execute("UPDATE streams_cacheinvalidation SET cache_name = 'cached_words' WHERE stream_id = %s", [token])
    store(token)
    assert stream().current().linear == token
    assert word.store._values == {}


def test_hot():
    first = fact_of_north()
    store(FAR)
    assert notifier.positions("default")["caches"].token.base <= first
