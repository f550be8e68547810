"""A made-up site, as plain as the rules of ``docs/explanation/streams.md``: writers, a table, stored positions (pure).

Writers join, reserve, commit or roll back in any order, announce late, and leave. Nothing here is shared with the
product, so that it can be held against it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["STREAM", "At", "History"]

STREAM = "s"
NAMES = ("a", "b", "c", "d")


@dataclass(frozen=True)
class At:
    """A stored position, in the shape that the product reads."""

    position: int
    state: str = "active"
    generation: int = 0


@dataclass
class History:
    """The tables, and who has what open."""

    rng: random.Random
    sequence: int = 1
    facts: dict[int, tuple[str, int]] = field(default_factory=dict)
    """ID -> (writer, number of rows), once committed."""
    stored: dict[str, At] = field(default_factory=dict)
    open: list[tuple[str, list[int]]] = field(default_factory=list)

    def step(self) -> None:
        """Something happens."""
        rng = self.rng
        moves = (self._join, self._reserve, self._end, self._announce, self._leave)
        rng.choices(moves, (2, 5, 6, 8, 1))[0]()

    def end(self) -> None:
        """Everything ends, and everybody says how far it got."""
        while self.open:
            self._end()
        for name in self._active():
            self._say(name)
        for name in self._active():
            self._say(name)

    def rows(self, writer: str | None, after: int, upto: int) -> list[tuple[int, str, int]]:
        """(ID, writer, number of the row) in a range, ascending."""
        return [
            (number, name, row)
            for number, (name, count) in sorted(self.facts.items())
            if after < number <= upto and writer in (None, name)
            for row in range(count)
        ]

    def snapshot(self) -> Mapping[str, Mapping[str, At]]:
        """What a server reads at once."""
        return {STREAM: dict(self.stored)}

    def is_open_below(self, writer: str | None, position: int) -> bool:
        """Whether something at or below the position may still be committed."""
        return any(ids[0] <= position for name, ids in self.open if writer in (None, name))

    # --- moves ----------------------------------------------------------------------------------------------------

    def _active(self) -> list[str]:
        return sorted(name for name, at in self.stored.items() if at.state == "active")

    def _highest(self) -> int:
        return max((at.position for at in self.stored.values()), default=1)

    def _join(self) -> None:
        """The row is there before anything is reserved, at or above all others."""
        name = self.rng.choice(NAMES)
        if name not in self._active():
            self.stored[name] = At(self._highest())

    def _reserve(self) -> None:
        if self._active():
            count = self.rng.choice([1, 1, 1, 2, 3])
            self.open.append((self.rng.choice(self._active()), [self.sequence + n + 1 for n in range(count)]))
            self.sequence += count

    def _end(self) -> None:
        if not self.open:
            return
        name, ids = self.open.pop(self.rng.randrange(len(self.open)))
        if self.rng.random() < 0.75:
            self.facts |= {number: (name, self.rng.choice([1, 1, 1, 2, 3])) for number in ids}

    def _announce(self) -> None:
        if self._active():
            self._say(self.rng.choice(self._active()))

    def _say(self, name: str) -> None:
        """The furthest real ID below everything that the writer has open; of others only what they announced."""
        bound = min((ids[0] for writer, ids in self.open if writer == name), default=self.sequence + 1)
        own = [number for number, (writer, _) in self.facts.items() if writer == name]
        heard = [at.position for at in self.stored.values()]
        reachable = [number for number in own + heard if number < bound]
        self.stored[name] = At(max([self.stored[name].position, *reachable]))

    def _leave(self) -> None:
        name = self.rng.choice(NAMES)
        if name in self._active() and not any(writer == name for writer, _ in self.open):
            self._say(name)
            self.stored[name] = At(self.stored[name].position, "retired")
