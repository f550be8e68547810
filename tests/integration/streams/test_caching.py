"""Cached functions on a real server: own transactions, other processes, races."""

from __future__ import annotations

import threading

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction

from streams import epochs, registry
from streams.caching import invalidate_room_state
from streams.catalog.models import CacheInvalidation, Presence
from streams.core.invalidation import Invalidation
from streams.db.driver import OperationalError
from streams.errors import BadCacheKey
from streams.load_generator import generator
from streams.models import StreamPosition
from streams.reading import cache_feed, watcher
from streams.reading.position_notifications import PositionNotification
from tests.integration.streams.cached_words import set_word, store_quietly, word, word_later
from tests.support.asked_process import AskedProcess
from tests.support.async_waiting import wait_for
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import cut, fact_of_north, in_thread, linear, session

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("words")]


# --- one process --------------------------------------------------------------------------------------------------


def test_value_is_computed_once():
    store_quietly("a", "1")
    assert word("a") == "1"
    store_quietly("a", "2")
    assert word("a") == "1"


def test_own_rollback_drops_nothing():
    set_word("a", "1")
    assert word("a") == "1"
    hits = word.store.counts.hits
    with pytest.raises(RuntimeError), transaction.atomic():
        set_word("a", "2")
        raise RuntimeError
    wait_until(lambda: word("a") == "1" and word.store.counts.hits > hits)


def test_transaction_sees_its_own_change_and_others_do_not():
    set_word("a", "1")
    assert word("a") == "1"
    seen: list[str | None] = []
    with transaction.atomic():
        set_word("a", "2")
        assert word("a") == "2"
        in_thread(lambda: seen.append(word("a"))).join()
    assert seen == ["1"]
    assert word("a") == "2"


def test_value_computed_before_the_commit_and_kept_after_does_not_survive():
    set_word("a", "1")
    computing, go_on = threading.Event(), threading.Event()
    original = word._function

    def slow(key: str) -> str | None:
        value = original(key)
        computing.set()
        go_on.wait(DEADLINE_SECONDS)
        return value

    word._function = slow
    try:
        thread = in_thread(lambda: word("a"))
        assert computing.wait(DEADLINE_SECONDS)
        set_word("a", "2")
        go_on.set()
        thread.join()
    finally:
        word._function = original
    assert word("a") == "2"


def test_all_values_are_dropped():
    store_quietly("a", "1")
    assert (word("a"), word("b")) == ("1", None)
    store_quietly("a", "2")
    word.invalidate_all()
    assert word("a") == "2"
    assert CacheInvalidation.objects.latest("stream_id").keys is None


def test_prefilled_value_is_kept_from_the_commit_on():
    word("other")  # begins to hear
    with transaction.atomic():
        set_word("a", "1")
        word.prefill(("a",), "filled")
    assert word("a") == "filled"


def test_prefilled_value_is_forgotten_with_a_rollback():
    store_quietly("a", "1")
    word("other")
    with pytest.raises(RuntimeError), transaction.atomic():
        word.prefill(("a",), "filled")
        raise RuntimeError
    assert word("a") == "1"
    wait_until(lambda: not word.store._tickets)


def test_prefilled_value_that_somebody_made_old_is_not_kept():
    word("other")
    with transaction.atomic():
        word.prefill(("a",), "filled")
        in_thread(lambda: set_word("a", "1") and None).join()
    assert word("a") == "1"


def test_filled_value_is_kept_unless_dropped_meanwhile():
    store_quietly("a", "1")
    word("other")
    with word.filling("a") as fill:
        fill("filled")
    assert word("a") == "filled"
    with word.filling("b") as fill:
        set_word("b", "2")
        fill("old")
    assert word("b") == "2"


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("way", ["call", "filling", "prefill"])
def test_a_transaction_with_one_snapshot_keeps_nothing(level, way):
    """Its level was believed to be that of Django's options, whatever the transaction, its role or its database said."""
    set_word("a", "1")
    word("other")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}; SELECT 1")
        in_thread(lambda: set_word("a", "2")).join()
        if way == "call":
            assert word("a") == "1"
        elif way == "filling":
            with word.filling("a") as fill:
                fill("1")
        else:
            word.prefill(["a"], "1")
    assert word("a") == "2"


def test_keys_are_strings():
    with pytest.raises(BadCacheKey, match="made of strings"):
        word(7)


async def test_async_function_is_kept_too():
    assert await word_later("a") == "async a"
    hits = word_later.store.counts.hits
    assert await word_later("a") == "async a"
    assert word_later.store.counts.hits == hits + 1
    await word_later.ainvalidate("a")
    assert word_later.store._values == {}
    await sync_to_async(connections.close_all, thread_sensitive=True)()


def test_state_of_a_room_travels_fifty_users_a_row():
    invalidate_room_state("!r:x", [f"@{n}:x" for n in range(60)])
    rows = CacheInvalidation.objects.order_by("stream_id").values_list("cache_name", "keys")
    assert [(name, len(keys)) for name, keys in rows] == [("cs_cache_fake", 51), ("cs_cache_fake", 11)]


def test_declared_stream_drops_with_its_rows(monkeypatch):
    stream = registry.get("push_rules")
    monkeypatch.setattr(stream, "drops", stream.drops)
    monkeypatch.setattr(stream, "dropped_caches", frozenset())
    stream.add_caches("streams_pushrulechange", {"cached_words": ["user_id"]})
    store_quietly("@a:x", "1")
    assert word("@a:x") == "1"
    store_quietly("@a:x", "2")
    from streams.homeserver.append import push_rules_changed

    push_rules_changed("@a:x")
    assert word("@a:x") == "2"


# --- several processes --------------------------------------------------------------------------------------------


def test_other_process_drops_before_it_sees_the_position(elsewhere):
    """The other process only reads. It may wait for our token, and from then on never sees the old value."""
    set_word("a", "0")
    assert elsewhere.ask("get", "a") == "0"
    for number in range(1, 20):
        token = set_word("a", str(number))
        assert elsewhere.ask("wait", str(token), "a") == str(number)
    hits, misses = map(int, elsewhere.ask("counts").split())
    assert misses >= 20 and hits == 0
    assert elsewhere.ask("get", "a") == "19"
    assert int(elsewhere.ask("counts").split()[0]) == 1


def test_change_in_another_process_is_heard_here(elsewhere):
    set_word("a", "0")
    assert word("a") == "0"
    for number in range(1, 10):
        token = int(elsewhere.ask("set", "a", str(number)))
        registry.get("caches").wait_for(token, DEADLINE_SECONDS)
        assert word("a") == str(number)


def test_made_up_invalidations_of_others_drop_nothing_here():
    store_quietly("a", "1")
    assert word("a") == "1"
    ids = generator("caches", 0).append(3)
    wait_until(lambda: linear() >= ids[-1])
    hits = word.store.counts.hits
    assert word("a") == "1" and word.store.counts.hits == hits + 1


# --- hearing ------------------------------------------------------------------------------------------------------


def feed() -> cache_feed.CacheFeed:
    assert cache_feed.is_hearing()
    return cache_feed._feeds.get()


def test_nothing_is_kept_while_the_connection_is_lost(monkeypatch):
    store_quietly("a", "1")
    assert word("a") == "1"
    feed().is_hearing = False
    store_quietly("a", "2")
    assert word("a") == "2"


def test_lost_connection_comes_back_and_catches_up():
    set_word("a", "1")
    assert word("a") == "1"
    listener = watcher.watcher_of()
    cut("replsite notifications positions")
    store_quietly("a", "2")
    wait_until(cache_feed.is_hearing)
    assert watcher.watcher_of() is listener
    set_word("a", "3")
    assert word("a") == "3"


def test_hearing_of_one_stream_does_not_make_up_for_what_another_one_missed(deaf, monkeypatch):
    """The drop before a position shows fails, so nothing is served; what is heard next may be older, and of another stream."""
    set_word("a", "0")
    own, real = feed().watcher, watcher.possible_positions
    assert word("a") == "0"
    store_quietly("a", "1")
    token = fact_of_north("cached_words")
    StreamPosition.objects.create(stream="caches", instance_name="north", position=token)

    def fail(cursor, names, known):
        raise OperationalError("terminating connection due to administrator command")

    monkeypatch.setattr(watcher, "possible_positions", fail)
    watcher.before_shown({"caches": {"north": watcher.NotifiedPosition(token)}})
    assert not cache_feed.is_hearing()
    monkeypatch.setattr(watcher, "possible_positions", real)
    own.heard([PositionNotification("push_rules", "north", 5)])
    assert cache_feed.is_hearing()
    assert word("a") == "1"


def test_values_of_before_a_restore_are_dropped():
    set_word("a", "1")
    assert word("a") == "1"
    with session() as cursor:
        epochs.current_epoch(cursor)
    cache_feed.stop_feeds()
    assert word("a") == "1"
    own = feed()
    store_quietly("a", "0")
    with session() as cursor:
        epochs.begin_epoch(cursor, "test")
    own.watcher.lost()
    own.watcher.heard([])
    assert word("a") == "0"


def test_too_far_behind_drops_everything(monkeypatch, elsewhere):
    monkeypatch.setattr(cache_feed, "MOST_ROWS", 0)
    store_quietly("b", "1")
    assert word("b") == "1"
    store_quietly("b", "2")
    token = int(elsewhere.ask("set", "a", "1"))
    registry.get("caches").wait_for(token, DEADLINE_SECONDS)
    assert word("b") == "2"


def unread_own() -> list[int]:
    """The own facts that the feed holds back for rows that it has still to read."""
    return [number for ids in feed()._own.values() for number in ids]


def test_own_facts_that_were_left_out_are_not_held_for_ever(monkeypatch):
    monkeypatch.setattr(cache_feed, "MOST_ROWS", 0)
    assert word("a") is None
    own = feed()
    token = set_word("a", "1")
    wait_until(lambda: token <= max(own._cursors["caches"].positions.values(), default=0))
    wait_until(lambda: not unread_own())


def test_own_facts_whose_rows_were_compacted_are_not_held_for_ever(monkeypatch):
    stream = registry.get("presence")
    monkeypatch.setattr(stream, "drops", stream.drops)
    monkeypatch.setattr(stream, "dropped_caches", frozenset())
    stream.add_caches("streams_presence", {"cached_words": ["user_id"]})
    assert word("@a:x") is None
    own = feed()
    with transaction.atomic():
        for state in ("online", "unavailable", "offline"):
            token = stream.append(Presence(user_id="@a:x", state=state))[0]
    wait_until(lambda: token <= max(own._cursors["presence"].positions.values(), default=0))
    wait_until(lambda: not unread_own())


def test_own_facts_of_a_former_generation_hide_none_of_the_next(monkeypatch, run_manage):
    """The next generation gives out the same IDs. A value stayed that another process had made old there."""
    stream = registry.get("typing")
    monkeypatch.setattr(stream, "drops", lambda row: [Invalidation("cached_words", None)])
    monkeypatch.setattr(stream, "dropped_caches", frozenset({"cached_words"}))
    append = ("append", "typing", "--count", "1", "--instance")
    assert run_manage(*append, "first").returncode == 0
    store_quietly("a", "1")
    assert word("a") == "1"
    late = cache_feed.own_ids("typing", feed().using)
    late.update(range(1, 10))  # of facts that are known to be committed, and not read yet
    store_quietly("a", "2")
    assert run_manage(*append, "second").returncode == 0
    wait_until(lambda: word("a") == "2")
    late.update(range(1, 10))  # of one that is known only now
    store_quietly("a", "3")
    assert run_manage(*append, "third").returncode == 0
    wait_until(lambda: word("a") == "3")


def test_rule_that_fails_drops_everything(monkeypatch, run_manage):
    stream = registry.get("push_rules")
    monkeypatch.setattr(stream, "drops", lambda row: 1 / 0)
    store_quietly("b", "1")
    assert word("b") == "1"
    store_quietly("b", "2")
    assert run_manage("append", "push_rules", "--count", "1", "--instance", "other").returncode == 0
    wait_until(lambda: word("b") == "2")


# --- nothing shows a position before the values that it makes old are gone ------------------------------------------


@pytest.fixture
def deaf() -> None:
    """The watcher's thread hears nothing, so that only what moves positions can have values dropped."""
    feed().watcher.stop()


def change_elsewhere(elsewhere: AskedProcess) -> int:
    set_word("a", "0")
    assert word("a") == "0"
    return int(elsewhere.ask("set", "a", "1"))


def test_tracker_of_a_writer_drops_first(deaf, elsewhere):
    token = change_elsewhere(elsewhere)
    from streams.writing.process import current_writer

    tracker = current_writer().tracker(registry.get("caches"))
    wait_until(lambda: tracker.position_of("other") >= token)
    assert word("a") == "1"


async def test_follower_drops_first(deaf, elsewhere, start_manage):
    import asyncio

    from streams.replication.client.follower import Follower, FollowerOptions
    from streams.replication.transport.addresses import Address
    from tests.support.wire_client import start_replication

    port = await asyncio.to_thread(start_replication, start_manage)
    seen: list[str | None] = []
    follower = Follower(
        FollowerOptions(address=Address("127.0.0.1", port), name="f", server_name="localhost", streams=("caches",)),
        lambda rows: seen.append(word.store._values.get(("a",), "gone")),
    )
    running = asyncio.create_task(follower.run())
    async with asyncio.timeout(60):
        await wait_for(lambda: follower.positions().get("caches"))
        await asyncio.to_thread(lambda: in_thread(lambda: change_elsewhere(elsewhere) and None).join())
        await wait_for(lambda: len(seen) >= 2)
    follower.finish()
    await running
    assert seen[-1] == "gone"
