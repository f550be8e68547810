"""Indexes the last change of each entity, for as many entities as fit (pure).

An entity is a room or a user. The question "has the entity changed since position p?" is answered *no* or *maybe*, and
a *no* is certain. Example with ``limit`` 2:

    add !a at 5, !b at 6, !c at 7      !a is dropped, and the floor is 5
    changed since 6?  !b: no, !c: yes  changed since 4?  maybe, for every room

For each entity and writer the index has the position of the last change. If there are more than ``limit`` such entries,
those with the lowest positions are dropped. The highest position that was dropped of a writer is the *floor* of that
writer. If the token lies below a floor, anything may have changed.

A list has the same changes sorted by position. A query examines either the entries of this list after the token, or the
entities of the query, whichever are fewer. If an entity changes again, the old entry stays in the list at first. Old
entries are removed together, at the latest when the list is about twice as long as ``limit``.

Assumes that only one thread at a time calls these methods. Assumes also that the changes of a writer are added before
any higher position of that writer is shown.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from itertools import islice

from streams.core.tokens import VectorToken

#: The answer that nothing changed.
NOTHING: frozenset[str] = frozenset()


class LastChanges:
    """An index of at most ``limit`` last changes, complete above ``floors``. Raises ``ValueError`` for a limit below 1."""

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
        return dict(self._floors)

    def add(self, entity: str, writer: str, position: int) -> None:
        """Records a change of an entity. Changes may be added in any order."""
        of_writer = self._of_writer.setdefault(writer, {})
        before = of_writer.get(entity, 0)
        if position <= before:
            return
        if position <= self._floors.get(writer, 0):
            return  # the index is incomplete below the floor anyway
        of_writer[entity] = position
        if position > self._last.get(entity, 0):
            self._last[entity] = position
        # Writers move independently, so a change may have a lower position than the last one added.
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
        return all(since.position_of(writer) >= floor for writer, floor in self._floors.items())

    def may_have_changed(self, entity: str, since: VectorToken) -> bool:
        """Returns false if the entity did not change after the token, as far as the index knows."""
        if not self.is_complete_since(since):
            return True
        # A quick test first. Only a change above the base is compared writer by writer.
        return self._last.get(entity, 0) > since.base and self._changed(entity, since)

    def changed_since(self, since: VectorToken) -> frozenset[str] | None:
        """Returns all entities that changed after the token, or None if the token lies below a floor."""
        if not self.is_complete_since(since):
            return None
        if not self._log or self._log[-1][0] <= since.base:
            return NOTHING
        start = bisect_right(self._log, since.base, key=_position)
        found = {entity for _, entity, _ in islice(self._log, start, None)}
        return self._exact(found, since)

    def changed_among(self, entities: AbstractSet[str], since: VectorToken) -> frozenset[str] | None:
        """Returns the entities of ``entities`` that changed after the token, or None if the token lies below a floor."""
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
        # All of them changed after the token's base. If the token has an entry for a writer, only its changes above
        # that count.
        if not since.entries:
            return frozenset(found)
        return frozenset(entity for entity in found if self._changed(entity, since))

    def _changed(self, entity: str, since: VectorToken) -> bool:
        # Fast writer A changed a room at 9, slow writer B at 5. A token that covers A up to 9 and B up to 4 still
        # misses B's change, so the last change of each writer counts, not the last of all.
        return any(of_writer.get(entity, 0) > since.position_of(w) for w, of_writer in self._of_writer.items())

    def _make_room(self) -> None:
        # First the entries whose entity has changed again since, then the oldest above ``limit``.
        self._log = [entry for entry in self._log if self._of_writer[entry[2]].get(entry[1]) == entry[0]]
        excess = len(self._log) - self.limit
        if excess > 0:
            # A tenth more than needed, so that the next change does not do this again.
            excess += self.limit // 10
            for position, entity, writer in self._log[:excess]:
                self._floors[writer] = position
                del self._of_writer[writer][entity]
                if self._last[entity] == position:
                    del self._last[entity]
            del self._log[:excess]


def _position(entry: tuple[int, str, str]) -> int:
    return entry[0]
