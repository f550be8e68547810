"""Events come in one by one: forward extremities, the current state, and what soft-fails by it (pure).

Forward extremities are called leaves here. Rejected, soft-failed and backfilled events are *looked through*: they never become
leaves, and what they refer to stays a leaf until an accepted live event reaches it. Nothing is reached through an outlier.
``Leaves`` is the one rule for events that come in, imports, rebuilding and checking. A batch begins with the leaves that the
room has, a whole history with none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, MutableSet
from typing import Generic, Protocol, TypeVar, cast

from msgspec.structs import replace

from events.format.parsing import ParsedEvent
from events.room.graph import Id, Node, is_accepted
from events.room.state_assignment import RoomStates
from state.rules.auth_selection import State

__all__ = ["Arrivals", "Arriving", "EventArrivals", "GroupsAfter", "Leaves"]

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


class Leaves(Generic[Id]):
    """The forward extremities of a room while its events arrive one by one.

    An event *counts* when it is accepted and live. In a room without such an event accepted backfilled ones count; the first live
    one ends that, and their leaves with it. The leaves are the events that count and that no other one reaches: from an event
    that counts its prev events are reached, and from reached events that do not count theirs. So the order of arrival decides
    nothing, nor does whether an event came by itself or in a batch.
    """

    def __init__(
        self,
        current: Iterable[Id] = (),
        reached: MutableSet[Id] | None = None,
        find: Callable[[Collection[Id]], Iterable[Node[Id]]] | None = None,
        *,
        live: bool = False,
    ) -> None:
        """To go on with a stored room: its leaves, and events to come that are reached.

        ``find`` finds, among some events, those of the graph that do not count, as far as anything that matters is reached
        through them; without it those that have arrived are remembered. ``reached`` is added to. ``live``: an accepted live
        event is here, or is going to be.
        """
        self.live = live
        self._reached: MutableSet[Id] = set() if reached is None else reached
        self._find = self._of_here if find is None else find
        self._here: dict[Id, Node[Id]] | None = {} if find is None else None
        """Events that have arrived and may be looked through."""
        self.current: dict[Id, None] = dict.fromkeys(current)

    def counts(self, node: Node[Id]) -> bool:
        """Whether it may be a leaf, and reaches others."""
        return is_accepted(node) and not (node.backfilled and self.live)

    def add(self, node: Node[Id]) -> tuple[bool, list[Id]]:
        """An event of the graph arrives; returns whether it is a leaf now, and the leaves that are none any more.

        One that does not count changes nothing until it is reached.
        """
        gone = self._begin() if not self.live and not node.backfilled and is_accepted(node) else []
        if self._here is not None and (node.backfilled or not is_accepted(node)):
            self._here[node.event_id] = node
        counts, reached = self.counts(node), node.event_id in self._reached
        if counts or reached:
            gone += self._reach_below(node)
        is_leaf = counts and not reached
        if is_leaf:
            self.current[node.event_id] = None
        return is_leaf, gone

    def replace_all(self, event_id: Id, prev_event_ids: Collection[Id]) -> bool:
        """The short way of ``add`` for an event that counts and builds on just the current leaves: it is the only one then.

        False: it does not, or is no leaf itself; nothing is done.
        """
        if not self._are_current(prev_event_ids) or event_id in self._reached:
            return False
        for prev in prev_event_ids:
            self._reached.add(prev)
        self.current.clear()
        self.current[event_id] = None
        return True

    def _are_current(self, event_ids: Collection[Id]) -> bool:
        """Whether just these are the leaves."""
        current = self.current
        if len(event_ids) != len(current):
            return False
        return all(map(current.__contains__, event_ids))

    def _begin(self) -> list[Id]:
        """The first accepted live event: backfilled ones count no more, and what they reached is not reached."""
        self.live = True
        gone = list(self.current)
        self.current.clear()
        self._reached.clear()
        return gone

    def _reach_below(self, node: Node[Id]) -> list[Id]:
        """It counts, or is reached: its prev events are leaves no more, nor are those below what is looked through."""
        gone = []
        below = [node]
        while below:
            new = [prev for prev in below.pop().prev_event_ids if prev not in self._reached]
            for prev in new:
                self._reached.add(prev)
                if prev in self.current:
                    del self.current[prev]
                    gone.append(prev)
            if new:
                below += [found for found in self._find(new) if not self.counts(found)]
        return gone

    def _of_here(self, event_ids: Collection[Id]) -> Iterable[Node[Id]]:
        here = self._here or {}
        return [here[event_id] for event_id in event_ids if event_id in here]


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
