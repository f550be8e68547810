"""What a follower asks for the facts that it has missed.

A follower asks only for ranges that a server has announced, so all IDs in these ranges are complete.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from streams.catalog.declarations import declarations
from streams.replication.errors import CatchUpError
from streams.replication.protocol.ordering import FollowedRow

#: Streams that Synapse keeps in the memory of their writer. They start again at 0 when their writer restarts.
MEMORY_STREAMS = frozenset(declared.name for declared in declarations() if declared.in_memory)


@dataclass(frozen=True, slots=True)
class Writers:
    """The linear position of a stream, and the positions of all its writers as ``{writer: position}``, from one snapshot."""

    linear: int
    positions: Mapping[str, int]


class CatchUp(Protocol):
    """A source of missed facts, as a follower uses it. By default it has all streams, and does not know positions."""

    def covers(self, stream: str) -> bool:
        """Returns true if this source has the facts of the stream, of all writers."""
        return True

    def can_reset(self, stream: str) -> bool:
        """Returns true if the stream may start again at a lower token. Only a stream without a durable table may do so."""
        return stream in MEMORY_STREAMS

    async def writers(self, streams: Collection[str] | None) -> Mapping[str, Writers]:
        """Returns the linear position and the writers' positions as ``{stream: Writers}``, from one snapshot.

        If ``streams`` is None, the result has all streams. It is empty if this source does not know the positions.
        """
        return {}

    async def given_out(self, streams: Collection[str]) -> Mapping[str, int]:
        """Returns ``{stream: highest ID that its sequence has given out}``. Omits streams that this source does not know."""
        return {}

    async def fetch(
        self, stream: str, writer: str | None, after: int, upto: int, limit: int
    ) -> tuple[Sequence[FollowedRow], int]:
        """Returns (rows, reached): rows with after < token <= upto of ``writer``, or of all writers if ``writer`` is None.

        ``reached`` is the position up to which the rows are complete. Rows are ascending and facts are whole. About
        ``limit`` rows are returned. Raises ``ResyncNeeded`` if facts in the range were trimmed, and `CatchUpError` if
        they cannot be fetched now.
        """

    async def close(self) -> None:
        """Releases connections and threads."""
        return


class NoCatchUp(CatchUp):
    """A source without facts. The follower then cannot fetch missed facts, and counts the missed ranges."""

    def covers(self, stream: str) -> bool:
        return False

    def can_reset(self, stream: str) -> bool:
        return True

    async def fetch(
        self, stream: str, writer: str | None, after: int, upto: int, limit: int
    ) -> tuple[Sequence[FollowedRow], int]:
        raise CatchUpError(f"Facts of {stream} in ({after}, {upto}] cannot be fetched: catch-up is off.")
