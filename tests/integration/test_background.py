"""The background thread: what is due goes out, what is heard is used, and nothing it is told is lost."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from django.db import transaction

from streams.models import StreamPosition
from streams.runtime.wake_up import WakeUp
from streams.testing import forget_writers
from streams.writing.control_loop import ControlLoop
from streams.writing.process import current_writer
from streams.writing.writer import Condition, WriterProcess
from tests.support.left_open import OPEN
from tests.support.waiting import wait_until
from tests.support.writing import append, in_thread, linear, other_writer, session, stored, stream, wait_for_linear

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


def test_idle_writers_let_everybody_reach_the_head_in_time(idle):
    others = [idle("north"), idle("south")]
    append()
    delays = []
    for _ in range(10):
        head = append()[0]
        begun = time.monotonic()
        everybody = [current_writer(), *others]
        wait_until(
            lambda: linear() == head and all(w.trackers["caches"].linear == head for w in everybody)  # noqa: B023
        )
        delays.append(time.monotonic() - begun)
    assert sorted(delays)[len(delays) // 2] < 0.2, f"seconds: {delays}"  # the machine may be busy; 0.1 when it is not


def test_everybody_reaches_the_head_in_time_after_a_rollback(idle):
    everybody = [idle("north"), idle("south"), current_writer()]
    append()
    delays = []
    for _ in range(10):
        with transaction.atomic():
            head = append()[0]
            transaction.set_rollback(True)
        begun = time.monotonic()
        wait_until(lambda: linear() == head and all(w.trackers["caches"].linear == head for w in everybody))  # noqa: B023
        delays.append(time.monotonic() - begun)
    assert sorted(delays)[len(delays) // 2] < 0.2, f"seconds: {delays}"  # the machine may be busy; 0.1 when it is not


def test_silence_when_nothing_happens(idle):
    idle("north")
    wait_for_linear(append()[0])
    with session() as cursor:
        cursor.execute("LISTEN replsite_streams")
        time.sleep(0.3)  # six announcement intervals: an absence cannot be waited for otherwise
        cursor.connection.poll()
        assert cursor.connection.notifies == []


def test_a_wake_up_during_the_reading_of_another_is_not_the_last(monkeypatch):
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
    waked.wait(5)
    for _ in range(5):
        begun = time.monotonic()
        wait_for_linear(append()[0])
        assert time.monotonic() - begun < 0.5


def test_notifications_that_came_with_an_answer_are_heard(idle):
    """The driver reads them from the socket with the answer to another query, so the socket stays silent."""
    append()
    writer = current_writer()
    writer._background._beat_due = time.monotonic() + 60
    position = stored()["master"].position
    with other_writer("ghost") as other:
        with writer.control_cursor() as cursor:
            other.execute("SELECT pg_notify('replsite_streams', %s)", [f"caches ghost {position + 5}"])
            cursor.execute("SELECT pg_sleep(0.05)")
            assert writer.control.notifies
            writer._background.wake()
        wait_until(lambda: "ghost" in writer.trackers["caches"].raw_positions, 1.0)


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
    assert failed.wait(20)
    wait_for_linear(append()[0])


def test_no_storm_of_attempts_while_fenced(monkeypatch):
    append()
    writer = current_writer()
    attempts: list[float] = []
    monkeypatch.setattr(writer, "hold_again", lambda: attempts.append(time.monotonic()))
    writer.fenced("for the test")
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        writer.announce_soon()
        time.sleep(0.001)
    assert len(attempts) <= 4


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
