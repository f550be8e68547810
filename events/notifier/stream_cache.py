"""Remembers, for one stream, the position up to which rows were fed, and the last change of each entity (pure).

The rows of each writer are fed in ascending order. ``token``, the position in answers, rises only after all rows that
it covers were fed. A stream in memory is fed as a single lane: the rows of all writers in ascending order of IDs, up to
the linear position. If such a stream is restarted under another generation, its memory is replaced.

Assumes that the caller holds a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from events.notifier.change_index import LastChanges
from events.notifier.routing import Concern, Concerns, Target
from streams.core.tokens import VectorToken

#: The only lane of a stream that is read in the order of its IDs, for all writers together.
ALL_WRITERS = ""


class At(NamedTuple):
    """A position in a stream. ``generation`` is set for streams in memory, which may be restarted at 0."""

    token: VectorToken
    generation: int | None


@dataclass(frozen=True, slots=True)
class RowRange:
    """A range of rows to read: ``after < position <= upto``, of a writer, or of all (``ALL_WRITERS``)."""

    stream: str
    writer: str
    after: int
    upto: int


@dataclass(slots=True)
class StreamCache:
    """The notifier's memory of one stream. ``fed`` has for each lane the position up to which rows were fed."""

    name: str
    concerns: Concerns
    limit: int
    generation: int | None = None
    """None for a stored stream, which is never restarted."""
    base: int = 0
    positions: dict[str, int] = field(default_factory=dict)
    """Known positions of the writers that take part in the linear position."""
    fed: dict[str, int] = field(default_factory=dict)
    changes: dict[Target, LastChanges] = field(default_factory=dict)
    token: VectorToken = field(default_factory=lambda: VectorToken(0))

    @property
    def at(self) -> At:
        return At(self.token, self.generation)

    @property
    def in_memory(self) -> bool:
        return self.generation is not None

    def reset(self, floors: Mapping[str, int]) -> None:
        """Empties the index.

        Changes at or below ``floors`` are unknown from now on, so the caller adds every row above them.
        """
        self.changes = {kind: LastChanges(self.limit, floors) for kind in Target}
        self._raise_token()

    def add_row(self, writer: str, position: int, row: Any) -> list[Concern]:
        found = list(self.concerns(row))
        if found:
            unread_range = ALL_WRITERS if self.in_memory else writer
            for kind, entity in found:
                self.changes[kind].add(entity, unread_range, position)
        return found

    def unread_range(self, writer: str, upto: int) -> RowRange | None:
        """Returns the rows to read before ``token`` may cover the writer's facts up to ``upto``, or None."""
        after = self.fed.get(writer, self.base)
        return RowRange(self.name, writer, after, upto) if upto > after else None

    def advance(self, ranges: Iterable[RowRange]) -> None:
        """Records that the rows in the ranges were fed, and raises ``token``.

        Without ranges, raises ``token`` only as far as newly stored positions of the writers allow.
        """
        for unread_range in ranges:
            self.fed[unread_range.writer] = max(self.fed.get(unread_range.writer, 0), unread_range.upto)
        self._raise_token()

    def _raise_token(self) -> None:
        if self.generation is not None:
            self.token = VectorToken(self.fed.get(ALL_WRITERS, 0))
            return
        reached = [min(at, self.fed.get(writer, self.base)) for writer, at in self.positions.items()]
        self.base = max(self.base, min(reached) if reached else max(self.fed.values(), default=0))
        self.token = VectorToken.of(self.base, self.fed)
