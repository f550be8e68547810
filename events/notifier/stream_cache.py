"""What a process remembers of one stream: up to where, and when what changed last (pure).

Fed with the rows of each writer in the order of its positions; ``token`` rises after the rows that it covers were fed, never
before. A stream in memory is fed as one lane, in the order of its IDs, up to its linear position; when it begins anew under
another generation, so does what is remembered of it.

Assumes one thread at a time; the caller holds a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from events.notifier.change_index import LastChanges
from events.notifier.routing import Concern, Concerns, Kind
from streams.core.tokens import VectorToken

__all__ = ["ONE_LANE", "At", "HotStream", "Lane"]

#: The lane of a stream that is read in the order of its IDs, whoever wrote.
ONE_LANE = ""


class At(NamedTuple):
    """A position in a stream; ``generation`` is set for streams in memory, which have several lives."""

    token: VectorToken
    generation: int | None


@dataclass(frozen=True, slots=True)
class Lane:
    """Rows to read: of a writer (``ONE_LANE``: of all), ``after < position <= upto``."""

    stream: str
    writer: str
    after: int
    upto: int


@dataclass(slots=True)
class HotStream:
    """One stream."""

    name: str
    concerns: Concerns
    limit: int
    generation: int | None = None
    """None: a stored stream, which has one life."""
    base: int = 0
    positions: dict[str, int] = field(default_factory=dict)
    """Of the writers that take part in the linear position, as heard."""
    fed: dict[str, int] = field(default_factory=dict)
    changes: dict[Kind, LastChanges] = field(default_factory=dict)
    token: VectorToken = field(default_factory=lambda: VectorToken(0))

    @property
    def at(self) -> At:
        """Up to where it is fed."""
        return At(self.token, self.generation)

    @property
    def in_memory(self) -> bool:
        """Whether it is fed as one lane."""
        return self.generation is not None

    def begin(self, floors: Mapping[str, int]) -> None:
        """Everything is fed up to ``fed``; what changed above the floors comes in by ``note``."""
        self.changes = {kind: LastChanges(self.limit, floors) for kind in Kind}
        self._show()

    def note(self, writer: str, position: int, row: Any) -> list[Concern]:
        """Remember whom a row concerns, and return them."""
        found = list(self.concerns(row))
        if found:
            lane = ONE_LANE if self.in_memory else writer
            for kind, entity in found:
                self.changes[kind].add(entity, lane, position)
        return found

    def knows(self, writer: str) -> bool:
        """Whether the writer takes part in the linear position."""
        return writer in self.positions

    def lane(self, writer: str, upto: int) -> Lane | None:
        """What is to be read before that position may show; None: nothing."""
        after = self.fed.get(writer, self.base)
        return Lane(self.name, writer, after, upto) if upto > after else None

    def advance(self, lanes: Iterable[Lane]) -> None:
        """These rows were fed."""
        for lane in lanes:
            self.fed[lane.writer] = max(self.fed.get(lane.writer, 0), lane.upto)
        self._show()

    def heard(self, writer: str, position: int) -> None:
        """A writer's position is announced; its rows were fed."""
        if writer in self.positions:
            self.positions[writer] = max(self.positions[writer], position)

    def writes(self, writer: str) -> None:
        """Facts of this process are about to be fed: it takes part, whether or not that was heard already.

        Else a stream that all have left would show up to them, also what another one that came back has not announced.
        """
        self.positions.setdefault(writer, 0)

    def _show(self) -> None:
        if self.generation is not None:
            self.token = VectorToken(self.fed.get(ONE_LANE, 0))
            return
        # Own facts are fed before they are announced, and say nothing of others: the base goes by what was heard.
        heard = [min(at, self.fed.get(writer, self.base)) for writer, at in self.positions.items()]
        self.base = max(self.base, min(heard) if heard else max(self.fed.values(), default=0))
        self.token = VectorToken.of(self.base, self.fed)
