"""Tracks forward extremities, current state and soft failure while events arrive one by one (pure).

Forward extremities are the events that count and are not reached by an event that counts:

    A <- B <- R <- C        B and C are accepted, R is rejected, D is soft-failed
         B <- D

Rejected, soft-failed and backfilled events do not count. They are *transparent*: they never become forward extremities,
and an event above them reaches the events below them. Here C is the only forward extremity: it reaches R, through R
also B, and D does not count. Without C, it would be B. ``ForwardExtremities`` is the only implementation of that rule.
Live events, imports, rebuilds and checks all use it.

The code is the same for the whole history of a room and for the next batch of events in a stored room. Only the
beginning differs: a batch begins with the stored forward extremities.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, MutableSet, Sequence
from typing import Generic, Protocol, TypeVar, cast

from msgspec.structs import replace

from events.format.parsing import ParsedEvent
from events.room.graph import Id, Node, is_accepted
from events.room.state_assignment import GroupsAfter, RoomStates
from state.rules.auth_selection import State

_MOST_STATES_PER_EVENT = 50
"""The most different states of forward extremities that are resolved after every event.

With more states, the current state is not computed again until the last event. To resolve them after every event would take
time in proportion to the square of their number. The final current state is always computed."""
_Id_co = TypeVar("_Id_co", covariant=True)


class Arriving(Node[_Id_co], Protocol[_Id_co]):
    @property
    def soft_failure_given(self) -> bool: ...


class ForwardExtremities(ABC, Generic[Id]):
    """The forward extremities of a room while its events arrive one by one.

    As long as a room has no accepted live event, accepted backfilled events count. They count no longer when the first
    live event arrives. The result does not depend on the order of arrival, or on how events are divided into batches.
    """

    def __init__(
        self, current: Iterable[Id] = (), reached: MutableSet[Id] | None = None, *, live: bool = False
    ) -> None:
        """Continues from the forward extremities of a stored room (``current``).

        ``reached`` has the IDs of events that have not arrived yet but are reached already; more are added. ``live``: an
        accepted live event is stored, or is part of this batch.
        """
        self.live = live
        self._reached: MutableSet[Id] = set() if reached is None else reached
        self.current: dict[Id, None] = dict.fromkeys(current)

    @abstractmethod
    def find(self, event_ids: Collection[Id]) -> Iterable[Node[Id]]:
        """Returns those of the events that have arrived, are in the graph and do not count.

        May leave out events through which no relevant event is reached.
        """

    def reaches(self, node: Node[Id]) -> Sequence[Id]:
        """Returns the prev events that an event reaches: all of them, unless the state before the event was given."""
        return node.prev_event_ids

    def counts(self, node: Node[Id]) -> bool:
        return is_accepted(node) and not (node.backfilled and self.live)

    def add(self, node: Node[Id]) -> tuple[bool, list[Id]]:
        """Adds an event of the graph. Returns (true if it is a forward extremity now, events that no longer are)."""
        # Before ``_reached`` is read. Example: backfilled event B names L as prev event, and L is the room's first live event.
        # When L arrives, B counts no longer. If B still reached L, the room would have no forward extremity.
        removed = self._go_live() if not self.live and not node.backfilled and is_accepted(node) else []
        counts, reached = self.counts(node), node.event_id in self._reached
        if counts or reached:
            removed += self._reach_prevs(node)
        is_extremity = counts and not reached
        if is_extremity:
            self.current[node.event_id] = None
        return is_extremity, removed

    def replace_all(self, event_id: Id, prev_event_ids: Collection[Id]) -> bool:
        """Does the same as ``add``, fast, for an event that counts on top of exactly the forward extremities.

        Returns false, and does nothing, if it has other prev events, or is itself reached.
        """
        current = self.current
        if (
            len(prev_event_ids) != len(current)
            or not all(map(current.__contains__, prev_event_ids))
            or event_id in self._reached
        ):
            return False
        for prev in prev_event_ids:
            self._reached.add(prev)
        self.current.clear()
        self.current[event_id] = None
        return True

    def _go_live(self) -> list[Id]:
        # All of them are backfilled events, which no longer count and reach nothing.
        self.live = True
        removed = list(self.current)
        self.current.clear()
        self._reached.clear()
        return removed

    def _reach_prevs(self, node: Node[Id]) -> list[Id]:
        removed = []
        below = [node]
        while below:
            new = [prev for prev in self.reaches(below.pop()) if prev not in self._reached]
            for prev in new:
                self._reached.add(prev)
                if prev in self.current:
                    del self.current[prev]
                    removed.append(prev)
            if new:
                below += [found for found in self.find(new) if not self.counts(found)]
        return removed


class ExtremityTracker(Generic[Id]):
    """The forward extremities of a room, and the group of its current state (None: not known) while events arrive."""

    def __init__(
        self,
        states: RoomStates,
        extremities: ForwardExtremities[Id],
        arrived: MutableSet[Id],
        after: GroupsAfter[Id],
        fails: Callable[[Arriving[Id], State], bool],
    ) -> None:
        """``arrived`` has the IDs of the earlier events to which arriving events refer.

        ``after`` maps events to the groups after them. ``fails`` returns true if a state does not allow an event.
        """
        self.extremities = extremities
        self._states = states
        self._arrived = arrived
        self._after = after
        self._fails = fails
        self._groups = _ExtremityGroups[Id]()
        self._groups.change(after, extremities.current, ())
        self.current = self._merged()

    def add_with_verdict(self, event: Arriving[Id]) -> None:
        """Adds an event of the graph with its verdict."""
        self._arrived.add(event.event_id)
        is_extremity, removed = self.extremities.add(event)
        self._groups.change(self._after, [event.event_id] if is_extremity else [], removed)
        if len(self._groups.counts) <= _MOST_STATES_PER_EVENT:
            self.current = self._merged()

    def add_on_extremities(self, event_id: Id, prev_event_ids: Collection[Id]) -> bool:
        """Does the same as ``soft_fails`` and ``add_with_verdict``, fast, for an accepted event on top of all extremities.

        Most events are. For all others, does nothing and returns false.
        """
        if not self.extremities.replace_all(event_id, prev_event_ids):
            return False
        self._arrived.add(event_id)
        group = self.current = self._after.get(event_id)
        self._groups.counts = {group: 1}
        return True

    def finish(self) -> int | None:
        """Returns the group of the current state after all events, even of a room with very many forward extremities."""
        self.current = self._merged()
        return self.current

    def _merged(self) -> int | None:
        counts = self._groups.counts
        return next(iter(counts)) if len(counts) == 1 else self._states.merged(counts)

    def soft_fails(self, event: Arriving[Id], before: int | None = None) -> bool:
        """Returns true if an event that arrives now is soft-failed.

        For an event above a gap, ``before`` is the group of the state before the event that another server gave. This
        state is resolved with the current state.
        """
        if event.soft_failure_given or event.soft_failed or event.rejected_reason is not None or self.current is None:
            return event.soft_failed
        if self.extremities.current.keys() == set(event.prev_event_ids) or event.backfilled:
            return False
        ground: int | None = self.current
        # Both states count for an event above a gap. The given state alone may lack a ban that the current state has, and the
        # current state alone may lack a join from within the gap.
        if before is not None:
            ground = self._states.merged([self.current, before])
        elif not all(prev in self._arrived for prev in event.prev_event_ids):
            return False
        return ground is not None and self._fails(event, self._states.state(ground))


class EventExtremityTracker(ExtremityTracker[str]):
    def __init__(self, states: RoomStates, extremities: ForwardExtremities[str], arrived: Iterable[str] = ()) -> None:

        def fails(event: Arriving[str], current: State) -> bool:
            return states.event_auth.soft_fails(cast("ParsedEvent", event), current)

        super().__init__(states, extremities, set(arrived), states.after, fails)

    def add(self, event: ParsedEvent) -> ParsedEvent:
        """Adds an event of the graph. Stores the event with its verdict in ``RoomStates.events``, and returns it."""
        prevs = event.prev_event_ids
        on_extremities = self.extremities.live and is_accepted(event) and len(prevs) == len(self.extremities.current)
        # An event with a given state may reach only some of its prev events. The others stay forward extremities.
        if (
            on_extremities
            and len(self.extremities.reaches(event)) == len(prevs)
            and self.add_on_extremities(event.event_id, prevs)
        ):
            return event
        is_on_given = event.event_id in self._states.on_given
        # Before ``add_with_verdict``: the event is checked against the current state that the events before it made, and only
        # an event with its final verdict may become a forward extremity.
        if self.soft_fails(event, self._states.before[event.event_id] if is_on_given else None):
            event = self._states.events[event.event_id] = replace(event, soft_failed=True)
        self.add_with_verdict(event)
        return event


class _ExtremityGroups(Generic[Id]):
    # Counts forward extremities by the group after them (None: unknown), so that the groups are found without a search.
    def __init__(self) -> None:
        self.counts: dict[int | None, int] = {}

    def change(self, after: GroupsAfter[Id], new: Iterable[Id], removed: Iterable[Id]) -> None:
        for events, change in ((new, 1), (removed, -1)):
            for event_id in events:
                group = after.get(event_id)
                left = self.counts.pop(group, 0) + change
                if left:
                    self.counts[group] = left
