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

__all__ = ["ONE_LANE", "At", "StreamCache", "WriterChanges"]

#: The only lane of a stream that is read in the order of its IDs, for all writers together.
ONE_LANE = ""


class At(NamedTuple):
    """A position in a stream. ``generation`` is set for streams in memory, which may be restarted at 0."""

    token: VectorToken
    generation: int | None


@dataclass(frozen=True, slots=True)
class WriterChanges:
    """A range of rows to read: the rows of a writer with ``after < position <= upto``.

    If the writer is ``ONE_LANE``, the range has the rows of all writers.
    """

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
        """The position up to which the stream is fed."""
        return At(self.token, self.generation)

    @property
    def in_memory(self) -> bool:
        """True for a stream in memory. The rows of all its writers are fed together, as one lane."""
        return self.generation is not None

    def begin(self, floors: Mapping[str, int]) -> None:
        """Creates an empty index of changes, and computes ``token`` from the positions in ``fed``.

        The index counts as complete above the positions ``floors``. So the caller has to add all rows above these
        positions with ``note``.
        """
        self.changes = {kind: LastChanges(self.limit, floors) for kind in Target}
        self._show()

    def note(self, writer: str, position: int, row: Any) -> list[Concern]:
        """Remembers and returns the entities that a row concerns."""
        found = list(self.concerns(row))
        if found:
            lane = ONE_LANE if self.in_memory else writer
            for kind, entity in found:
                self.changes[kind].add(entity, lane, position)
        return found

    def lane(self, writer: str, upto: int) -> WriterChanges | None:
        """Returns the range of rows to read before ``token`` may cover the writer's facts up to ``upto``.

        Returns None if the range is empty.
        """
        after = self.fed.get(writer, self.base)
        return WriterChanges(self.name, writer, after, upto) if upto > after else None

    def advance(self, lanes: Iterable[WriterChanges]) -> None:
        """Records that the rows in the ranges ``lanes`` were fed, and raises ``token``.

        Without ranges, raises ``token`` only as far as newly stored positions of the writers allow.
        """
        for lane in lanes:
            self.fed[lane.writer] = max(self.fed.get(lane.writer, 0), lane.upto)
        self._show()

    def _show(self) -> None:
        if self.generation is not None:
            self.token = VectorToken(self.fed.get(ONE_LANE, 0))
            return
        heard = [min(at, self.fed.get(writer, self.base)) for writer, at in self.positions.items()]
        self.base = max(self.base, min(heard) if heard else max(self.fed.values(), default=0))
        self.token = VectorToken.of(self.base, self.fed)
