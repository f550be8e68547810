"""A stored position above the sequence: nobody takes it for true, since the IDs up to it are still to be given out."""

from __future__ import annotations

import json

import pytest

from events.notifier import notifier
from streams.errors import WaitTimedOut
from streams.follow import Begin, Chunk, Handler, Reader
from streams.replication.protocol.ordering import View
from streams.replication.server.catch_up_view import RangeQuery, stream_updates
from streams.waiting import wait
from tests.integration.streams.cached_words import word
from tests.support.writing import fact_of_north, far_above, session, store_position, stream

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("view", list(View))
@pytest.mark.parametrize("begin", list(Begin))
def test_a_named_reader_misses_nothing(view, begin):
    seen: list[int] = []

    def handle(chunk: Chunk) -> None:
        seen.extend(fact.token for fact in chunk)

    reader = [Handler("caches", "r", handle, begin=begin, view=view)]
    first = fact_of_north()
    store_position(first)
    Reader("r", reader).catch_up()
    store_position(far_above())
    Reader("r", reader).catch_up()
    second = fact_of_north()
    store_position(second)
    Reader("r", reader).catch_up()
    assert seen == ([first, second] if begin is Begin.OLDEST else [second])


def test_a_new_reader_begins_where_facts_can_be():
    seen: list[int] = []
    first = fact_of_north()
    store_position(far_above())
    handler = Handler("caches", "r", lambda chunk: seen.extend(fact.token for fact in chunk), begin=Begin.NOW)
    Reader("r", [handler]).catch_up()
    second = fact_of_north()
    store_position(second)
    Reader("r", [handler]).catch_up()
    assert seen in ([second], [first, second])


def test_current_and_waiting():
    first = fact_of_north()
    store_position(far_above())
    assert stream().current().linear <= first
    assert stream().current().maximum("north") <= first
    with pytest.raises(WaitTimedOut):
        stream().wait_for(first + 1, 0.5)
    assert wait.views.get().seen("caches").linear <= first
    second = fact_of_north()
    store_position(second)
    assert second == first + 1


def test_who_asks_over_http_gets_what_there_is():
    """It asks up to where it was told; a position that is held lower must not hide facts up to there."""
    first = fact_of_north()
    store_position(far_above())
    told = json.loads(stream_updates(RangeQuery("caches", 0, first, "north")))
    assert [update[0] for update in told["updates"]] == [first]


def test_a_cache_that_is_filled_meanwhile():
    word.values.clear()
    store_position(far_above())
    assert word.kept.mark() is not None
    word.values["a",] = "old"
    token = fact_of_north()
    with session() as cursor:
        cursor.execute(
            "SET LOCAL streams.maintenance = on; "
            "UPDATE streams_cacheinvalidation SET cache_name = 'cached_words' WHERE stream_id = %s",
            [token],
        )
    store_position(token)
    assert stream().current().linear == token
    assert word.values == {}


def test_hot():
    first = fact_of_north()
    store_position(far_above())
    assert notifier.positions("default")["caches"].token.base <= first
