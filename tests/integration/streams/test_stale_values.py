"""No cached value is served after what made it old shows: orders of calls that once let one through."""

from __future__ import annotations

import random
import time
from bisect import bisect_right
from contextlib import suppress
from functools import partial

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, transaction

from streams import registry
from streams.caching import cached
from streams.follow import Begin, Chunk, Handler, Reader
from streams.reading import cache_feed, position_notifications
from streams.testing import forget_writers
from streams.writing import side_effects
from streams.writing.process import current_writer
from tests.integration.streams.cached_words import set_word, store_quietly, word
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import fact_of_north, in_thread, session, store_position

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("words")]


def read_word(key: str) -> str | None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT value FROM cached_words WHERE key = %s", [key])
        row = cursor.fetchone()
        return row[0] if row else None


@cached("stale_async")
async def word_async(key: str) -> str | None:
    return await sync_to_async(read_word, thread_sensitive=True)(key)


@cached("stale_made")
def get_or_make(key: str) -> str | None:
    """Changes what it reads."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE cached_words SET value = '1' WHERE key = %s", [key])
    get_or_make.invalidate(key)
    return read_word(key)


def change_of_north(key: str, value: str, name: str = "cached_words") -> int:
    """A writer of another process changes the word and invalidates, without a word by NOTIFY."""
    store_quietly(key, value)
    token = fact_of_north(name, key)
    store_position(token)
    return token


def wait_until_ended() -> None:
    """Until this process knows how its transactions ended."""
    wait_until(lambda: not side_effects._all_pending)


def test_a_value_that_was_prefilled_before_the_same_transaction_changed_it_again():
    word("other")
    with transaction.atomic():
        set_word("a", "1")
        word.prefill(("a",), "1")
        set_word("a", "2")
    assert read_word("a") == "2"
    assert word("a") == "2"


def test_prefilled_first_and_changed_then():
    word("other")
    with transaction.atomic():
        word.prefill(("a",), "1")
        set_word("a", "2")
    assert word("a") == "2"


def test_what_a_transaction_fills_in_and_takes_back():
    store_quietly("a", "0")
    word("other")
    with pytest.raises(RuntimeError), transaction.atomic():
        set_word("a", "1")
        with word.filling("a") as fill:
            fill(read_word("a"))
        raise RuntimeError
    wait_until_ended()
    assert word("a") == "0"


def test_async_in_a_transaction_that_is_taken_back():
    store_quietly("a", "0")
    assert async_to_sync(word_async)("a") == "0"
    with pytest.raises(RuntimeError), transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("UPDATE cached_words SET value = '1'")
        word_async.invalidate("a")
        assert async_to_sync(word_async)("a") == "1"
        raise RuntimeError
    wait_until_ended()
    assert async_to_sync(word_async)("a") == "0"


def test_async_in_a_transaction_that_fills_and_is_taken_back():
    store_quietly("a", "0")
    assert async_to_sync(word_async)("other") is None
    with pytest.raises(RuntimeError), transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("UPDATE cached_words SET value = '1'")
        word_async.invalidate("a")
        async_to_sync(word_async)("a")
        raise RuntimeError
    wait_until_ended()
    assert async_to_sync(word_async)("a") == "0"


@pytest.fixture
def deaf() -> None:
    assert cache_feed.is_hearing()
    cache_feed._feeds.get().watcher.stop()


def test_named_reader_in_a_process_that_writes_nothing(deaf):
    seen: list[str | None] = []
    store_quietly("a", "0")
    assert word("a") == "0"
    assert word.store._values[("a",)] == "0"
    change_of_north("a", "1")
    Reader("r", [Handler("caches", "r", lambda chunk: seen.append(word("a")), begin=Begin.OLDEST)]).catch_up()
    assert seen == ["1"]


def test_current_position_in_a_process_that_writes_nothing(deaf):
    store_quietly("a", "0")
    assert word("a") == "0"
    assert word.store._values[("a",)] == "0"
    token = change_of_north("a", "1")
    assert registry.get("caches").current().linear >= token
    assert word("a") == "1"


def test_a_commit_whose_answer_was_lost():
    """Another process takes the facts for complete before this one has learnt how its transaction ended."""
    set_word("a", "0")
    assert word("a") == "0"
    transaction.set_autocommit(False)
    try:
        token = set_word("a", "1")
        with current_writer().control_cursor():  # its own thread cannot ask how the transaction ended
            connection.connection.cursor().execute("COMMIT")  # Django has no answer, and calls no hook
            with session() as cursor:
                cursor.execute("UPDATE streams_streamposition SET position = %s WHERE stream = 'caches'", [token])
                position_notifications.notify_position(cursor, "caches", "master")
            registry.get("caches").wait_for(token, DEADLINE_SECONDS)
            seen: list[str | None] = []
            in_thread(lambda: seen.append(word("a"))).join()
        assert seen == ["1"]
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


def test_a_transaction_that_was_left_and_whose_end_nobody_told(monkeypatch):
    """A rolls back, and the writer is closed before it has asked how that ended: values are kept again at once."""
    set_word("k", "1")
    with suppress(ZeroDivisionError), transaction.atomic():
        set_word("k", "2")
        monkeypatch.setattr(current_writer(), "ask", lambda record: None)
        raise ZeroDivisionError
    forget_writers()
    wait_until(cache_feed.is_hearing)
    hits = word.store.counts.hits
    assert [word("k"), word("k")] == ["1", "1"]
    assert word.store.counts.hits == hits + 1
    assert not side_effects.is_changed_in_process("cached_words", ("k",))


def test_a_function_that_changes_what_it_reads_and_is_taken_back():
    store_quietly("a", "0")
    word("other")
    with pytest.raises(RuntimeError), transaction.atomic():
        assert get_or_make("a") == "1"
        raise RuntimeError
    wait_until_ended()
    assert get_or_make.store._values == {}
    assert read_word("a") == "0"


def test_a_savepoint_that_is_taken_back():
    store_quietly("a", "0")
    assert word("a") == "0"
    with transaction.atomic():
        with pytest.raises(RuntimeError), transaction.atomic():
            set_word("a", "1")
            word.prefill(("a",), "1")
            raise RuntimeError
        assert word("a") == "0"
    wait_until_ended()
    assert word("a") == "0"
    with transaction.atomic():
        set_word("a", "2")
        with pytest.raises(RuntimeError), transaction.atomic():
            set_word("a", "3")
            word.prefill(("a",), "3")
            raise RuntimeError
        word.prefill(("a",), "2")
    assert word("a") == "2"


KEYS = ("a", "b", "c")
SECONDS = 4.0


def raise_word(key: str, dice: random.Random) -> tuple[int, int]:
    """One change as sites make them: with savepoints, prefilled values and questions in between; (token, version)."""
    with transaction.atomic(), connection.cursor() as cursor:
        if dice.random() < 0.3:
            with suppress(RuntimeError), transaction.atomic():
                cursor.execute("UPDATE cached_words SET value = value::int + 1000000 WHERE key = %s", [key])
                word.invalidate(key)
                word(key)
                word.prefill((key,), "1000000")
                raise RuntimeError
        if dice.random() < 0.3:
            word(key)
        cursor.execute("UPDATE cached_words SET value = value::int + 1 WHERE key = %s RETURNING value", [key])
        version = cursor.fetchone()[0]
        if dice.random() < 0.2:
            word.prefill((key,), "0")
        token = word.invalidate(key)
        if dice.random() < 0.5:
            word(key)
        if dice.random() < 0.5:
            word.prefill((key,), version)
        if dice.random() < 0.2:
            raise RuntimeError
    return token, int(version)


Story = list[tuple[str, int, int]]


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
    caches = registry.get("caches")

    def write(seed: int) -> None:
        dice = random.Random(seed)
        while time.monotonic() < end:
            key = dice.choice(KEYS)
            with suppress(RuntimeError):
                done.append((key, *raise_word(key, dice)))

    def have_the_other_write() -> None:
        while time.monotonic() < end:
            token, version = elsewhere.ask("raise", "c").split()
            done.append(("c", int(token), int(version)))

    def look(seed: int) -> None:
        dice = random.Random(seed)
        while time.monotonic() < end:
            at, key = caches.current().linear, dice.choice(KEYS)
            seen.append((key, at, int(word(key) or 0)))

    def wait() -> None:
        while time.monotonic() < end:
            if done:
                key, token, _ = done[-1]
                caches.wait_for(token, DEADLINE_SECONDS)
                seen.append((key, token, int(word(key) or 0)))

    def handle(chunk: Chunk) -> None:
        for fact in chunk:
            for key in fact.rows[0][1]:
                seen.append((key, fact.token, int(word(key) or 0)))

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
    caches.wait_for(max(token for _, token, _ in done), DEADLINE_SECONDS)
    assert {key: word(key) for key in KEYS} == {key: read_word(key) for key in KEYS}


def test_current_position_of_a_room_state_cache(deaf):
    """Readers of ``current`` of the stream that changed the state, too."""
    from tests.integration.events.cached_topics import topic_of

    assert topic_of("!x:a.test") is None
    topic_of.store._values[("!x:a.test",)] = "old"
    token = fact_of_north("cs_cache_fake", "!x:a.test")
    store_position(token)
    assert registry.get("caches").current().linear >= token
    assert topic_of("!x:a.test") is None
