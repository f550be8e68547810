"""The background thread: what is due goes out, what is heard is used, and nothing it is told is lost."""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import transaction

from streams.db import driver
from streams.models import StreamPosition
from streams.reading import watcher
from streams.runtime.wake_up import WakeUp
from streams.testing import forget_writers
from streams.writing import control_loop
from streams.writing.control_loop import RETRY_SECONDS, ControlLoop
from streams.writing.process import current_writer
from streams.writing.writer import Condition, WriterProcess
from tests.support.left_open import OPEN
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import (
    append,
    cut,
    in_thread,
    linear,
    other_writer,
    session,
    sessions,
    stored,
    stream,
    wait_for_linear,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def idle() -> Iterator[Callable[[str], WriterProcess]]:
    """More writers on the stream that never write."""
    made: list[WriterProcess] = []

    def make(name: str) -> WriterProcess:
        made.append(WriterProcess("default", name, ControlLoop))
        made[-1].enter(stream())
        return made[-1]

    yield make
    for writer in made:
        writer.close()


@pytest.fixture
def no_fall_back(settings) -> None:
    """Nobody looks at the table now and then: what is not announced, and heard, is not noticed before the deadline."""
    settings.REPLSITE_HEARTBEAT_SECONDS = 600


def test_idle_writers_let_everybody_reach_the_head_by_announcements(no_fall_back, idle):
    others = [idle("north"), idle("south")]
    append()
    for _ in range(10):
        head = append()[0]
        everybody = [current_writer(), *others]
        wait_until(
            lambda: linear() == head and all(w.trackers["caches"].linear == head for w in everybody)  # noqa: B023
        )


def test_everybody_reaches_the_head_by_announcements_after_a_rollback(no_fall_back, idle):
    everybody = [idle("north"), idle("south"), current_writer()]
    append()
    for _ in range(10):
        with transaction.atomic():
            head = append()[0]
            transaction.set_rollback(True)
        wait_until(lambda: linear() == head and all(w.trackers["caches"].linear == head for w in everybody))  # noqa: B023


def test_silence_when_nothing_happens(idle):
    idle("north")
    wait_for_linear(append()[0])
    with session() as cursor:
        cursor.execute("LISTEN replsite_streams")
        time.sleep(0.3)  # six announcement intervals: an absence cannot be waited for otherwise
        assert driver.receive(cursor.connection) == []


def test_a_wake_up_during_the_reading_of_another_is_not_the_last(no_fall_back, monkeypatch):
    """The signal may be set while the pipe is emptied; later wake-ups must still come through."""
    append()
    beside = current_writer()._background
    real_hush, waked = WakeUp.hush, threading.Event()

    def hush(wake_up: WakeUp) -> None:
        real_hush(wake_up)
        if wake_up is beside._wake_up and not waked.is_set():
            waked.set()
            beside.wake()

    monkeypatch.setattr(WakeUp, "hush", hush)
    append()
    assert waked.wait(DEADLINE_SECONDS)
    for _ in range(5):
        wait_for_linear(append()[0])


def test_what_came_while_the_control_connection_was_busy_is_heard(idle):
    append()
    writer = current_writer()
    position = stored()["master"].position
    with other_writer("ghost") as other:
        with writer.control_cursor() as cursor:
            other.execute("SELECT pg_notify('replsite_streams', %s)", [f"caches ghost {position + 5}"])
            cursor.execute("SELECT pg_sleep(0.05)")
            assert driver.received(writer.control) == []  # it does not listen
        wait_until(lambda: "ghost" in writer.trackers["caches"].raw_positions)


def test_dropped_notifications_are_replaced_by_a_look_at_the_table(idle, monkeypatch):
    """Also those of the entry into a stream, which the writer waits for."""
    monkeypatch.setattr(control_loop, "MOST_WAITING_CHARACTERS", 0)
    everybody = [idle("north"), idle("south"), current_writer()]
    for _ in range(5):
        head = append()[0]
        wait_until(lambda: linear() == head and all(w.trackers["caches"].linear == head for w in everybody))  # noqa: B023
    assert all(writer.tenure.entering == {"caches"} for writer in everybody)
    monkeypatch.undo()
    wait_until(lambda: not any(writer.tenure.entering for writer in everybody))


def test_a_writer_goes_on_while_the_connection_that_listens_is_away(idle, monkeypatch):
    everybody = [current_writer(), idle("north")]
    append()
    lease = current_writer().lease
    for number in range(3):
        cut("replsite notifications positions")
        everybody.append(idle(f"late-{number}"))  # perhaps the others are deaf now, and so is this one
        head = append()[0]
        wait_until(lambda: linear() == head and all(w.trackers["caches"].linear == head for w in everybody))  # noqa: B023
    assert current_writer().lease == lease
    wait_until(lambda: not any(writer.tenure.entering for writer in everybody))


def test_an_own_announcement_that_comes_back_makes_no_turn_of_its_own(monkeypatch):
    """The followers of the announced fact need the processor then."""
    monkeypatch.setattr(control_loop, "ECHO_SECONDS", 60.0)
    append()
    writer, echoes, turns = current_writer(), Counter[str](), Counter[str]()
    wait_until(lambda: not writer.tenure.entering)
    own, turn = writer.control.info.backend_pid, ControlLoop._turn

    def hear(heard: Sequence[tuple[int, str]], *, must_look: bool) -> None:
        echoes["own"] += sum(session == own for session, _ in heard)

    def counted_turn(loop: ControlLoop, wake_up: WakeUp) -> None:
        due = loop._beat_due
        turn(loop, wake_up)
        turns["all"] += 1
        turns["due"] += loop._beat_due != due

    monkeypatch.setattr(ControlLoop, "_turn", counted_turn)
    watcher.open_tap("default", hear)  # called after the writer's own
    try:
        for number in range(1, 21):
            append()
            wait_until(lambda: echoes["own"] >= number)  # noqa: B023
    finally:
        watcher.close_tap("default", hear)
    assert turns["all"] <= 20 + 2 * turns["due"] + 2  # a look at the table makes a turn of its own


def test_an_idle_process_asks_one_query_a_second(idle, monkeypatch):
    """As often as it beats, however many writers there are; the other queries wait for something that changed."""
    writers = [idle(f"north-{number}") for number in range(4)]
    wait_for_linear(append()[0])
    writers.append(current_writer())
    asked, beats = Counter[str](), Counter[str]()
    control_cursor, beat = WriterProcess.control_cursor, control_loop.heartbeat.beat

    class Counting:
        def __init__(self, cursor: Any, writer: str) -> None:
            self._cursor, self._writer = cursor, writer

        def __getattr__(self, name: str) -> Any:
            return getattr(self._cursor, name)

        def execute(self, *given: Any) -> None:
            asked[self._writer] += 1
            self._cursor.execute(*given)

    @contextmanager
    def counted(writer: WriterProcess) -> Iterator[Any]:
        with control_cursor(writer) as cursor:
            yield Counting(cursor, writer.name)

    def counted_beat(cursor: Any, writer: WriterProcess, *given: Any) -> Any:
        beats[writer.name] += 1
        return beat(cursor, writer, *given)

    wait_until(lambda: not any(writer.tenure.entering for writer in writers))
    monkeypatch.setattr(control_loop.heartbeat, "beat", counted_beat)
    wait_until(lambda: all(beats[writer.name] >= 3 for writer in writers))  # by then everybody has seen everything
    monkeypatch.setattr(WriterProcess, "control_cursor", counted)
    asked.clear(), beats.clear()
    wait_until(lambda: all(beats[writer.name] >= 3 for writer in writers))
    assert sum(asked.values()) <= sum(beats.values()) + len(writers)  # a beat may be under way when the counts begin


def own_connections() -> Counter[str]:
    return Counter(sessions("replsite %").values())


def test_a_process_that_writes_has_a_connection_with_the_lock_and_one_that_listens():
    before = own_connections()
    append()
    assert own_connections() - before <= Counter({"replsite writer master": 1, "replsite notifications positions": 1})


@pytest.mark.parametrize(
    "payload",
    ["", "caches", "caches x y", "caches master 1 2 3", "unknown a 7", "caches  -3"]
    + [f"caches north {'9' * digits}" for digits in (20, 5_000)],
    ids=range(8),
)
def test_strange_notifications_are_survived(payload):
    append()
    with session() as cursor:
        cursor.execute("SELECT pg_notify('replsite_streams', %s)", [payload])
    wait_for_linear(append()[0])
    assert current_writer().condition is Condition.HOLDING


def test_long_transaction_is_shown_with_its_age_and_number():
    append()
    with transaction.atomic():
        taken = append(3)
        wait_until(lambda: stored()["master"].pending == 3)
        row = in_own_thread(lambda: StreamPosition.objects.get(instance_name="master"))
        assert row.oldest_pending_id == taken[0]
        assert row.oldest_pending_at is not None
        assert row.oldest_pending_transaction > 0
    wait_until(lambda: stored()["master"].pending == 0)


def in_own_thread(work: Callable[[], StreamPosition]) -> StreamPosition:
    found: list[StreamPosition] = []
    in_thread(lambda: found.append(work())).join()
    return found[0]


def test_counts_of_facts_are_kept():
    append(3)
    with transaction.atomic():
        append(2)
        transaction.set_rollback(True)
    wait_until(lambda: StreamPosition.objects.get().facts_rolled_back == 2)
    assert StreamPosition.objects.get().facts_written == 3


def test_a_failing_turn_does_not_end_the_thread(monkeypatch):
    append()
    beside = current_writer()._background
    failed = threading.Event()

    def fails(cursor: object) -> None:
        monkeypatch.undo()
        failed.set()
        raise RuntimeError("for the test")

    monkeypatch.setattr(beside, "_receive", fails)
    append()
    assert failed.wait(DEADLINE_SECONDS)
    wait_for_linear(append()[0])


def test_no_storm_of_attempts_while_fenced(monkeypatch):
    append()
    writer = current_writer()
    attempts: list[int] = []
    monkeypatch.setattr(writer, "hold_again", lambda: attempts.append(1))
    writer.fenced("for the test")
    begun = time.monotonic()
    while time.monotonic() < begun + 0.5:
        writer.announce_soon()
        time.sleep(0.001)
    assert len(attempts) <= (time.monotonic() - begun) / RETRY_SECONDS + 2


def test_a_writer_that_ends_leaves_no_descriptors():
    """Without waiting for the collector of cycles: a server that starts writers again and again would run out of them."""
    append()
    forget_writers()
    gc.collect()
    gc.disable()
    try:
        before = len(list(OPEN.iterdir()))
        for _ in range(3):
            append()
            forget_writers()
        assert len(list(OPEN.iterdir())) <= before
    finally:
        gc.enable()
