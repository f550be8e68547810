"""Tracks forward extremities, current state and soft failure while events arrive one by one (pure).

Rejected, soft-failed and backfilled events are *transparent*: they never become forward extremities, and the events
they refer to stay forward extremities until an accepted live event reaches them. ``ForwardExtremities`` is the only
implementation of that rule. Live events, imports, rebuilds and checks all use it.

The code is the same for the whole history of a room and for the next batch of events in a stored room. Only the
beginning differs: a whole history begins without forward extremities, and a batch begins with the stored forward
extremities.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, MutableSet, Sequence
from typing import Generic, Protocol, TypeVar, cast

from msgspec.structs import replace

from events.format.parsing import ParsedEvent
from events.room.graph import Id, Node, is_accepted
from events.room.state_assignment import RoomStates
from state.rules.auth_selection import State

__all__ = ["Arriving", "EventExtremityTracker", "ExtremityTracker", "ForwardExtremities", "GroupsAfter"]

_MOST_STATES_ON_THE_WAY = 50
"""The most different states of forward extremities that are resolved after every event.

With more states, the current state is not computed again until the last event. To resolve them after every event would take
time in proportion to the square of their number. The final current state is always computed."""
_Id_co = TypeVar("_Id_co", covariant=True)
_Id_contra = TypeVar("_Id_contra", contravariant=True)


class Arriving(Node[_Id_co], Protocol[_Id_co]):
    """The fields of an event on which the result of its arrival depends."""

    @property
    def soft_failure_given(self) -> bool: ...


class GroupsAfter(Protocol[_Id_contra]):
    """A map from an event to the state group after the event."""

    def get(self, event_id: _Id_contra, /) -> int | None: ...


class ForwardExtremities(Generic[Id]):
    """The forward extremities of a room while its events arrive one by one.

    An event *counts* if it is accepted and live. As long as a room has no accepted live event, accepted backfilled
    events count. When the first live event arrives, the backfilled events count no longer, and are no longer forward
    extremities.

    An event that counts *reaches* its prev events. If a reached event does not count, its own prev events are reached, too.
    Forward extremities are the events that count and are not reached. So the result does not depend on the order of arrival,
    or on how events are divided into batches.
    """

    def __init__(
        self,
        current: Iterable[Id] = (),
        reached: MutableSet[Id] | None = None,
        find: Callable[[Collection[Id]], Iterable[Node[Id]]] | None = None,
        *,
        live: bool = False,
        reaches: Callable[[Node[Id]], Sequence[Id]] = lambda node: node.prev_event_ids,
    ) -> None:
        """Continues from the forward extremities of a stored room (``current``).

        ``reached`` has the IDs of events that have not arrived yet but are reached already. This object adds more IDs
        to ``reached``.

        ``find`` receives event IDs, and returns the events among them that are in the graph and do not count. ``find``
        may leave out events through which no relevant event is reached. Without ``find``, this object keeps the events
        that arrive.

        ``live`` is true if an accepted live event is stored, or is part of this batch. ``reaches`` returns the prev events
        that an event reaches. These are all its prev events, unless the state before the event was given.
        """
        self.live = live
        self.reaches = reaches
        self._reached: MutableSet[Id] = set() if reached is None else reached
        self._find = self._of_here if find is None else find
        self._here: dict[Id, Node[Id]] | None = {} if find is None else None
        """Transparent events that have arrived."""
        self.current: dict[Id, None] = dict.fromkeys(current)

    def counts(self, node: Node[Id]) -> bool:
        """Returns true if the event can be a forward extremity, and so reaches its prev events."""
        return is_accepted(node) and not (node.backfilled and self.live)

    def add(self, node: Node[Id]) -> tuple[bool, list[Id]]:
        """Adds an event of the graph. Returns (true if it is a forward extremity now, events that no longer are).

        An event that does not count has no effect by itself. Once it is reached, its prev events are reached, too.
        """
        # Before ``_reached`` is read. Example: backfilled event B names L as prev event, and L is the room's first live event.
        # When L arrives, B counts no longer. If B still reached L, the room would have no forward extremity.
        gone = self._begin() if not self.live and not node.backfilled and is_accepted(node) else []
        if self._here is not None and (node.backfilled or not is_accepted(node)):
            self._here[node.event_id] = node
        counts, reached = self.counts(node), node.event_id in self._reached
        if counts or reached:
            gone += self._reach_below(node)
        is_extremity = counts and not reached
        if is_extremity:
            self.current[node.event_id] = None
        return is_extremity, gone

    def replace_all(self, event_id: Id, prev_event_ids: Collection[Id]) -> bool:
        """Takes the fast path of ``add``, for an event that counts and whose prev events are exactly the forward extremities.

        The event becomes the only forward extremity. If the event has other prev events, or is itself reached, does nothing
        and returns false.
        """
        if not self._are_current(prev_event_ids) or event_id in self._reached:
            return False
        for prev in prev_event_ids:
            self._reached.add(prev)
        self.current.clear()
        self.current[event_id] = None
        return True

    def _are_current(self, event_ids: Collection[Id]) -> bool:
        """Returns true if these are exactly the forward extremities."""
        current = self.current
        if len(event_ids) != len(current):
            return False
        return all(map(current.__contains__, event_ids))

    def _begin(self) -> list[Id]:
        """Removes all forward extremities when the first accepted live event arrives, and returns them.

        The removed events are backfilled events, which no longer count. So the events that they reached are no longer
        marked as reached.
        """
        self.live = True
        gone = list(self.current)
        self.current.clear()
        self._reached.clear()
        return gone

    def _reach_below(self, node: Node[Id]) -> list[Id]:
        """Marks the prev events of an event as reached. Removes and returns the forward extremities among them.

        If a reached event does not count, does the same for its prev events.
        """
        gone = []
        below = [node]
        while below:
            new = [prev for prev in self.reaches(below.pop()) if prev not in self._reached]
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


class ExtremityTracker(Generic[Id]):
    """The forward extremities of a room and the group of its current state while events arrive.

    ``current`` is that group, or null if it is not known.
    """

    def __init__(
        self,
        states: RoomStates,
        extremities: ForwardExtremities[Id],
        here: MutableSet[Id],
        after: GroupsAfter[Id],
        fails: Callable[[Arriving[Id], State], bool],
    ) -> None:
        """Starts with the current state that follows from ``extremities``.

        ``here`` has the IDs of those earlier events to which arriving events refer. Every arriving event is added to
        ``here``. ``after`` maps events to the groups after them. ``fails`` returns true if a state does not allow an
        event.
        """
        self.extremities = extremities
        self._states = states
        self._here = here
        self._after = after
        self._fails = fails
        self._groups = _LeafGroups[Id]()
        self._groups.change(after, extremities.current, ())
        self.current = self._merged()

    def take(self, event: Arriving[Id]) -> None:
        """Adds an event of the graph with its verdict."""
        self._here.add(event.event_id)
        is_extremity, gone = self.extremities.add(event)
        self._groups.change(self._after, [event.event_id] if is_extremity else [], gone)
        if len(self._groups.counts) <= _MOST_STATES_ON_THE_WAY:
            self.current = self._merged()

    def take_on_extremities(self, event_id: Id, prev_event_ids: Collection[Id]) -> bool:
        """Takes the fast path of ``soft_fails`` and ``take``, for an accepted event.

        The prev events of most events are exactly the current forward extremities. For all other events, does nothing
        and returns false.
        """
        if not self.extremities.replace_all(event_id, prev_event_ids):
            return False
        self._here.add(event_id)
        group = self.current = self._after.get(event_id)
        self._groups.counts = {group: 1}
        return True

    def finish(self) -> int | None:
        """Returns the group of the current state after all events.

        The state is computed even if there were too many forward extremities to compute it after every event.
        """
        self.current = self._merged()
        return self.current

    def _merged(self) -> int | None:
        counts = self._groups.counts
        return next(iter(counts)) if len(counts) == 1 else self._states.merged(counts)

    def soft_fails(self, event: Arriving[Id], before: int | None = None) -> bool:
        """Returns true if an event that arrives now is soft-failed.

        Call this for an accepted event whose prev events have arrived and are not exactly the current forward
        extremities. For an event above a gap, ``before`` is the group of the state before the event that another server
        gave. This state is resolved with the current state.
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
        elif not all(prev in self._here for prev in event.prev_event_ids):
            return False
        return ground is not None and self._fails(event, self._states.state(ground))


class EventExtremityTracker(ExtremityTracker[str]):
    """An ``ExtremityTracker`` for events that are identified by their event IDs."""

    def __init__(self, states: RoomStates, extremities: ForwardExtremities[str], here: Iterable[str] = ()) -> None:
        super().__init__(states, extremities, set(here), states.after, self._judged)

    def add(self, event: ParsedEvent) -> ParsedEvent:
        """Adds an event of the graph. Stores the event with its verdict in ``RoomStates.events``, and returns it."""
        prevs = event.prev_event_ids
        on_extremities = self.extremities.live and is_accepted(event) and len(prevs) == len(self.extremities.current)
        # An event with a given state may reach only some of its prev events. The others stay forward extremities.
        if (
            on_extremities
            and len(self.extremities.reaches(event)) == len(prevs)
            and self.take_on_extremities(event.event_id, prevs)
        ):
            return event
        told = event.event_id in self._states.on_given
        # Before ``take``: the event is checked against the current state that the events before it made, and only an event
        # with its final verdict may become a forward extremity.
        if self.soft_fails(event, self._states.before[event.event_id] if told else None):
            event = self._states.events[event.event_id] = replace(event, soft_failed=True)
        self.take(event)
        return event

    def _judged(self, event: Arriving[str], ground: State) -> bool:
        return self._states.judge.soft_fails(cast("ParsedEvent", event), ground)


class _LeafGroups(Generic[Id]):
    """A count of forward extremities by the state group after them. The key null stands for an unknown group.

    So the groups of the current state are found without a search, even in a room with many forward extremities.
    """

    def __init__(self) -> None:
        self.counts: dict[int | None, int] = {}

    def change(self, after: GroupsAfter[Id], new: Iterable[Id], gone: Iterable[Id]) -> None:
        """Updates the counts after the forward extremities ``new`` were added and ``gone`` were removed."""
        for events, change in ((new, 1), (gone, -1)):
            for event_id in events:
                group = after.get(event_id)
                left = self.counts.pop(group, 0) + change
                if left:
                    self.counts[group] = left
