"""Our own tables as a source of missed facts. Database queries run in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from streams import registry
from streams.core.declaration import StreamDeclaration
from streams.core.positions import Stored, linear_position, positions_to_show
from streams.core.tokens import VectorToken
from streams.core.watermarks import check_not_trimmed
from streams.db import driver
from streams.epochs import check_epoch, epoch_changed, readable_epoch
from streams.errors import EpochChanged
from streams.reading.possible_positions import given_out, possible_positions
from streams.reading.rows import existing_rows, writer_names
from streams.replication.client.catch_up import CatchUp, Writers
from streams.replication.common.batch_sizer import BatchSizer
from streams.replication.errors import CatchUpError
from streams.replication.protocol.ordering import FollowedRow

T = TypeVar("T")


class TableCatchUp(CatchUp):
    """A source of missed facts: our own tables, read in bounded batches on a connection of its own.

    Each object serves one follower. ``writers`` raises ``EpochChanged`` if the database was restored since the first
    call of ``writers``, because the follower's cursors are then not valid in the restored database.
    """

    def __init__(self, using: str, name: str) -> None:
        self._epoch = ""
        self._connection = driver.KeptConnection(using, name, reads_in_order=True)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="catch-up")
        self._paces: dict[str, BatchSizer] = {}

    def covers(self, stream: str) -> bool:
        return stream in registry.names()

    def can_reset(self, stream: str) -> bool:
        return not self.covers(stream) or registry.get(stream).declaration.in_memory

    async def writers(self, streams: Collection[str] | None) -> Mapping[str, Writers]:
        return await self._in_thread(lambda: self._writers(streams))

    async def given_out(self, streams: Collection[str]) -> Mapping[str, int]:
        return await self._in_thread(lambda: self._given_out(streams))

    async def fetch(
        self, stream: str, writer: str | None, after: int, upto: int, limit: int
    ) -> tuple[Sequence[FollowedRow], int]:
        return await self._in_thread(lambda: self._fetch(stream, writer, after, upto, limit))

    async def token(self, stream: str, text: str) -> VectorToken:
        token = await self._in_thread(lambda: VectorToken.parse(text, self._writer_names(stream)))
        # The writers of a stream announced under one name are hidden from followers: only the linear position counts.
        return VectorToken(token.base) if registry.get(stream).declaration.announced_as else token

    async def check_epoch(self, epoch: str, subject: str) -> None:
        await self._in_thread(lambda: self._check_epoch(epoch, subject))

    async def close(self) -> None:
        await self._in_thread(self._connection.close)
        self._thread.shutdown(wait=True)

    # --- in the thread --------------------------------------------------------------------------------------------

    def _check_epoch(self, epoch: str, subject: str) -> None:
        with self._connection.cursor() as cursor:
            check_epoch(cursor, epoch, subject)

    def _check_life(self, epoch: str) -> None:
        if epoch_changed(self._epoch, epoch):
            raise EpochChanged(
                f"The database is in another epoch than {self._epoch}, in which it was followed until now: it was restored, or "
                "another one took over. Facts that were handled may be gone, and their IDs may have other facts: follow again, "
                "without a stored cursor."
            )
        self._epoch = epoch

    def _writers(self, streams: Collection[str] | None) -> dict[str, Writers]:
        wanted = registry.names() if streams is None else [name for name in streams if self.covers(name)]
        with self._connection.cursor() as cursor:
            self._check_life(readable_epoch(cursor))
            found = possible_positions(cursor, wanted)
        return {name: _writers_of(found.get(name, {}), registry.get(name).declaration) for name in wanted}

    def _given_out(self, streams: Collection[str]) -> dict[str, int]:
        with self._connection.cursor() as cursor:
            return given_out(cursor, streams)

    def _fetch(
        self, stream: str, writer: str | None, after: int, upto: int, limit: int
    ) -> tuple[Sequence[FollowedRow], int]:
        declaration = registry.get(stream).declaration
        writers = None if writer is None or declaration.announced_as else [writer]
        pace = self._paces.setdefault(stream, BatchSizer())
        with self._connection.cursor() as cursor:
            # Rows first, then the low-water mark. In the other order, a trim between the two would delete rows of the range,
            # and the reader would miss them without an error.
            rows, reached = existing_rows(cursor, declaration, writers, after, upto, pace.limit(limit))
            check_not_trimmed(cursor, stream, VectorToken(after), writer)
        pace.learn(rows)
        if announced := declaration.announced_as:
            rows = [msgspec.structs.replace(row, instance=announced) for row in rows]
        return rows, reached

    def _writer_names(self, stream: str) -> dict[int, str]:
        with self._connection.cursor() as cursor:
            return writer_names(cursor, stream)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except driver.DatabaseError as error:
            raise CatchUpError(f"The table cannot be read: {str(error).strip()}") from error


def _writers_of(stored: Mapping[str, Stored], declaration: StreamDeclaration) -> Writers:
    linear = linear_position(stored.values(), declaration.empty_position)
    if declaration.announced_as:
        return Writers(linear, {declaration.announced_as: linear})
    return Writers(linear, positions_to_show(stored, linear))
