"""Events come in one by one: leaves, the current state, and what soft-fails by it (pure).

Used for a whole history and for the next batch alike; the latter begins with the leaves that a room has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, MutableSet
from typing import Generic, Protocol, TypeVar, cast

from msgspec.structs import replace

from events.format.parsing import ParsedEvent
from events.room.graph import Id, Leaves, Node, is_accepted
from events.room.state_assignment import RoomStates
from state.rules.auth_selection import State

__all__ = ["Arrivals", "Arriving", "EventArrivals", "GroupsAfter"]

_MOST_STATES_ON_THE_WAY = 50
"""While leaves have more different states than that, the current state is left as it was: resolving it anew with every event
would take time in proportion to the square of their number. The final one is always worked out."""
_Id_co = TypeVar("_Id_co", covariant=True)
_Id_contra = TypeVar("_Id_contra", contravariant=True)


class Arriving(Node[_Id_co], Protocol[_Id_co]):
    """What arriving depends on in an event."""

    @property
    def soft_failure_given(self) -> bool: ...


class GroupsAfter(Protocol[_Id_contra]):
    """The group after an event, or null."""

    def get(self, event_id: _Id_contra, /) -> int | None: ...


class Arrivals(Generic[Id]):
    """The leaves of a room and the group of its current state (``current``; null: not known) while events come in."""

    def __init__(
        self,
        states: RoomStates,
        leaves: Leaves[Id],
        here: MutableSet[Id],
        after: GroupsAfter[Id],
        fails: Callable[[Arriving[Id], State], bool],
    ) -> None:
        """``leaves`` may have some already; ``here`` are events that came before and are referred to, and is added to.

        ``after`` are the groups after events. ``fails`` tells whether an event may not stand on a state.
        """
        self.leaves = leaves
        self._states = states
        self._here = here
        self._after = after
        self._fails = fails
        self._groups = _LeafGroups[Id]()
        self._groups.change(after, leaves.current, ())
        self.current = self._merged()

    def take(self, event: Arriving[Id]) -> None:
        """An event of the graph, with its verdict."""
        self._here.add(event.event_id)
        is_leaf, gone = self.leaves.add(event)
        self._groups.change(self._after, [event.event_id] if is_leaf else [], gone)
        if len(self._groups.counts) <= _MOST_STATES_ON_THE_WAY:
            self.current = self._merged()

    def take_on_leaves(self, event_id: Id, prev_event_ids: Collection[Id]) -> bool:
        """The short way of ``soft_fails`` and ``take`` for an accepted event that builds on just the current leaves.

        Most do. False: this one does not, and nothing is done.
        """
        if not self.leaves.replace_all(event_id, prev_event_ids):
            return False
        self._here.add(event_id)
        group = self.current = self._after.get(event_id)
        self._groups.counts = {group: 1}
        return True

    def finish(self) -> int | None:
        """The group of the current state, worked out in any case."""
        self.current = self._merged()
        return self.current

    def _merged(self) -> int | None:
        counts = self._groups.counts
        return next(iter(counts)) if len(counts) == 1 else self._states.merged(counts)

    def soft_fails(self, event: Arriving[Id], before: int | None = None) -> bool:
        """Whether an event does that arrives now.

        Asked of accepted events that do not build on just the current leaves and come after their prev events; ``before`` is
        the group before one above a gap, as told from outside: it counts as well.
        """
        if event.soft_failure_given or event.soft_failed or event.rejected_reason is not None or self.current is None:
            return event.soft_failed
        if self.leaves.current.keys() == set(event.prev_event_ids) or event.backfilled:
            return False
        ground: int | None = self.current
        if before is not None:
            ground = self._states.merged([self.current, before])
        elif not all(prev in self._here for prev in event.prev_event_ids):
            return False
        return ground is not None and self._fails(event, self._states.state(ground))


class EventArrivals(Arrivals[str]):
    """The same for events by their IDs."""

    def __init__(self, states: RoomStates, leaves: Leaves[str], here: Iterable[str] = ()) -> None:
        super().__init__(states, leaves, set(here), states.after, self._judged)

    def add(self, event: ParsedEvent) -> ParsedEvent:
        """A live event of the graph; returns it with its verdict, which ``RoomStates.events`` has too."""
        if self.leaves.live and is_accepted(event) and self.take_on_leaves(event.event_id, event.prev_event_ids):
            return event
        told = event.event_id in self._states.on_given
        if self.soft_fails(event, self._states.before[event.event_id] if told else None):
            event = self._states.events[event.event_id] = replace(event, soft_failed=True)
        self.take(event)
        return event

    def _judged(self, event: Arriving[str], ground: State) -> bool:
        return self._states.judge.soft_fails(cast("ParsedEvent", event), ground)


class _LeafGroups(Generic[Id]):
    """How many leaves have which group (null: not known), so that a room of many leaves takes no search."""

    def __init__(self) -> None:
        self.counts: dict[int | None, int] = {}

    def change(self, after: GroupsAfter[Id], new: Iterable[Id], gone: Iterable[Id]) -> None:
        """Leaves come and go."""
        for events, change in ((new, 1), (gone, -1)):
            for event_id in events:
                group = after.get(event_id)
                left = self.counts.pop(group, 0) + change
                if left:
                    self.counts[group] = left
