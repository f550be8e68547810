"""Connects a follower to the recorder of a foreign server. Each batch of rows is stored before the next batch is received.

While the database is unreachable, the follower stops reading, and no rows are dropped. Positions that move without rows
are stored once a second, with a heartbeat and with the gaps that could not be fetched. Assumes a single event loop.
Database queries run in a separate thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from streams.conf import stream_settings
from streams.db import driver
from streams.errors import ResyncNeeded
from streams.replication.client.catch_up import CatchUp, Writers
from streams.replication.errors import CatchUpError, GapError
from streams.replication.protocol.cursors import MissingRange, Reset
from streams.replication.protocol.ordering import FollowedRow
from streams.replication.recording.recorder import TRIM_ROWS, Batch, Recorder
from streams.runtime.logs import get_logger

log = get_logger(__name__)
T = TypeVar("T")

BEAT_SECONDS = 1.0
TRIM_SECONDS = 30.0
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.2, 2.0

Positions = Mapping[str, Mapping[str, int]]


class Recording:
    """The handler that passes a follower's facts and positions to the recorder.

    ``positions`` returns the follower's ``{stream: {writer: position}}``.
    """

    def __init__(self, recorder: Recorder, positions: Callable[[], Positions]) -> None:
        self._recorder = recorder
        self._positions = positions
        self._gaps: list[tuple[MissingRange, str]] = []
        self._resets: list[Reset] = []
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="recorder")
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> Positions:
        """Opens the record, which is the stored rows and positions of the server. Returns the positions to continue from.

        Raises `RecorderBusy`, or `CatchUpError` when the database cannot be used.
        """
        try:
            known: Positions = await self._in_thread(self._recorder.open)
        except driver.DatabaseError as error:
            raise CatchUpError(f"Nothing can be recorded: {driver.explain(error)}") from error
        self._task = asyncio.get_running_loop().create_task(self._keep_up(), name="recorder")
        return known

    def missed(
        self, event: MissingRange | Reset, reason: str = "not sent to us, and no --catch-up http was given"
    ) -> None:
        """Keeps a range of facts that could not be fetched, or a restart of a stream, to be stored with the next batch."""
        if isinstance(event, Reset):
            self._resets.append(event)
        else:
            self._gaps.append((event, reason))

    async def end(self, *, in_order: bool) -> None:
        """Stores the waiting restarts and gaps and the last positions. Then releases the record's name.

        If ``in_order`` is false, the record is shown like that of a recorder that was killed.
        If the database is unreachable for a while, gives up storing. The next run of the recording then fetches these
        facts again.
        """
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            with contextlib.suppress(TimeoutError):  # the next run fetches what was not stored
                await asyncio.wait_for(self.store(()), 2 * BEAT_SECONDS)
        await self._in_thread(lambda: self._recorder.close(in_order=in_order))
        self._thread.shutdown(wait=True)

    async def _keep_up(self) -> None:
        trim_at = 0.0
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            await self.store(())
            if loop.time() >= trim_at:
                trim_at = loop.time() + (0.0 if await self._trim() >= TRIM_ROWS else TRIM_SECONDS)

    async def store(self, rows: Sequence[FollowedRow]) -> None:
        """Stores the rows, with the restarts and gaps that wait to be stored. Returns when they are committed.

        Retries while the database is unreachable. If there are no rows, stores the follower's positions.
        """
        retry_seconds, has_logged = FIRST_RETRY_SECONDS, False
        async with self._turn:
            resets, gaps = len(self._resets), len(self._gaps)
            batch = Batch(self._resets[:resets], rows, self._gaps[:gaps], {} if rows else self._positions())
            while True:
                try:
                    await _to_its_end(self._store_once(batch))
                    break
                except driver.DatabaseError as error:
                    if not has_logged:
                        log.warning("recorder.waits_for_database", error=str(error).strip(), rows=len(rows))
                    has_logged = True
                    await asyncio.sleep(retry_seconds)
                    retry_seconds = min(retry_seconds * 2, LONGEST_RETRY_SECONDS)

    async def _store_once(self, batch: Batch) -> None:
        await self._in_thread(lambda: self._recorder.store(batch))
        # Only the resets and gaps of the batch: `missed` may have added others while the thread stored the batch.
        del self._resets[: len(batch.resets)]
        del self._gaps[: len(batch.gaps)]

    async def _trim(self) -> int:
        given = stream_settings()
        try:
            return await self._in_thread(
                lambda: self._recorder.trim(given.recorded_days_kept, given.recorded_facts_kept)
            )
        except driver.DatabaseError as error:
            log.warning("recorder.not_trimmed", error=str(error).strip())
            return 0

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    # ``work`` runs in a thread, which continues after a cancellation and may still commit.
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it; the next `store` repeats a failed batch
        raise


class RecordedCatchUp(CatchUp):
    """A catch-up for a recorded stream. It begins at the recorded positions, and fetches facts from ``source``.

    If ``source`` can never provide the facts of a range, the range is recorded as a gap.
    """

    def __init__(self, source: CatchUp, recording: Recording, known: Positions) -> None:
        self._source = source
        self._recording = recording
        self._known: Positions | None = known

    def covers(self, stream: str) -> bool:
        return self._source.covers(stream)

    def can_reset(self, stream: str) -> bool:
        return self._source.can_reset(stream)

    async def writers(self, streams: Collection[str] | None) -> Mapping[str, Writers]:
        """Returns the recorded positions at the first call, and an empty mapping at later calls.

        The recorded positions were read at the start. They lack the writers that appeared later. If a later call
        returned the recorded positions, the follower would drop these writers.
        """
        known, self._known = self._known or {}, None
        return {
            stream: Writers(min(writers.values()), writers)
            for stream, writers in known.items()
            if streams is None or stream in streams
        }

    async def given_out(self, streams: Collection[str]) -> Mapping[str, int]:
        return await self._source.given_out(streams)

    async def fetch(
        self, stream: str, writer: str | None, after: int, upto: int, limit: int
    ) -> tuple[Sequence[FollowedRow], int]:
        try:
            return await self._source.fetch(stream, writer, after, upto, limit)
        except (GapError, ResyncNeeded) as error:
            log.warning("recorder.facts_missed", stream=stream, writer=writer, after=after, upto=upto, error=str(error))
            self._recording.missed(MissingRange(stream, writer or "", after, upto), str(error)[:1000])
            return (), upto

    async def close(self) -> None:
        await self._source.close()
