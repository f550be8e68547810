"""One thread and its connections serve all that follow positions in a process, in order, and nobody misses anything."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections

from events.notifier import notifier
from events.notifier.feed import NotifierFeed
from streams import caches, epochs, registry
from streams.reading import looker, watcher
from streams.reading.hints import send_payloads
from streams.reading.rows import stored_positions
from streams.reading.watcher import Found, Rank, Subscriber, Subscriptions
from streams.waiting import wait
from tests.integration.streams.cached_words import store_quietly, word
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import append, cut, give_out, in_thread, session, sessions, stream

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("words")]

ALICE = "@alice:x"


@pytest.fixture
def north(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The row of a writer that nobody raises, as nobody looks; returns how to store and tell a position of it."""
    monkeypatch.setattr(looker, "join", lambda *_: None)
    with session() as cursor:
        cursor.execute(
            "INSERT INTO streams_streamposition (stream, instance_name, position) VALUES ('caches', 'north', 1)"
        )
        give_out(100)

        def announce(position: int) -> None:
            cursor.execute("UPDATE streams_streamposition SET position = %s WHERE instance_name = 'north'", [position])
            send_payloads(cursor, ["caches"])

        yield announce


class Recorder(Subscriber):
    """Writes down how it is called."""

    def apply(self, cursor: Any, found: Found, *, everything: bool) -> None:
        if failing := FAILS.pop(type(self), None):
            raise failing
        self.note("before", "everything" if everything else self.north(found))

    def publish(self, found: Found) -> None:
        self.note("shown", self.north(found))

    def lost(self, error: BaseException | None) -> None:
        self.note("lost", error)

    def restored(self) -> None:
        self.note("restored", None)

    def note(self, what: str, given: Any) -> None:
        CALLS.append((type(self).__name__, what, given))

    @staticmethod
    def north(found: Found) -> int | None:
        at = found.get("caches", {}).get("north")
        return None if at is None else at.position


class First(Recorder):
    rank = Rank.CACHES


class Second(Recorder):
    rank = Rank.NOTIFIER


class Last(Recorder):
    rank = Rank.WAITERS


CALLS: list[tuple[str, str, Any]] = []
FAILS: dict[type, Exception] = {}
_recorders = [Subscriptions(kind) for kind in (Last, Second, First)]  # subscribed in another order than they are called


@pytest.fixture
def recorders() -> Iterator[list[tuple[str, str, Any]]]:
    for kind in _recorders:
        kind.obtain()
    wait_until(lambda: ("Last", "shown", None) in CALLS or ("Last", "shown", 1) in CALLS)
    CALLS.clear()
    yield CALLS
    for kind in _recorders:
        kind.stop()
    FAILS.clear()
    CALLS.clear()


def everybody() -> watcher.PositionWatcher:
    """Cached values, callers that wait, and the notifier follow the positions."""
    word("a")
    stream().wait_for(0)
    notifier.positions()
    found = watcher.watcher_of()
    assert found is not None
    return found


def own_connections() -> set[str]:
    names = ("replsite notifications", "replsite positions", "replsite rooms of users")
    return {name for name in sessions("replsite %").values() if name.startswith(names)}


def listeners() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("replsite-notifications")]


# --- one for all ----------------------------------------------------------------------------------------------------


def test_everybody_shares_one_thread_and_its_connections(north):
    everybody()
    notifier.look(ALICE, registry.get("events").current().token())
    assert own_connections() == {
        "replsite notifications positions",
        "replsite positions",
        "replsite rooms of users",
    }
    assert len(listeners()) == 1


def test_it_ends_with_the_last_one():
    everybody()
    wait.forget_views()
    notifier.stop_feeds()
    assert watcher.watcher_of() is not None
    caches.stop_feeds()
    assert watcher.watcher_of() is None
    assert listeners() == []
    wait_until(lambda: not own_connections())


def test_child_of_a_fork_has_one_of_its_own():
    everybody()
    append()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            connections["default"].connection = None  # the parent's
            empty = watcher.watcher_of() is None and caches._feeds.get() is None
            everybody()
            code = 0 if empty and word.kept.mark() is not None and len(listeners()) == 1 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert stream().wait_for(append()[0], DEADLINE_SECONDS)


def test_one_that_comes_while_the_database_is_away_is_refused_at_once(monkeypatch):
    word("a")
    monkeypatch.setattr(watcher.watcher_of(), "is_away", True)
    with pytest.raises(Exception, match="does not answer"):
        stream().wait_for(0, 0.1)
    monkeypatch.undo()
    assert stream().wait_for(0, DEADLINE_SECONDS)


# --- in order -------------------------------------------------------------------------------------------------------


def test_all_apply_a_position_before_any_shows_it(north, recorders):
    north(5)
    wait_until(lambda: ("Last", "shown", 5) in recorders)
    names = ["First", "Second", "Last"]
    assert recorders == [(name, "before", 5) for name in names] + [(name, "shown", 5) for name in names]


def test_nobody_is_woken_before_values_are_dropped(north, monkeypatch):
    """The feed is slow, and a caller waits: its thread comes back when the feed is done, and not before."""
    everybody()
    applies, may_end = threading.Event(), threading.Event()
    real = caches._Feed.apply

    def slow(self: caches._Feed, cursor: Any, found: Found, *, everything: bool) -> None:
        if Recorder.north(found) == 5:
            applies.set()
            may_end.wait(DEADLINE_SECONDS)
        real(self, cursor, found, everything=everything)

    monkeypatch.setattr(caches._Feed, "apply", slow)
    done: list[object] = []
    thread = in_thread(lambda: done.append(stream().wait_for(5, DEADLINE_SECONDS)))
    wait_until(wait.waiting)
    north(5)
    assert applies.wait(DEADLINE_SECONDS)
    assert not done
    may_end.set()
    thread.join(DEADLINE_SECONDS)
    assert done


def test_a_position_from_elsewhere_is_applied_once(north, recorders):
    followed = _recorders[0].get().watcher
    with session() as cursor:
        cursor.execute("UPDATE streams_streamposition SET position = 7 WHERE instance_name = 'north'")
    with session() as cursor:
        seven = stored_positions(cursor, ["caches"])
    watcher.before_shown(seven)
    assert recorders == [("First", "before", 7), ("Second", "before", 7), ("Last", "before", 7)]
    watcher.before_shown(seven)
    assert len(recorders) == 3
    assert followed.known("caches")["north"].position == 7


# --- losing track ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [First, Second, Last])
def test_one_that_fails_holds_nobody_back_and_is_called_again(north, recorders, kind):
    error = FAILS[kind] = RuntimeError("a rule of the site failed")
    north(5)
    wait_until(lambda: (kind.__name__, "before", "everything") in recorders)
    assert (kind.__name__, "lost", error) in recorders
    for one in {First, Second, Last} - {kind}:
        assert (one.__name__, "before", 5) in recorders
        assert (one.__name__, "lost", error) not in recorders
    wait_until(lambda: all(feed.get().is_current for feed in _recorders))
    assert ("Last", "shown", 5) in recorders


def test_a_position_that_fell_is_taken_for_a_restore(north, recorders):
    north(9)
    wait_until(lambda: ("Last", "shown", 9) in recorders)
    with session() as cursor:
        cursor.execute("UPDATE streams_streamposition SET position = 5 WHERE instance_name = 'north'")
        send_payloads(cursor, ["caches"])
    wait_until(lambda: ("Last", "shown", 5) in recorders)
    told = [name for name, what, _ in recorders if what == "restored"]
    assert told == ["First", "Second", "Last"]
    assert recorders.index(("Last", "restored", None)) < recorders.index(("First", "before", 5))


def test_another_epoch_after_a_lost_connection_is_taken_for_a_restore(north, recorders):
    with session() as cursor:
        epochs.current_epoch(cursor)
    watcher.watcher_of().apply_and_publish([])
    recorders.clear()
    with session() as cursor:
        epochs.begin_epoch(cursor, "test")
    cut("replsite notifications positions")
    wait_until(lambda: ("Last", "before", "everything") in recorders)
    assert recorders.index(("First", "lost", None)) < recorders.index(("First", "restored", None))
    assert recorders.index(("Last", "restored", None)) < recorders.index(("First", "before", "everything"))


@pytest.mark.parametrize("name", ["replsite notifications positions", "replsite positions"])
def test_what_others_did_while_a_connection_was_lost_comes_to_all(elsewhere, name):
    everybody()
    store_quietly("a", "0")
    wait_until(lambda: word.kept.mark() is not None)
    word.values.clear()
    assert word("a") == "0"
    before = notifier.now("caches")
    for turn in range(1, 6):
        cut(name)
        token = int(elsewhere.ask("set", "a", str(turn)))
        stream().wait_for(token, DEADLINE_SECONDS)
        assert word("a") == str(turn)
        wait_until(lambda: (now := notifier.now("caches")) and now.covers("other", token))  # noqa: B023 - this round
    assert notifier.now("caches") != before


def test_nothing_waits_while_the_notifier_fills_its_memory(elsewhere, monkeypatch):
    """It reads thousands of rows after a lost connection, while values are dropped and callers wake as ever."""
    everybody()
    fills, may_end = threading.Event(), threading.Event()
    real = NotifierFeed._new_stream_cache

    def slow(self: NotifierFeed, *given: Any) -> Any:
        fills.set()
        may_end.wait(DEADLINE_SECONDS)
        return real(self, *given)

    monkeypatch.setattr(NotifierFeed, "_new_stream_cache", slow)
    cut("replsite notifications positions")
    assert fills.wait(DEADLINE_SECONDS)
    try:
        wait_until(lambda: word.kept.mark() is not None)
        token = int(elsewhere.ask("set", "a", "1"))
        stream().wait_for(token, DEADLINE_SECONDS)
        assert word("a") == "1"
        assert stream().wait_for(append()[0], DEADLINE_SECONDS)
        assert notifier.now("caches") is None
    finally:
        may_end.set()
    wait_until(lambda: (now := notifier.now("caches")) and now.covers("other", token))
