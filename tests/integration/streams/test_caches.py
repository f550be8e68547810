"""Invalidations on a real server: what is kept, what drops it, and that no position shows before."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import pytest
from django.db import connection, transaction

from streams import caches, epochs, registry
from streams.caches import Kept, invalidate, invalidate_room_state
from streams.catalog.models import CacheInvalidation, PushRuleChange
from streams.db.driver import OperationalError
from streams.errors import BadCacheKey
from streams.follow import Begin, Chunk, Handler, Reader
from streams.load_generator import generator
from streams.maintenance.trim import Keep, TrimRequest, trim
from streams.models import StreamPosition
from streams.reading import watcher
from tests.integration.streams.cached_words import raise_word, set_word, store_quietly, word
from tests.support.asked_process import AskedProcess
from tests.support.async_waiting import wait_for
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import cut, fact_of_north, in_thread, linear, session, store_position, stored

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("words")]


def reaches(token: int, stream: str = "caches") -> None:
    registry.get(stream).wait_for(token, DEADLINE_SECONDS)


# --- one process --------------------------------------------------------------------------------------------------


def test_value_is_computed_once():
    store_quietly("a", "1")
    assert word("a") == "1"
    store_quietly("a", "2")
    assert word("a") == "1"


def test_own_commit_drops_it_before_its_position_shows():
    reaches(set_word("a", "1"))
    assert word("a") == "1"
    reaches(set_word("a", "2"))
    assert word("a") == "2"


def test_own_rollback_drops_nothing():
    feed()  # hears of its own facts from the first one on
    reaches(set_word("a", "1"))
    assert word("a") == "1"
    with pytest.raises(RuntimeError), transaction.atomic():
        set_word("a", "2")
        raise RuntimeError
    reaches(set_word("b", "1"))
    hits = word.hits
    assert (word("a"), word.hits) == ("1", hits + 1)


def in_db(key: str) -> str | None:
    return word.function(key)


def test_a_transaction_sees_its_own_change_and_others_do_not():
    """What it computes may be rolled back, so nothing of that is kept."""
    feed()  # hears of its own facts from the first one on
    reaches(set_word("a", "1"))
    assert word("a") == "1"
    seen: list[str | None] = []
    with pytest.raises(RuntimeError), transaction.atomic():
        mark = word.kept.mark()
        set_word("a", "2")
        assert word.kept.mark() is None and word("a") == "2"
        assert not word.kept.keep(mark, lambda: seen.append("kept"))
        in_thread(lambda: seen.append(word("a"))).join()
        raise RuntimeError
    assert (seen, word("a"), word.values) == (["1"], "1", {("a",): "1"})


def test_a_savepoint_that_is_taken_back():
    store_quietly("a", "0")
    assert word("a") == "0"
    with transaction.atomic():
        with pytest.raises(RuntimeError), transaction.atomic():
            set_word("a", "1")
            assert word("a") == "1"
            raise RuntimeError
        assert word("a") == "0"
    assert word("a") == "0"


def test_a_value_read_before_a_change_is_not_kept_after_it():
    """A reads the old value; B changes it and invalidates; then A would keep the old one for ever."""
    reaches(set_word("a", "1"))
    word("other")  # begins to listen
    read, go_on = threading.Event(), threading.Event()
    original = word.function

    def slow(key: str) -> str | None:
        value = original(key)
        read.set()
        go_on.wait(DEADLINE_SECONDS)
        return value

    word.function = slow
    try:
        thread = in_thread(lambda: word("a"))
        assert read.wait(DEADLINE_SECONDS)
        reaches(set_word("a", "2"))
        go_on.set()
        thread.join()
    finally:
        word.function = original
    assert word("a") == "2"


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_transaction_with_one_snapshot_keeps_nothing(level):
    """Its level was believed to be that of Django's options, whatever the transaction, its role or its database said."""
    reaches(set_word("a", "1"))
    word("other")  # begins to listen
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}; SELECT 1")
        in_thread(lambda: reaches(set_word("a", "2"))).join()
        assert word("a") == "1"
    assert word("a") == "2"


def test_all_values_are_dropped():
    store_quietly("a", "1")
    assert (word("a"), word("b")) == ("1", None)
    store_quietly("a", "2")
    reaches(invalidate("cached_words"))
    assert word("a") == "2"
    assert CacheInvalidation.objects.latest("stream_id").keys is None


@pytest.mark.parametrize("keys", ["4711", [4711], [None]])
def test_keys_are_lists_of_strings(keys):
    with pytest.raises(BadCacheKey, match="list of strings"):
        invalidate("cached_words", keys)


@pytest.mark.parametrize("keys", [(), ([],)])
def test_the_state_of_all_rooms_is_never_told(keys):
    """Workers of Synapse take such a row for an error."""
    with pytest.raises(BadCacheKey, match="invalidate_room_state"):
        invalidate("cs_cache_fake", *keys)


def test_state_of_a_room_travels_fifty_users_a_row():
    invalidate_room_state("!r:x", [f"@{n}:x" for n in range(60)])
    rows = CacheInvalidation.objects.order_by("stream_id").values_list("cache_name", "keys")
    assert [(name, len(keys)) for name, keys in rows] == [("cs_cache_fake", 51), ("cs_cache_fake", 11)]


def test_names_of_others_drop_nothing_here():
    store_quietly("a", "1")
    assert word("a") == "1"
    ids = generator("caches", 0).append(3)
    wait_until(lambda: linear() >= ids[-1])
    hits = word.hits
    assert (word("a"), word.hits) == ("1", hits + 1)


def test_nothing_is_served_until_a_cache_that_failed_was_cleared():
    away = True

    def clear() -> None:
        if away:
            raise ConnectionError("away")

    kept = Kept("failing_words", lambda keys: clear(), clear)
    try:
        assert kept.mark() is None
        away = False
        mark = kept.mark()
        assert mark is not None
        away = True
        reaches(invalidate("failing_words", ["a"])[0])
        assert kept.mark() is None and not kept.keep(mark, lambda: None)
        away = False
        assert kept.mark() is not None
    finally:
        kept.close()


@pytest.fixture
def failing() -> Iterator[list[str]]:
    """A cache whose ``drop`` fails, and how often it was cleared."""
    cleared: list[str] = []
    kept = Kept("cached_words", lambda keys: keys[7], lambda: cleared.append("cleared"))
    yield cleared
    kept.close()


def test_a_drop_that_fails_clears_that_cache_and_no_other_suffers(failing):
    reaches(set_word("a", "1"))
    assert word("a") == "1"
    reaches(set_word("a", "2"))
    assert word("a") == "2" and failing[-1:] == ["cleared"]


def test_a_forked_child_begins_with_nothing():
    store_quietly("a", "1")
    assert word("a") == "1"
    store_quietly("a", "2")
    held, end = threading.Event(), threading.Event()

    def hold() -> None:
        with word.kept._lock:
            held.set()
            end.wait(DEADLINE_SECONDS)

    holder = in_thread(hold)
    assert held.wait(DEADLINE_SECONDS)
    child = os.fork()
    if not child:
        code = 1
        signal.alarm(60)  # it may wait for a lock for ever
        try:
            connection.connection = None  # the parent's
            code = 0 if word.kept.mark() is not None and word("a") == "2" else 2
        finally:
            os._exit(code)
    end.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert word("a") == "1"


def test_what_an_earlier_process_kept_is_not_served():
    caches.stop_feeds()
    word.values["a",] = "of long ago"
    store_quietly("a", "1")
    assert word("a") == "1"


# --- the order ----------------------------------------------------------------------------------------------------


@contextmanager
def held_back() -> Iterator[None]:
    """The position of ``caches`` stays, because an append is open."""
    begun, end = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            invalidate("held")
            begun.set()
            end.wait(DEADLINE_SECONDS)

    holder = in_thread(hold)
    try:
        assert begun.wait(DEADLINE_SECONDS)
        yield
    finally:
        end.set()
        holder.join()


def test_it_is_dropped_before_the_position_of_another_stream_shows():
    """The position of ``caches`` is held back by an open append, while that of the other stream goes on."""
    store_quietly("a", "1")
    assert word("a") == "1"
    with held_back():
        with transaction.atomic():
            store_quietly("a", "2")
            later = word.invalidate("a")
            (token,) = registry.get("push_rules").append(PushRuleChange(user_id="@a:x"))
        reaches(token, "push_rules")
        assert linear() < later and word("a") == "2"
        dropped = word.dropped
    reaches(later)
    assert word("a") == "2" and word.dropped == dropped  # it was told once


def test_so_it_is_if_another_process_wrote_both(deaf):
    """Its position of ``caches`` does not move, because another append of it is open."""
    store_quietly("a", "1")
    assert word("a") == "1"
    store_quietly("a", "2")
    fact_of_north("cached_words", "a")
    (token,) = registry.get("push_rules").append(PushRuleChange(user_id="@a:x"))
    StreamPosition.objects.create(stream="push_rules", instance_name="north", position=token)
    assert registry.get("push_rules").current().maximum("north") >= token
    assert word("a") == "2"


def test_own_facts_are_noted_after_they_were_told():
    """Another process may find them complete before, and then what moves positions here must not skip them."""
    own, noted = feed(), []
    kept = Kept("noted_words", lambda keys: noted.append(set(own._applied)), lambda: None)
    try:
        (token,) = invalidate("noted_words", ["k"])
    finally:
        kept.close()
    assert token not in noted[0] and token in own._applied


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
    reaches(set_word("a", "0"))
    assert word("a") == "0"
    for number in range(1, 10):
        reaches(int(elsewhere.ask("set", "a", str(number))))
        assert word("a") == str(number)


@pytest.fixture
def deaf() -> None:
    """The watcher's thread hears nothing, so that only what moves positions can have values dropped."""
    feed().watcher.stop()


def test_current_position_in_a_process_that_writes_nothing(deaf):
    store_quietly("a", "0")
    assert word("a") == "0"
    store_quietly("a", "1")
    token = fact_of_north("cached_words", "a")
    store_position(token)
    assert registry.get("caches").current().linear >= token
    assert word("a") == "1"


def change_elsewhere(elsewhere: AskedProcess) -> int:
    set_word("a", "0")
    assert word("a") == "0"
    return int(elsewhere.ask("set", "a", "1"))


def test_named_reader_drops_first(deaf, elsewhere):
    seen: list[str | None] = []
    change_elsewhere(elsewhere)
    wait_until(lambda: linear() >= CacheInvalidation.objects.latest("stream_id").stream_id)
    handler = Handler("caches", "r", lambda chunk: seen.append(word("a")), begin=Begin.OLDEST)
    Reader("r", [handler]).catch_up()
    assert seen[-1] == "1"


async def test_follower_drops_first(deaf, elsewhere, start_manage):
    import asyncio

    from streams.replication.client.follower import Follower, FollowerOptions
    from streams.replication.transport.addresses import Address
    from tests.support.wire_client import start_replication

    port = await asyncio.to_thread(start_replication, start_manage)
    seen: list[str | None] = []
    follower = Follower(
        FollowerOptions(address=Address("127.0.0.1", port), name="f", server_name="localhost", streams=("caches",)),
        lambda rows: seen.extend(word.values.get(("a",), "gone") for _ in rows),  # two facts may come together
    )
    running = asyncio.create_task(follower.run())
    async with asyncio.timeout(60):
        await wait_for(lambda: follower.positions().get("caches"))
        await asyncio.to_thread(lambda: in_thread(lambda: change_elsewhere(elsewhere) and None).join())
        await wait_for(lambda: len(seen) >= 2)
    follower.finish()
    await running
    assert seen[-1] == "gone"


# --- hearing ------------------------------------------------------------------------------------------------------


def feed() -> caches._Feed:
    assert word.kept.mark() is not None
    found = caches._feeds.get()
    assert found is not None
    return found


def test_nothing_is_kept_while_the_connection_is_lost():
    store_quietly("a", "1")
    assert word("a") == "1"
    feed().is_current = False
    store_quietly("a", "2")
    assert word("a") == "2" and word.kept.mark() is None


def test_lost_connection_comes_back_and_catches_up():
    reaches(set_word("a", "1"))
    assert word("a") == "1"
    listener = watcher.watcher_of()
    cut("replsite notifications positions")
    reaches(set_word("a", "2"))
    wait_until(lambda: word.kept.mark() is not None)
    assert watcher.watcher_of() is listener
    assert word("a") == "2"


def test_hearing_of_one_stream_does_not_make_up_for_what_another_one_missed(deaf, monkeypatch):
    """The drop before a position shows fails, so nothing is served; what is heard next may be older, and of another stream."""
    set_word("a", "0")
    own, real = feed().watcher, watcher.possible_positions
    assert word("a") == "0"
    store_quietly("a", "1")
    token = fact_of_north("cached_words")
    StreamPosition.objects.create(stream="caches", instance_name="north", position=token)

    def fail(cursor, names, known, **options):
        raise OperationalError("terminating connection due to administrator command")

    monkeypatch.setattr(watcher, "possible_positions", fail)
    watcher.before_shown({"caches": stored()})
    assert word.kept.mark() is None
    monkeypatch.setattr(watcher, "possible_positions", real)
    own.apply_and_publish(["push_rules"])
    assert word("a") == "1"


def test_values_of_before_a_restore_are_dropped():
    reaches(set_word("a", "1"))
    with session() as cursor:
        epochs.current_epoch(cursor)
    caches.stop_feeds()
    assert word("a") == "1"
    own = feed()
    store_quietly("a", "0")
    with session() as cursor:
        epochs.begin_epoch(cursor, "test")
    own.watcher.lost()
    own.watcher.apply_and_publish([])
    assert word("a") == "0"


def test_too_far_behind_drops_everything(monkeypatch, elsewhere):
    monkeypatch.setattr(caches, "MOST_FACTS", 0)
    store_quietly("b", "1")
    assert word("b") == "1"
    store_quietly("b", "2")
    reaches(int(elsewhere.ask("set", "a", "1")))
    assert word("b") == "2"


def test_many_facts_above_a_position_that_is_held_back_hide_no_newer_one(monkeypatch, elsewhere):
    """Only so many facts were read, also of those that were told: what came behind them was never told."""
    monkeypatch.setattr(caches, "MOST_FACTS", 3)
    store_quietly("a", "0")
    assert word("a") == "0"

    def set_elsewhere(number: int) -> None:
        token = int(elsewhere.ask("set", "a", str(number)))
        wait_until(lambda: (at := stored("caches").get("other")) and at.position >= token)

    set_elsewhere(0)  # behind an open append, no first fact of a writer is found: of this process neither
    invalidate("others")
    wait_until(lambda: "master" in stored("caches"))
    with held_back():
        for number in range(1, 8):
            set_elsewhere(number)
            registry.get("caches").current()
            assert word("a") == str(number)
    assert len(feed()._applied) <= 3
    invalidate("others", *(["k"] for _ in range(10)))
    assert len(feed()._applied) <= 3


def test_facts_that_are_told_meanwhile_stop_no_feed():
    """Threads that commit note their facts while the watcher's thread lets go of old ones: a set changed in a loop over it."""
    own, ended, failed = feed(), threading.Event(), []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def note() -> None:
        for first in range(0, 40_000, 10):
            own.record_applied(range(first, first + 10))
        ended.set()

    def look() -> None:
        try:
            while not ended.is_set():
                with own.watcher.cursor() as cursor:
                    own.apply(cursor, {"caches": {}}, everything=False)
        except RuntimeError as error:
            failed.append(error)

    try:
        for thread in [in_thread(note), in_thread(look)]:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failed


def test_what_a_restore_lets_in_is_not_kept(monkeypatch):
    """Read between the clearing and the look at the positions: the floor rose over its invalidation, which nobody told."""
    reaches(set_word("a", "1"))
    own, real = feed(), caches._Feed.restored

    def restored(self: caches._Feed) -> None:
        real(self)
        word.values.clear()
        assert word("a") == "1"
        store_quietly("a", "2")
        store_position(fact_of_north("cached_words", "a"))

    monkeypatch.setattr(caches._Feed, "restored", restored)
    with own.watcher._applying:
        own.watcher._restored()
    own.watcher.apply_and_publish([])
    assert word("a") == "2"


def test_what_was_trimmed_while_nothing_was_heard_drops_everything(elsewhere):
    store_quietly("a", "1")
    assert word("a") == "1"
    own = feed()
    own.watcher.stop()
    own.is_current = False
    token = int(elsewhere.ask("set", "a", "2"))
    wait_until(lambda: linear() >= token)
    with session() as cursor:
        request = TrimRequest(registry.get("caches"), Keep(facts=0), settle_seconds=0)
        assert list(trim(cursor, request, lambda seconds: None))
    own.watcher.apply_and_publish([])
    assert word("a") == "2"


@pytest.mark.parametrize("hears", [False, True])
def test_what_was_trimmed_before_it_was_read_drops_everything_too(elsewhere, hears):
    """A process that stood still for long keeps its connection, and reads what it heard long ago."""
    store_quietly("a", "1")
    assert word("a") == "1"
    own = feed()
    own.watcher.stop()
    token = int(elsewhere.ask("set", "a", "2"))
    with session() as cursor:
        wait_until(lambda: linear() >= token)
        request = TrimRequest(registry.get("caches"), Keep(facts=0), settle_seconds=0)
        assert list(trim(cursor, request, lambda seconds: None))
    own.watcher.apply_and_publish(["caches"] if hears else [])
    assert word("a") == "2"


# --- all of it at once --------------------------------------------------------------------------------------------

KEYS = ("a", "b", "c")
SECONDS = 4.0
Story = list[tuple[str, int, int]]


def change(key: str, dice: random.Random) -> tuple[int, int]:
    """One change as sites make them, with savepoints and questions in between; (token, version)."""
    with transaction.atomic(), connection.cursor() as cursor:
        if dice.random() < 0.3:
            with suppress(RuntimeError), transaction.atomic():
                cursor.execute("UPDATE cached_words SET value = value::int + 1000000 WHERE key = %s", [key])
                word.invalidate(key)
                word(key)
                raise RuntimeError
        if dice.random() < 0.3:
            word(key)
        token, version = raise_word(key)
        if dice.random() < 0.5:
            word(key)
        if dice.random() < 0.2:
            raise RuntimeError
    return token, int(version)


def check(done: Story, seen: Story) -> None:
    """Each version seen at a position is at least that of the last change up to there."""
    newest = {key: sorted((token, version) for k, token, version in done if k == key) for key in KEYS}
    for key, at, version in seen:
        place = bisect_right(newest[key], (at, 1_000_000_000))
        assert version >= (newest[key][place - 1][1] if place else 0), (key, at, version)
        assert version < 1_000_000  # never what was taken back


def test_no_value_is_older_than_a_position_that_showed(elsewhere):
    """Writers in two processes; readers that go by ``current``, by ``wait_for`` and by what a named reader is handed."""
    for key in KEYS:
        store_quietly(key, "0")
    done: Story = []
    seen: Story = []
    end = time.monotonic() + SECONDS
    stream = registry.get("caches")

    def write(seed: int) -> None:
        dice = random.Random(seed)
        while time.monotonic() < end:
            key = dice.choice(KEYS)
            with suppress(RuntimeError):
                done.append((key, *change(key, dice)))

    def have_the_other_write() -> None:
        while time.monotonic() < end:
            token, version = elsewhere.ask("raise", "c").split()
            done.append(("c", int(token), int(version)))

    def look(seed: int) -> None:
        dice = random.Random(seed)
        while time.monotonic() < end:
            at, key = stream.current().linear, dice.choice(KEYS)
            seen.append((key, at, int(word(key))))

    def wait() -> None:
        while time.monotonic() < end:
            if done:
                key, token, _ = done[-1]
                stream.wait_for(token, DEADLINE_SECONDS)
                seen.append((key, token, int(word(key))))

    def handle(chunk: Chunk) -> None:
        for fact in chunk:
            for key in fact.rows[0][1]:
                seen.append((key, fact.token, int(word(key))))

    reader = Reader("stale", [Handler("caches", "stale", handle, begin=Begin.NOW, chunk_rows=5)])
    threads = [in_thread(work) for work in (*(partial(write, n) for n in (1, 2)), have_the_other_write, wait)]
    threads += [in_thread(partial(look, n)) for n in (3, 4)]
    follows = in_thread(reader.run)
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    reader.stop()
    follows.join(DEADLINE_SECONDS)
    assert len(done) > 20 and len(seen) > 100
    check(done, seen)
    reaches(max(token for _, token, _ in done))
    assert {key: word(key) for key in KEYS} == {key: in_db(key) for key in KEYS}
