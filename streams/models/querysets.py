"""The usual questions to stream positions, for whoever imports the models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streams.models.read_only import ReadOnlyQuerySet

if TYPE_CHECKING:
    from streams.models import StreamPosition  # noqa: F401 - the names stand in strings

__all__ = ["StreamPositionQuerySet"]


class StreamPositionQuerySet(ReadOnlyQuerySet["StreamPosition"]):
    """How far the writers of streams are; indexed by (stream, instance_name)."""

    def of_stream(self, stream: str) -> StreamPositionQuerySet:
        """The stream's writers that are not retired."""
        return self.filter(stream=stream).exclude(state="retired")

    def vector(self, stream: str) -> dict[str, int]:
        """Writer -> position: everything of the writer up to there can be read. Retired writers are left out."""
        return dict(self.of_stream(stream).values_list("instance_name", "position"))

    def linear(self, stream: str) -> int | None:
        """The position up to which everything of all writers can be read; null: the stream has no writer."""
        return min(self.vector(stream).values(), default=None)

    def pending(self) -> StreamPositionQuerySet:
        """Writers with IDs that are reserved and not complete, the one that waits longest first."""
        return self.filter(pending_facts__gt=0).order_by("oldest_pending_at")
