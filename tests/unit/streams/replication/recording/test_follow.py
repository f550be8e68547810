"""What is being stored when somebody wants the end: it is stored once, and so are the lives that began with it."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from streams.replication.protocol.cursors import MissingRange, Reset
from streams.replication.protocol.ordering import FollowedRow
from streams.replication.recording.follow import Recording
from streams.replication.recording.recorder import Batch
from tests.support.waiting import DEADLINE_SECONDS

RESET, GAP = Reset("typing", "master", 0), MissingRange("typing", "master", 0, 1)
ROWS = [FollowedRow("typing", "master", 2, [])]


class SlowRecorder:
    """Stores when the test lets it."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.stored: list[Batch] = []

    def open(self) -> dict[str, dict[str, int]]:
        return {}

    def store(self, batch: Batch) -> None:
        kept = Batch(list(batch.resets), list(batch.rows), list(batch.gaps), batch.positions)
        self.begun.set()
        assert self.may_end.wait(DEADLINE_SECONDS)
        self.stored.append(kept)

    def close(self, *, in_order: bool) -> None: ...


@pytest.mark.parametrize("rows", [ROWS, []])
def test_what_is_being_stored_when_the_end_comes_is_not_stored_again(rows):
    """A life that began twice would have its rows twice: the next run goes on in the second one, which has none."""
    recorder = SlowRecorder()

    async def run() -> None:
        recording = Recording(recorder, lambda: {})  # type: ignore[arg-type]
        await recording.open()
        recording.missed(RESET)
        recording.missed(GAP)
        storing = asyncio.create_task(recording.store(rows))
        await asyncio.to_thread(recorder.begun.wait, 30)
        storing.cancel()
        await asyncio.sleep(0)
        recorder.may_end.set()
        with contextlib.suppress(asyncio.CancelledError):
            await storing
        assert storing.cancelled()
        await recording.end(in_order=True)

    asyncio.run(asyncio.wait_for(run(), DEADLINE_SECONDS))
    assert [reset for batch in recorder.stored for reset in batch.resets] == [RESET]
    assert [gap for batch in recorder.stored for gap, _ in batch.gaps] == [GAP]
    assert [row for batch in recorder.stored for row in batch.rows] == rows
