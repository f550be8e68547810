"""One process looks for the site: it is found at once, replaced when it ends, and others look when it does not answer."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from django.db import connection, transaction

from streams import registry
from streams.catalog.models import PushRuleChange
from streams.db import driver
from streams.models import StreamPosition
from streams.reading import hints, looker, position_notifications, position_store
from streams.reading.hints import hint
from streams.reading.looker import Looker
from streams.reading.notify import NotifyListener
from streams.reading.position_notifications import PositionListener
from streams.reading.rows import stored_positions
from tests.support import writing
from tests.support.held_tables import Session, Sessions, held_orders, sessions
from tests.support.waiting import DEADLINE_SECONDS, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


class Ear(NotifyListener[tuple[int, str]]):
    """What a process hears, passed on to its candidate. It keeps the payloads."""

    def __init__(self, candidate: Looker) -> None:
        super().__init__(hints.CHANNEL, lambda _: None, "default", "ear")
        self.candidate, self.payloads, self.follows = candidate, list[str](), True

    def parse(self, heard: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
        self.candidate.received(heard)
        self.payloads += [payload for _, payload in heard]
        return []


class Process:
    """A candidate with its ear, as each process with a listener has them."""

    def __init__(self) -> None:
        self.candidate = Looker("default")
        self.ear = Ear(self.candidate)
        self.ear.start()
        with connection.cursor() as cursor:
            channel = driver.channel(cursor, hints.CHANNEL)
            # A hint that is sent before the ear listens is lost, and the tests leave nothing else that would make it look.
            wait_until(lambda: cursor.execute("SELECT pg_notify(%s, 'anybody')", [channel]) or self.ear.payloads)
        self.ear.payloads.clear()
        looker._ears.setdefault("default", []).append(self.ear)
        self.candidate.start()

    def stop(self) -> None:
        with suppress(ValueError):
            looker._ears["default"].remove(self.ear)
        self.ear.stop()
        self.candidate.stop()

    @property
    def is_leading(self) -> bool:
        return self.candidate.is_leading


@pytest.fixture
def session() -> Iterator[Sessions]:
    with held_orders(), sessions() as make:
        yield make


@pytest.fixture
def writer(session: Sessions) -> Session:
    return session()


@pytest.fixture
def process(session: Sessions) -> Iterator[Callable[[], Process]]:
    with ExitStack() as stack:

        def make() -> Process:
            made = Process()
            stack.callback(made.stop)
            return made

        yield make


@pytest.fixture
def hints_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is found by the slow looks, nor by candidates that nobody asked."""
    monkeypatch.setattr(looker, "SAFETY_SECONDS", 1_000.0)
    monkeypatch.setattr(looker, "CANDIDATE_SECONDS", 2_000.0)
    monkeypatch.setattr(hints, "HINT_GAP_SECONDS", 0.0)


def position() -> int:
    """The stored position of the only writer."""
    with connection.cursor() as cursor:
        return max((row.position for row in stored_positions(cursor, ["orders"]).get("orders", {}).values()), default=0)


def append(writer: Session, *texts: str) -> int:
    """Append, and hint. Returns the last ID."""
    last = writer.append(*texts)[-1]
    hint(writer.cursor)
    return last


def leader_pid(writer: Session) -> int | None:
    """The session that looks for the site."""
    rows = writer(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
        "AND (classid::bigint << 32 | objid::bigint) = %s", driver.looker_key(writer.cursor))  # fmt: skip
    return rows[0][0] if rows else None


def kill_leader(writer: Session) -> None:
    pid = wait_until(lambda: leader_pid(writer))
    writer("SELECT pg_terminate_backend(%s, 60000)", pid)


def test_a_hint_makes_the_leader_store_and_tell(hints_only: None, writer: Session, process: Callable[[], Process]):
    one = process()
    wait_until(lambda: one.is_leading)
    last = append(writer, "a")
    wait_until(lambda: position() == last)
    wait_until(lambda: "orders" in one.ear.payloads)


def test_facts_without_a_hint_are_found_by_the_slow_look(writer: Session, process: Callable[[], Process]):
    one = process()
    wait_until(lambda: one.is_leading)
    last = writer.append("a", "b")[-1]
    wait_until(lambda: position() == last)
    wait_until(lambda: "orders" in one.ear.payloads)


def test_a_sequence_that_was_set_back_is_moved_forward_although_nobody_hints(
    writer: Session, process: Callable[[], Process]
):
    one = process()
    wait_until(lambda: one.is_leading)
    writer("SELECT nextval('orders_stream_seq') FROM generate_series(1, 1000)")
    last = writer.append("a")[0]
    wait_until(lambda: position() == last)
    writer("SELECT setval('orders_stream_seq', 5)")
    wait_until(lambda: writer("SELECT pg_sequence_last_value('orders_stream_seq') >= %s", last)[0][0])
    assert writer.append("b") == [last + 1]


def test_what_is_committed_soon_after_a_hint_needs_none(
    hints_only: None, writer: Session, process: Callable[[], Process], monkeypatch: pytest.MonkeyPatch
):
    """The second fact's hint says that more follows."""
    one = process()
    wait_until(lambda: one.is_leading)
    for module in (hints, looker):
        monkeypatch.setattr(module, "HINT_GAP_SECONDS", 1_000.0)
    monkeypatch.setattr(hints, "PAUSE_SECONDS", 1_000.0)
    hints._hinted.clear()
    for number in range(20):
        last = writer.append("x")[-1]
        assert hint(writer.cursor) is (number < 2)
    wait_until(lambda: position() == last)
    hints._hinted.clear()


def test_each_fact_after_a_pause_has_a_hint(
    hints_only: None, writer: Session, process: Callable[[], Process], monkeypatch: pytest.MonkeyPatch
):
    one = process()
    wait_until(lambda: one.is_leading)
    monkeypatch.setattr(hints, "HINT_GAP_SECONDS", 1_000.0)
    monkeypatch.setattr(hints, "PAUSE_SECONDS", 0.0)
    for _ in range(5):
        last = writer.append("x")[-1]
        assert hint(writer.cursor)
        wait_until(lambda last=last: position() == last)


def test_a_hint_without_news_is_answered(hints_only: None, writer: Session, process: Callable[[], Process]):
    one = process()
    wait_until(lambda: one.is_leading)
    hint(writer.cursor)
    wait_until(lambda: any(payload.startswith(" ") for payload in one.ear.payloads))
    wait_until(lambda: not one.candidate._unanswered)


def test_the_positions_are_told_after_they_were_stored(
    hints_only: None,
    writer: Session,
    session: Sessions,
    process: Callable[[], Process],
    monkeypatch: pytest.MonkeyPatch,
):
    """At each notification the row must be in the table already."""
    one = process()
    wait_until(lambda: one.is_leading)
    told: list[int] = []
    reader = session()
    send = looker.send_payloads

    def noting(cursor: Any, payloads: Any) -> None:
        told.append(reader.one("SELECT coalesce(max(position), 0) FROM streams_streamposition WHERE stream = 'orders'"))
        send(cursor, payloads)

    monkeypatch.setattr(looker, "send_payloads", noting)
    for _ in range(10):
        last = append(writer, "x")
        wait_until(lambda last=last: told and told[-1] == last)


def test_only_one_of_two_leads_and_the_other_follows_it(
    hints_only: None, writer: Session, process: Callable[[], Process]
):
    one, other = process(), process()
    wait_until(lambda: one.is_leading or other.is_leading)
    leader, second = (one, other) if one.is_leading else (other, one)
    last = append(writer, "a")
    wait_until(lambda: position() == last)
    assert not second.is_leading
    leader.stop()
    last = append(writer, "b")
    wait_until(lambda: position() == last)
    wait_until(lambda: second.is_leading)


def test_a_killed_session_is_replaced(hints_only: None, writer: Session, process: Callable[[], Process]):
    processes = [process(), process(), process()]
    for _ in range(5):
        kill_leader(writer)
        last = append(writer, "x")
        wait_until(lambda last=last: position() == last)
        wait_until(lambda last=last: any(one.is_leading for one in processes))


def test_a_process_that_listens_for_positions_is_a_candidate(hints_only: None, writer: Session):
    listeners = [PositionListener(lambda _: None, name=f"test {n}") for n in range(2)]
    for one in listeners:
        one.start()
    found = looker.looker_of("default")
    assert found is not None
    wait_until(lambda: found.is_leading)
    for one in listeners:  # the first is the candidate's ear, and then the second
        last = append(writer, "x")
        wait_until(lambda last=last: position() == last)
        wait_until(lambda: not found._unanswered)
        one.stop()
    assert looker.looker_of("default") is None
    wait_until(lambda: leader_pid(writer) is None)


#: What the leader is about to do when its session ends.
STEPS = {
    "look": (position_store, "look"),
    "write": (position_store, "_execute"),
    "tell": (looker, "send_payloads"),
}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_leader_that_is_killed_at_any_step_leaves_nothing_out(
    hints_only: None,
    writer: Session,
    session: Sessions,
    process: Callable[[], Process],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    *,
    after: bool,
):
    one, other = process(), process()
    wait_until(lambda: leader_pid(writer))
    killer, killed = session(), threading.Event()
    place, name = STEPS[step]
    original = getattr(place, name)

    def killing(cursor: Any, *given: Any) -> Any:
        result = original(cursor, *given) if after else None
        if not killed.is_set():
            killed.set()
            killer("SELECT pg_terminate_backend(%s, 60000)", cursor.connection.info.backend_pid)
        return result if after else original(cursor, *given)

    last = append(writer, "a")
    wait_until(lambda: position() == last)
    for each in (one, other):
        each.ear.payloads.clear()
    monkeypatch.setattr(place, name, killing)
    last = append(writer, "b")
    wait_until(killed.is_set)
    wait_until(lambda: position() == last)
    # Everybody is told, even if the row was stored by a session that could not tell.
    wait_until(lambda: "orders" in one.ear.payloads)
    wait_until(lambda: "orders" in other.ear.payloads)


def test_others_look_while_the_leader_stands_still(
    hints_only: None, writer: Session, process: Callable[[], Process], monkeypatch: pytest.MonkeyPatch
):
    one, other = process(), process()
    wait_until(lambda: one.is_leading or other.is_leading)
    leader, second = (one, other) if one.is_leading else (other, one)
    frozen, look = threading.Event(), leader.candidate._store_positions
    monkeypatch.setattr(leader.candidate, "_store_positions", lambda word: frozen.wait() and look(word))
    try:
        for text in "abc":
            last = append(writer, text)
            wait_until(lambda last=last: position() == last)
        assert leader.is_leading
        assert not second.is_leading
    finally:
        frozen.set()
    last = append(writer, "d")
    wait_until(lambda: position() == last)


def test_who_looks_once_stores_all_whatever_others_have_done_with_the_rows_since(writer: Session):
    """Nobody looks again soon, so it must not go by the rows of its look before."""
    own = Looker("default")
    try:
        for text in "abcd":
            if text == "d":
                writer("DELETE FROM streams_streamposition")
            last = writer.append(text)[-1]
            assert own.store_once(even_if_led=True)
            assert position() == last
    finally:
        own.close()


def test_who_looks_once_waits_for_rows_that_another_looker_is_about_to_commit(
    writer: Session, session: Sessions, monkeypatch: pytest.MonkeyPatch
):
    """Otherwise who reads at once does not find the fact that it has appended itself."""
    monkeypatch.setattr(looker, "STANDS_STILL_SECONDS", DEADLINE_SECONDS)
    own, other = Looker("default"), session()
    try:
        writer.append("a")
        own.store_once(even_if_led=True)
        last = writer.append("b")[-1]
        other("BEGIN")
        other("SELECT FROM streams_streamposition FOR UPDATE")
        looks = writing.in_thread(lambda: own.store_once(even_if_led=True))
        wait_until(lambda: own._store.was_hindered)
        other("COMMIT")
        looks.join()
        assert position() == last
    finally:
        own.close()


def test_who_looks_once_does_not_wait_for_ever_for_rows(
    writer: Session, session: Sessions, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(looker, "STANDS_STILL_SECONDS", 0.05)
    own, other = Looker("default"), session()
    try:
        first = writer.append("a")[-1]
        own.store_once(even_if_led=True)
        other("BEGIN")
        other("SELECT FROM streams_streamposition FOR UPDATE")
        writer.append("b")
        assert own.store_once(even_if_led=True)
        assert position() == first
    finally:
        own.close()


class Forger(NotifyListener[str]):
    """A role that may only connect, and answers all hints before anybody misses an answer."""

    def __init__(self) -> None:
        super().__init__(hints.CHANNEL, lambda _: None, "default", "forger")
        self.answered = 0

    def parse(self, heard: Sequence[tuple[int, str]]) -> list[str]:
        for _, payload in heard:
            if (word := hints.hinted_word(payload)) is not None:
                with self.asking() as cursor:
                    hints.send_payloads(cursor, [hints.answer_to(word)])
                self.answered += 1
        return []


def test_forged_answers_do_not_keep_others_from_looking_while_the_leader_stands_still(
    hints_only: None, writer: Session, process: Callable[[], Process], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(looker, "ANSWER_SECONDS", 1.0)  # the forger answers before
    monkeypatch.setattr(looker, "DOUBT_SECONDS", 0.1)
    leader, frozen = process(), threading.Event()
    wait_until(lambda: leader.is_leading)
    other, forger = process(), Forger()
    pid = leader_pid(writer)
    wait_until(lambda: other.candidate._leader == pid and not other.candidate._is_prepared)
    look = leader.candidate._store_positions
    monkeypatch.setattr(leader.candidate, "_store_positions", lambda word: frozen.wait() and look(word))
    forger.start()
    try:
        for text in "abc":
            last = append(writer, text)
            wait_until(lambda last=last: position() == last)
        assert forger.answered
        assert leader.is_leading
    finally:
        frozen.set()
        forger.stop()


def test_a_candidate_that_hears_the_leader_answer_does_not_look(
    hints_only: None, writer: Session, process: Callable[[], Process], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(looker, "ANSWER_SECONDS", 60.0)
    monkeypatch.setattr(looker, "DOUBT_SECONDS", 0.0)
    leader = process()
    wait_until(lambda: leader.is_leading)
    other, pid = process(), leader_pid(writer)
    wait_until(lambda: other.candidate._leader == pid and not other.candidate._is_prepared)
    looks: list[str | None] = []
    monkeypatch.setattr(other.candidate, "_store_positions", looks.append)
    for text in "abc":
        last = append(writer, text)
        wait_until(lambda last=last: position() == last)
    wait_until(lambda: any(hints.answered_word(payload) for payload in other.ear.payloads))
    assert looks == []


def test_a_hint_during_the_first_look_of_a_candidate_is_not_lost(
    hints_only: None, writer: Session, process: Callable[[], Process], monkeypatch: pytest.MonkeyPatch
):
    """The leader stands still, so nobody else answers it."""
    leader, frozen, told = process(), threading.Event(), list[int]()
    wait_until(lambda: leader.is_leading)
    real = Looker._store_positions
    monkeypatch.setattr(
        leader.candidate, "_store_positions", lambda word: frozen.wait() and real(leader.candidate, word)
    )

    def looking(self: Looker, word: str | None) -> bool:
        found = real(self, word)
        if not told:
            told.append(append(writer, "a"))
            wait_until(lambda: self._unanswered, what="the hint is heard")
        return found

    monkeypatch.setattr(Looker, "_store_positions", looking)
    try:
        process()
        wait_until(lambda: told and position() == told[0])
    finally:
        frozen.set()


def test_facts_without_a_hint_are_found_although_a_leader_or_a_stranger_keeps_the_lock(
    writer: Session, session: Sessions, process: Callable[[], Process], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(looker, "CANDIDATE_SECONDS", 0.2)
    stranger = session()
    stranger("SELECT pg_advisory_lock(%s)", driver.looker_key(stranger.cursor))
    one = process()
    last = writer.append("a")[-1]
    wait_until(lambda: position() == last)
    assert not one.is_leading
    stranger.close()
    wait_until(lambda: one.is_leading)


def test_a_leader_that_goes_on_late_takes_no_position_back(
    hints_only: None, writer: Session, process: Callable[[], Process], monkeypatch: pytest.MonkeyPatch
):
    """It looked, stood still, and stores what it saw only after others have stored more."""
    one, other = process(), process()
    wait_until(lambda: one.is_leading or other.is_leading)
    leader = one if one.is_leading else other
    last = append(writer, "a")
    wait_until(lambda: position() == last)
    frozen, stands = threading.Event(), threading.Event()
    find, mine = position_store.PositionStore._find_rises, leader.candidate._store

    def standing(self: Any, *given: Any) -> Any:
        found = find(self, *given)
        if self is mine and not frozen.is_set():
            stands.set()
            frozen.wait()
        return found

    monkeypatch.setattr(position_store.PositionStore, "_find_rises", standing)
    try:
        append(writer, "b")
        wait_until(stands.is_set)
        last = append(writer, "c", "d")
        wait_until(lambda: position() == last)
    finally:
        frozen.set()
    wait_until(lambda: not leader.candidate._unanswered)
    hint(writer.cursor)
    wait_until(lambda: leader.is_leading)
    assert position() == last


def test_a_site_without_holds_has_no_leader(process: Callable[[], Process], session: Sessions):
    own = session()
    own("CREATE TEMPORARY TABLE kept AS TABLE streams_held; DELETE FROM streams_held")
    try:
        one = process()
        hint(own.cursor)
        wait_until(lambda: one.ear.payloads)
        wait_until(lambda: not one.candidate._unanswered)
        assert not one.is_leading
        assert leader_pid(own) is None
    finally:
        own("INSERT INTO streams_held SELECT * FROM kept")


def test_a_role_that_may_not_store_does_not_lead(session: Sessions):
    own, role = session(), f"watcher_{os.getpid()}"
    own(f"CREATE ROLE {role}")
    try:
        own(f"GRANT SELECT ON streams_held, streams_streamposition TO {role}")
        own(f"SET ROLE {role}")
        assert own.one(looker._MAY_STORE) is False
    finally:
        own(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")
    assert own.one(looker._MAY_STORE) is True


def test_an_idle_leader_asks_once_in_a_while(
    hints_only: None, writer: Session, process: Callable[[], Process], monkeypatch: pytest.MonkeyPatch
):
    one = process()
    wait_until(lambda: one.is_leading)
    hints._hinted.clear()
    looks: list[float] = []
    look = one.candidate._store_positions
    monkeypatch.setattr(one.candidate, "_store_positions", lambda word: looks.append(time.monotonic()) or look(word))
    last = append(writer, "a")
    wait_until(lambda: position() == last)
    wait_until(lambda: not one.candidate._unanswered)
    assert settled(looks) <= 2  # a look of its own may come between the commit and the hint


def test_a_hint_that_the_server_did_not_take_promises_nothing(writer: Session, monkeypatch: pytest.MonkeyPatch):
    """So the next fact has one of its own."""
    monkeypatch.setattr(hints, "PAUSE_SECONDS", 1_000.0)
    hints._hinted.clear()
    hint(writer.cursor)
    with monkeypatch.context() as patch, pytest.raises(driver.DatabaseError):
        patch.setattr(hints, "_SEND_HINT", "SELECT 1 / 0 FROM (SELECT %(channel)s::text, %(hint)s::text) AS given")
        hint(writer.cursor)
    assert hint(writer.cursor)
    hints._hinted.clear()


def settled(looks: list[float]) -> int:
    """How many looks there were when no more came for a while."""
    wait_until(lambda: looks and time.monotonic() - looks[-1] > 20 * looker.Pace.QUICK_SECONDS)
    return len(looks)


@contextmanager
def full_queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The server takes no notifications."""
    refused: list[int] = []

    def refuse(cursor: Any, payloads: Any) -> None:
        refused.append(1)
        raise driver.notify_queue_full("queue is full")

    with monkeypatch.context() as patch:
        patch.setattr(looker, "send_payloads", refuse)
        yield refused


def test_what_could_not_be_told_is_told_later(
    writer: Session, process: Callable[[], Process], monkeypatch: pytest.MonkeyPatch
):
    one = process()
    wait_until(lambda: one.is_leading)
    wait_until(lambda: not one.candidate._unsent)
    one.ear.payloads.clear()
    with full_queue(monkeypatch) as refused:
        last = writer.append("a")[-1]
        wait_until(lambda: position() == last)
        wait_until(lambda: refused)
        assert one.is_leading
    wait_until(lambda: "orders" in one.ear.payloads)


# --- listeners of the process that looks --------------------------------------------------------------------------


class Listener(PositionListener):
    """Keeps what it received, and the streams whose positions it was called to read."""

    def __init__(self, *, hints: bool = False, follows: bool = True) -> None:
        self.payloads, self.read = list[str](), list[list[str]]()
        super().__init__(self.read.append, name="test", hints=hints, follows=follows)

    def received(self, notifications: Sequence[tuple[int, str]]) -> None:
        super().received(notifications)
        self.payloads += [payload for _, payload in notifications]


@pytest.fixture
def listener(hints_only: None) -> Iterator[Listener]:
    made = Listener()
    made.start()
    try:
        wait_until(lambda: (found := looker.looker_of("default")) is not None and found.is_leading)
        yield made
    finally:
        made.stop()


def test_they_learn_what_was_stored_though_the_server_takes_no_notification(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
):
    with full_queue(monkeypatch) as refused:
        writing.append()
        wait_until(lambda: ["caches"] in listener.read)
        wait_until(lambda: refused)
    assert "caches" not in listener.payloads


def test_they_read_once_although_the_notification_follows(listener: Listener, writer: Session):
    writing.append()
    wait_until(lambda: "caches" in listener.payloads)
    writer("SELECT pg_notify(%s, 'events')", driver.channel(writer.cursor, hints.CHANNEL))
    wait_until(lambda: ["events"] in listener.read)
    assert [streams for streams in listener.read if "caches" in streams] == [["caches"]]


def test_they_read_what_another_process_stores(listener: Listener, writer: Session):
    writer("SELECT pg_notify(%s, 'caches')", driver.channel(writer.cursor, hints.CHANNEL))
    wait_until(lambda: ["caches"] in listener.read)


@pytest.mark.parametrize("is_asked_for", [True, False])
def test_a_hint_wakes_who_looks_for_itself_before_anything_is_stored(
    listener: Listener, writer: Session, monkeypatch: pytest.MonkeyPatch, is_asked_for: bool
):
    monkeypatch.setattr(Looker, "_store_positions", lambda self, word: False)  # the looker stands still
    own = Listener(hints=is_asked_for)
    own.start()
    try:
        wait_until(lambda: own.read == [[]])
        with transaction.atomic():
            writing.append()
            with transaction.atomic():
                registry.get("push_rules").append(PushRuleChange(user_id="@ann:a.test"))
        wait_until(lambda: any(hints.hinted_streams(payload) for payload in own.payloads))
        writer("SELECT pg_notify(%s, 'events')", driver.channel(writer.cursor, hints.CHANNEL))
        wait_until(lambda: ["events"] in own.read)
        assert own.read == [[], *([["caches", "push_rules"]] if is_asked_for else []), ["events"]]
    finally:
        own.stop()


# --- nobody follows -----------------------------------------------------------------------------------------------


@pytest.fixture
def reader(hints_only: None) -> Iterator[Listener]:
    """Looks for itself, and nobody follows positions. No look is due without a hint."""
    made = Listener(hints=True, follows=False)
    made.start()
    try:
        # The first look of a lead stores everything, whoever follows.
        wait_until(
            lambda: (found := looker.looker_of("default")) is not None and found.is_leading and found._everything_due
        )
        yield made
    finally:
        made.stop()


def stored() -> int:
    found = StreamPosition.objects.filter(stream="caches").values_list("position", flat=True)
    return max(found, default=0)


def test_without_followers_a_hint_wakes_readers_and_stores_nothing_until_somebody_follows(
    reader: Listener, session: Sessions
):
    for _ in range(3):
        reader.read.clear()
        (last,) = writing.append()
        wait_until(lambda: ["caches"] in reader.read)
    assert looker.looker_of("default")._unanswered
    assert stored() < last
    follower = session()
    looker.follow(follower.cursor)
    wait_until(lambda: stored() == last)
    wait_until(lambda: not looker.looker_of("default")._unanswered)
    (last,) = writing.append()
    wait_until(lambda: stored() == last)


def test_a_listener_that_follows_is_seen_by_the_leader_of_another_process(reader: Listener, session: Sessions):
    asking = session()
    is_followed = lambda: asking.one(looker._IS_FOLLOWED, driver.followers_key(asking.cursor))  # noqa: E731
    assert not is_followed()
    other = Listener()
    other.start()
    assert is_followed()
    other.stop()
    wait_until(lambda: not is_followed())


def test_who_needs_a_position_looks_itself_where_nobody_follows(reader: Listener):
    (last,) = writing.append()
    wait_until(lambda: looker.looker_of("default")._unanswered)
    assert stored() < last
    assert looker.look_now("default", even_if_led=False)
    assert stored() == last


def test_hinted_streams_are_passed_on_again_while_facts_without_a_hint_may_follow(
    reader: Listener, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hints, "HINT_GAP_SECONDS", 1_000.0)
    monkeypatch.setattr(position_notifications, "HINT_GAP_SECONDS", 1_000.0)
    monkeypatch.setattr(hints, "PAUSE_SECONDS", 1_000.0)
    hints._hinted.clear()
    writing.append()
    writing.append()
    wait_until(lambda: reader.read.count(["caches"]) > 5)
    monkeypatch.setattr(position_notifications, "HINT_GAP_SECONDS", 0.0)
    reader._hinted["caches"] = 0.0
    wait_until(lambda: not reader._hinted)
    assert reader.due_seconds() is None
    hints._hinted.clear()


def test_a_looker_that_begins_tells_of_a_look_that_was_altered(process: Callable[[], Process], caplog):
    """Health would tell as well, and check_streams, but not everybody asks them."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER FUNCTION streams_look(text[]) STABLE")
        try:
            process()
            wait_until(lambda: "looker.holds_weak" in caplog.text, what="the word of the looker")
        finally:
            cursor.execute("ALTER FUNCTION streams_look(text[]) VOLATILE")
    assert "streams_look(text[]) was altered: not VOLATILE" in caplog.text
