"""Writing in the background: soon, together, again after a failure, and never lost without a word."""

from __future__ import annotations

import asyncio
import threading

import pytest
from django.db.backends.postgresql.base import Database

from streams.replication.common import write_behind
from streams.replication.common.write_behind import BackgroundWriter
from tests.support.async_waiting import wait_for
from tests.support.waiting import DEADLINE_SECONDS


class Sink:
    """Collects numbers and writes them to a list; ``errors`` are raised first."""

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self.written: list[list[int]] = []
        self.errors: list[Exception] = []
        self.threads: set[str] = set()
        self.closed = False

    def collect(self) -> list[int] | None:
        taken, self.waiting = self.waiting, []
        return taken or None

    def write(self, batch: list[int]) -> None:
        self.threads.add(threading.current_thread().name)
        if self.errors:
            raise self.errors.pop(0)
        self.written.append(batch)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def sink():
    return Sink()


@pytest.fixture
async def flusher(sink, monkeypatch):
    monkeypatch.setattr(write_behind, "RETRY_SECONDS", 0.01)
    made = BackgroundWriter("test", sink.collect, sink.write, gap_seconds=0.01, idle_seconds=60.0, close=sink.close)
    made.start()
    yield made
    await made.stop()
    assert sink.closed


async def test_what_comes_together_is_written_together_in_another_thread(flusher, sink):
    for number in range(3):
        sink.waiting.append(number)
        flusher.wake()
    await wait_for(lambda: sink.written)
    assert sink.written == [[0, 1, 2]]
    assert threading.current_thread().name not in sink.threads


async def test_nothing_is_written_when_there_is_nothing(flusher, sink):
    flusher.wake()
    await asyncio.sleep(0.05)  # an absence
    assert sink.written == []


async def test_a_batch_is_tried_again_before_the_next(flusher, sink, caplog):
    sink.errors = [Database.OperationalError("gone")] * 3
    sink.waiting.append(1)
    flusher.wake()
    await wait_for(lambda: not sink.errors)
    sink.waiting.append(2)
    flusher.wake()
    await wait_for(lambda: len(sink.written) == 2)
    assert sink.written == [[1], [2]]
    assert len([record for record in caplog.records if "database_away" in record.getMessage()]) == 1


async def test_a_batch_that_cannot_be_written_does_not_keep_later_ones_back(flusher, sink, caplog):
    sink.errors = [ValueError("for the test")]
    sink.waiting.append(1)
    flusher.wake()
    await wait_for(lambda: not sink.errors)
    sink.waiting.append(2)
    flusher.wake()
    await wait_for(lambda: sink.written == [[2]])
    assert "batch_lost" in caplog.text


async def test_what_waits_is_written_at_the_end(sink):
    flusher = BackgroundWriter("test", sink.collect, sink.write, gap_seconds=60.0, idle_seconds=60.0)
    flusher.start()
    sink.waiting.append(1)
    await flusher.stop()
    assert sink.written == [[1]]


async def test_a_write_that_is_under_way_at_the_end_happens_once(sink):
    began, go_on = threading.Event(), threading.Event()

    def write(batch: list[int]) -> None:
        began.set()
        go_on.wait(DEADLINE_SECONDS)
        sink.written.append(batch)

    flusher = BackgroundWriter("test", sink.collect, write, gap_seconds=0.01)
    flusher.start()
    sink.waiting.append(1)
    flusher.wake()
    await wait_for(began.is_set)
    stopping = asyncio.create_task(flusher.stop())
    await asyncio.sleep(0)
    go_on.set()
    await stopping
    assert sink.written == [[1]]


async def test_it_looks_by_itself_now_and_then(sink):
    flusher = BackgroundWriter("test", sink.collect, sink.write, gap_seconds=0.01, idle_seconds=0.02)
    flusher.start()
    sink.waiting.append(1)
    await wait_for(lambda: sink.written == [[1]])
    await flusher.stop()


async def test_errors_of_the_first_work_are_the_callers(sink):
    flusher = BackgroundWriter("test", sink.collect, sink.write, gap_seconds=0.01)
    with pytest.raises(ZeroDivisionError):
        await flusher.run(lambda: 1 / 0)
    await flusher.stop()
