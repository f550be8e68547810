"""Sources of missed facts: our own tables, or no source.

A follower asks only for ranges that a server has announced, so everything in these ranges is complete. Database work
runs in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec

from streams import registry
from streams.core.declaration import StreamDeclaration
from streams.core.positions import Stored, linear_position, positions_to_show
from streams.core.tokens import VectorToken
from streams.core.watermarks import check_not_trimmed
from streams.db import driver
from streams.epochs import check_epoch, epoch_changed, readable_epoch
from streams.errors import EpochChanged
from streams.reading.possible_positions import possible_positions
from streams.reading.rows import writer_names
from streams.replication.common.table_rows import BatchSizer, FactRange, table_rows
from streams.replication.errors import CatchUpError
from streams.replication.protocol.ordering import FollowedRow

__all__ = ["CatchUp", "NoCatchUp", "TableCatchUp", "Writers"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Writers:
    """All writers of a stream in one snapshot, with the linear position."""

    linear: int
    positions: Mapping[str, int]


class CatchUp(Protocol):
    """The interface of a source of missed facts, as a follower uses it."""

    def covers(self, stream: str) -> bool:
        """Returns true if missed facts of the stream, of any writer, can be fetched here."""

    def can_reset(self, stream: str) -> bool:
        """Returns true if the stream may start again at a lower token. A stream with a durable table may not."""

    async def writers(self, streams: Collection[str] | None) -> Mapping[str, Writers]:
        """Returns the linear position and the writers' positions of each stream, from one snapshot.

        ``streams`` null means all streams. Returns nothing if this source does not know the positions.
        """

    async def fetch(
        self, stream: str, writer: str | None, after: int, upto: int, limit: int
    ) -> tuple[Sequence[FollowedRow], int]:
        """Returns rows of one writer (null: of all) with after < token <= upto, and the position reached.

        Rows are ascending and facts are whole. About ``limit`` rows are returned. Raises ``ResyncNeeded`` if
        facts in the range were trimmed, and `CatchUpError` if they cannot be fetched now.
        """

    async def close(self) -> None:
        """Releases connections and threads."""


class NoCatchUp:
    """A source without facts. Missed facts stay missed, and the follower counts the missed ranges."""

    def covers(self, stream: str) -> bool:
        return False

    def can_reset(self, stream: str) -> bool:
        return True

    async def writers(self, streams: Collection[str] | None) -> Mapping[str, Writers]:
        return {}

    async def fetch(
        self, stream: str, writer: str | None, after: int, upto: int, limit: int
    ) -> tuple[Sequence[FollowedRow], int]:
        raise CatchUpError(f"Facts of {stream} in ({after}, {upto}] cannot be fetched: catch-up is off.")

    async def close(self) -> None:
        pass


class TableCatchUp:
    """A source of missed facts: our own tables, read in bounded batches on a connection of its own.

    Each object serves one follower. ``writers`` raises ``EpochChanged`` if the database was restored since the first
    call of ``writers``, because the follower's cursors then say nothing about the present facts.
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

    async def fetch(
        self, stream: str, writer: str | None, after: int, upto: int, limit: int
    ) -> tuple[Sequence[FollowedRow], int]:
        return await self._in_thread(lambda: self._fetch(stream, writer, after, upto, limit))

    async def token(self, stream: str, text: str) -> VectorToken:
        """Parses a token in its text form. Raises `TokenError`."""
        token = await self._in_thread(lambda: VectorToken.parse(text, self._writer_names(stream)))
        # The writers of a stream announced under one name are hidden from followers: only the linear position counts.
        return VectorToken(token.base) if registry.get(stream).declaration.announced_as else token

    async def check_epoch(self, epoch: str, what: str) -> None:
        """Raises `EpochChanged` if ``epoch`` is not the database's. ``what`` names the token in the message."""
        await self._in_thread(lambda: self._check_epoch(epoch, what))

    async def close(self) -> None:
        await self._in_thread(self._connection.close)
        self._thread.shutdown(wait=True)

    # --- in the thread --------------------------------------------------------------------------------------------

    def _check_epoch(self, epoch: str, what: str) -> None:
        with self._connection.cursor() as cursor:
            check_epoch(cursor, epoch, what)

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

    def _fetch(
        self, stream: str, writer: str | None, after: int, upto: int, limit: int
    ) -> tuple[Sequence[FollowedRow], int]:
        declaration = registry.get(stream).declaration
        wanted = FactRange(after, upto, None if writer is None or declaration.announced_as else [writer])
        pace = self._paces.setdefault(stream, BatchSizer())
        with self._connection.cursor() as cursor:
            # Rows first, then the low-water mark. In the other order, a trim between the two would delete rows of the range,
            # and the reader would miss them without an error.
            rows, reached = table_rows(cursor, declaration, wanted, pace.limit(limit))
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
