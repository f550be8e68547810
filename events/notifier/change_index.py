"""When something changed last, of as many things as fit (pure): "changed since p?" is answered *no* or *maybe*; *no* is sure.

An entity (a room, a user) has for each writer the position of its last change. Bounded: with more than ``limit`` of them the
oldest are forgotten, and for each writer the highest position so forgotten is its *floor*. A question from below a floor
cannot be answered: everything may have changed.

The changes also stand in a list by position, so that a question looks at the few that are newer, or at the few entities that
are asked about, whichever are fewer. Entries of the list that a later change made superfluous are thrown out when they
have become as many as the others.

Assumes that each writer's changes are added before anybody asks with a position above them, and one thread at a time.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from itertools import islice

from streams.core.tokens import VectorToken

__all__ = ["NOTHING", "LastChanges"]

#: The answer that nothing changed.
NOTHING: frozenset[str] = frozenset()


class LastChanges:
    """At most ``limit`` last changes; complete above ``floors``, by writer."""

    def __init__(self, limit: int, floors: Mapping[str, int] | None = None) -> None:
        if limit < 1:
            raise ValueError(f"A cache of {limit} entities answers nothing; give it one at least.")
        self.limit = limit
        self._floors = dict(floors or {})
        self._last: dict[str, int] = {}
        self._of_writer: dict[str, dict[str, int]] = {}
        self._log: list[tuple[int, str, str]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def floors(self) -> Mapping[str, int]:
        """For each writer the position above which its changes are all known."""
        return dict(self._floors)

    def add(self, entity: str, writer: str, position: int) -> None:
        """It changed there; in any order."""
        of_writer = self._of_writer.setdefault(writer, {})
        before = of_writer.get(entity, 0)
        if position <= before:
            return
        if position <= self._floors.get(writer, 0):
            return  # forgotten already, as others of that age
        of_writer[entity] = position
        if position > self._last.get(entity, 0):
            self._last[entity] = position
        entry = (position, entity, writer)
        if not self._log or position > self._log[-1][0]:
            self._log.append(entry)
        else:
            insort(self._log, entry)
        self._count += not before
        if self._count > self.limit or len(self._log) > 2 * self.limit + 64:
            self._make_room()
            self._count = len(self._log)

    def is_complete_since(self, since: VectorToken) -> bool:
        """Whether every change after that token is known here."""
        return all(since.position_of(writer) >= floor for writer, floor in self._floors.items())

    def may_have_changed(self, entity: str, since: VectorToken) -> bool:
        """False: it did not change after that token, as far as changes were added."""
        if not self.is_complete_since(since):
            return True
        return self._last.get(entity, 0) > since.base and self._changed(entity, since)

    def changed_since(self, since: VectorToken) -> frozenset[str] | None:
        """All entities that changed after that token; None: that is too long ago."""
        if not self.is_complete_since(since):
            return None
        if not self._log or self._log[-1][0] <= since.base:
            return NOTHING
        start = bisect_right(self._log, since.base, key=_position)
        found = {entity for _, entity, _ in islice(self._log, start, None)}
        return self._exact(found, since)

    def changed_among(self, entities: AbstractSet[str], since: VectorToken) -> frozenset[str] | None:
        """Those of the entities that changed after that token; None: that is too long ago."""
        if not self.is_complete_since(since):
            return None
        if not self._log or self._log[-1][0] <= since.base:
            return NOTHING
        start = bisect_right(self._log, since.base, key=_position)
        if len(self._log) - start < len(entities):
            found = {entity for _, entity, _ in islice(self._log, start, None) if entity in entities}
        else:
            last, base = self._last, since.base
            found = {entity for entity in entities if last.get(entity, 0) > base}
        return self._exact(found, since) if found else NOTHING

    def _exact(self, found: AbstractSet[str], since: VectorToken) -> frozenset[str]:
        """Without those whose changes above the base are all covered by the entries of the token."""
        if not since.entries:
            return frozenset(found)
        return frozenset(entity for entity in found if self._changed(entity, since))

    def _changed(self, entity: str, since: VectorToken) -> bool:
        return any(of_writer.get(entity, 0) > since.position_of(w) for w, of_writer in self._of_writer.items())

    def _make_room(self) -> None:
        """Throw out superfluous entries of the list, then the oldest changes when there are too many."""
        self._log = [entry for entry in self._log if self._of_writer[entry[2]].get(entry[1]) == entry[0]]
        excess = len(self._log) - self.limit
        if excess > 0:  # a few more than needed, so that this is not done again with the next change
            excess += self.limit // 10
            for position, entity, writer in self._log[:excess]:
                self._floors[writer] = position
                del self._of_writer[writer][entity]
                if self._last[entity] == position:
                    del self._last[entity]
            del self._log[:excess]


def _position(entry: tuple[int, str, str]) -> int:
    return entry[0]
