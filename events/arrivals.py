"""Events come in one by one: leaves, the current state, and what soft-fails by it (pure).

Used for a whole history and for the next batch alike; the latter begins with the leaves that a room has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from events.graph import Leaves
from events.parsing import ParsedEvent
from events.room_states import RoomStates

__all__ = ["Arrivals"]

_MOST_STATES_ON_THE_WAY = 50
"""While leaves have more different states than that, the current state is left as it was: resolving it anew with every event
would take time in proportion to the square of their number. The final one is always worked out."""


class Arrivals:
    """The leaves of a room and the group of its current state (``current``; null: not known) while events come in."""

    def __init__(self, states: RoomStates, leaves: Leaves, here: Iterable[str] = ()) -> None:
        """``leaves`` may have some already; ``here`` are events that came before and are referred to."""
        self.leaves = leaves
        self._states = states
        self._here = set(here)
        self._groups = _LeafGroups()
        self._groups.change(states.after, leaves.current, ())
        self.current = states.merged(self._groups.counts)

    def add(self, event: ParsedEvent) -> ParsedEvent:
        """An event of the graph; returns it with its verdict, which ``RoomStates.events`` has too."""
        if self._soft_fails(event):
            event = self._states.events[event.event_id] = replace(event, soft_failed=True)
        self._here.add(event.event_id)
        is_leaf, gone = self.leaves.add(event)
        self._groups.change(self._states.after, [event.event_id] if is_leaf else [], gone)
        if len(self._groups.counts) <= _MOST_STATES_ON_THE_WAY:
            self.current = self._states.merged(self._groups.counts)
        return event

    def drop(self, leaves: Iterable[str]) -> None:
        """These are no leaves, as it turns out; one is always left."""
        gone = [leaf for leaf in leaves if leaf in self.leaves.current]
        if len(gone) < len(self.leaves.current):
            for leaf in gone:
                del self.leaves.current[leaf]
            self._groups.change(self._states.after, (), gone)

    def finish(self) -> int | None:
        """The group of the current state, worked out in any case."""
        self.current = self._states.merged(self._groups.counts)
        return self.current

    def _soft_fails(self, event: ParsedEvent) -> bool:
        """Asked of accepted events that do not build on just the current leaves and come after their prev events."""
        if event.soft_failure_given or event.soft_failed or event.rejected_reason is not None or self.current is None:
            return event.soft_failed
        if event.backfilled or self.leaves.current.keys() == set(event.prev_event_ids):
            return False
        ground: int | None = self.current
        if event.event_id in self._states.on_given:  # above a gap: what is told from outside counts as well
            ground = self._states.merged([self.current, self._states.before[event.event_id]])
        elif not self._here.issuperset(event.prev_event_ids):
            return False
        return ground is not None and self._states.judge.soft_fails(event, self._states.state(ground))


class _LeafGroups:
    """How many leaves have which group (null: not known), so that a room of many leaves takes no search."""

    def __init__(self) -> None:
        self.counts: dict[int | None, int] = {}

    def change(self, after: Mapping[str, int], new: Iterable[str], gone: Iterable[str]) -> None:
        """Leaves come and go."""
        for events, change in ((new, 1), (gone, -1)):
            for event_id in events:
                group = after.get(event_id)
                left = self.counts.pop(group, 0) + change
                if left:
                    self.counts[group] = left
