"""Forward extremities, current state and soft failure, while events arrive one by one (pure).

A whole history and the next batch of a stored room use the same code. A batch begins with the room's forward extremities.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, MutableSet
from typing import Generic, Protocol, TypeVar, cast

from msgspec.structs import replace

from events.format.parsing import ParsedEvent
from events.room.graph import Id, Leaves, Node
from events.room.state_assignment import RoomStates
from state.rules.auth_selection import State

__all__ = ["Arrivals", "Arriving", "EventArrivals", "GroupsAfter"]

_MOST_STATES_ON_THE_WAY = 50
"""While forward extremities have more different states than that, the current state is not updated. Resolving it with every
event would take time in proportion to the square of their number. The final one is always computed."""
_Id_co = TypeVar("_Id_co", covariant=True)
_Id_contra = TypeVar("_Id_contra", contravariant=True)


class Arriving(Node[_Id_co], Protocol[_Id_co]):
    """The fields of an event that matter when it arrives."""

    @property
    def soft_failure_given(self) -> bool: ...


class GroupsAfter(Protocol[_Id_contra]):
    """A map from an event to the state group after it."""

    def get(self, event_id: _Id_contra, /) -> int | None: ...


class Arrivals(Generic[Id]):
    """The forward extremities of a room and the group of its current state while events arrive.

    ``current`` is that group, or null if it is not known.
    """

    def __init__(
        self,
        states: RoomStates,
        leaves: Leaves[Id],
        here: MutableSet[Id],
        after: GroupsAfter[Id],
        fails: Callable[[Arriving[Id], State], bool],
    ) -> None:
        """``here`` holds earlier events that are referred to, and is extended. ``after`` maps events to the groups after them.

        ``fails`` returns true if a state does not allow an event.
        """
        self.leaves = leaves
        self._states = states
        self._here = here
        self._after = after
        self._fails = fails
        self._groups = _LeafGroups[Id]()
        self._groups.change(after, leaves.current, ())
        self.current = states.merged(self._groups.counts)

    def take(self, event: Arriving[Id]) -> None:
        """Adds an event of the graph with its verdict."""
        self._here.add(event.event_id)
        is_leaf, gone = self.leaves.add(event)
        self._groups.change(self._after, [event.event_id] if is_leaf else [], gone)
        if len(self._groups.counts) <= _MOST_STATES_ON_THE_WAY:
            self.current = self._states.merged(self._groups.counts)

    def take_on_leaves(self, event_id: Id, prev_event_ids: Collection[Id]) -> bool:
        """Takes the fast path of ``soft_fails`` and ``take`` for an accepted event on exactly the current forward extremities.

        Most events are of that kind. Returns false, and does nothing, for others.
        """
        if not self.leaves.replace_all(event_id, prev_event_ids):
            return False
        self._here.add(event_id)
        group = self.current = self._after.get(event_id)
        self._groups.counts = {group: 1}
        return True

    def finish(self) -> int | None:
        """Returns the group of the current state, even if there were too many forward extremities to follow it."""
        self.current = self._states.merged(self._groups.counts)
        return self.current

    def soft_fails(self, event: Arriving[Id], before: int | None = None) -> bool:
        """Returns true if an event that arrives now is soft-failed.

        It is called for accepted events that come after their prev events and do not build on exactly the current forward
        extremities. ``before`` is the given group before an event above a gap. That state is resolved with the current one.
        """
        if event.soft_failure_given or event.soft_failed or event.rejected_reason is not None or self.current is None:
            return event.soft_failed
        if event.backfilled or self.leaves.current.keys() == set(event.prev_event_ids):
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
        """Adds an event of the graph. Returns it with its verdict, which is stored in ``RoomStates.events`` as well."""
        told = event.event_id in self._states.on_given
        if self.soft_fails(event, self._states.before[event.event_id] if told else None):
            event = self._states.events[event.event_id] = replace(event, soft_failed=True)
        self.take(event)
        return event

    def _judged(self, event: Arriving[str], ground: State) -> bool:
        return self._states.judge.soft_fails(cast("ParsedEvent", event), ground)


class _LeafGroups(Generic[Id]):
    """The number of forward extremities in each group (null: unknown group).

    A room with many forward extremities needs no search this way.
    """

    def __init__(self) -> None:
        self.counts: dict[int | None, int] = {}

    def change(self, after: GroupsAfter[Id], new: Iterable[Id], gone: Iterable[Id]) -> None:
        """Counts the forward extremities that were added and removed."""
        for events, change in ((new, 1), (gone, -1)):
            for event_id in events:
                group = after.get(event_id)
                left = self.counts.pop(group, 0) + change
                if left:
                    self.counts[group] = left
