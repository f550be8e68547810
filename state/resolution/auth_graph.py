"""The graph of a room's events, connected by their auth events (pure).

The graph finds the auth chain of events, the auth difference of several sets of events, and the events between given
events.

Every event has a *rank*, which is higher than the ranks of its auth events. So a walk in descending order of rank
visits each event once, after all events that refer to it. The walk can stop as soon as no event of a lower rank
matters. No function recurses.

    create (0) ◄─ join of Ada (1) ◄─ power levels (2) ◄─ topic (3)

The difference of the auth chains of the topic and of the power levels is the topic. The walk ends at rank 2: from there
on everything is in both.

Auth events that are missing, belong to another room, or are no state events are left out. Auth events that would close
a cycle are left out, too. Cycles are possible only in room versions whose event IDs are not hashes.

Walks by rank are for rooms whose events are all in memory. In a stored room, ``local_difference`` finds the auth
difference without ranks (``state.resolution.local_difference``).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from graphlib import CycleError, TopologicalSorter

from state.rules.auth_selection import CREATE, POWER_LEVELS, AuthEvent, state_key_of
from state.rules.power_levels import PowerLevels, creators_of
from state.rules.room_versions import RoomVersion


class AuthGraph:
    """The auth events of a room's events.

    ``events`` may grow while the graph is in use.

    In room version 12 the event ``create_event_id`` is an implied auth event of all other events.
    """

    def __init__(self, events: Mapping[str, AuthEvent], version: RoomVersion, create_event_id: str | None) -> None:
        self.events = events
        self._version = version
        self.is_acyclic = version.ids_are_hashes
        """True if no event can lead back to itself."""
        self._create_id = create_event_id
        self.implied = (create_event_id,) if version.room_id_is_create_hash and create_event_id else ()
        self._ranks: dict[str, int] = {}
        self._by_rank: list[str] = []
        self._open: set[str] = set()
        self._cached_auth_ids: dict[str, list[str]] | None = None

    def auth_ids(self, event_id: str) -> list[str]:
        """Returns the known auth events of an event, including the implied one."""
        if self._cached_auth_ids is None:
            return self._known_auth_ids(event_id)
        found = self._cached_auth_ids.get(event_id)
        if found is None:
            found = self._cached_auth_ids[event_id] = self._known_auth_ids(event_id)
        return found

    def caching_auth_ids(self) -> AuthGraph:
        """Returns a copy that caches the auth events of each event. No events may be added while it is used."""
        found = copy(self)
        found._cached_auth_ids = {}
        return found

    def _known_auth_ids(self, event_id: str) -> list[str]:
        event, found = self.events[event_id], []
        for other_id in (*event.auth_event_ids, *self.implied):
            other = self.events.get(other_id) if other_id != event_id else None
            if other is not None and other.room_id == event.room_id and other.state_key is not None:
                found.append(other_id)
        return found

    def rank(self, event_id: str) -> int:
        """Returns the rank of an event: its place in an order in which auth events come first.

        The first call for an event fixes its rank. If it is called in the order in which events arrive, recent events
        have high ranks, and walks stay short.
        """
        ranks, stack = self._ranks, [event_id] if event_id not in self._ranks else []
        while stack:
            top = stack[-1]
            if top in ranks:
                stack.pop()
                continue
            self._open.add(top)
            missing = [other for other in self.auth_ids(top) if other not in ranks and other not in self._open]
            if missing:
                stack += missing
            else:
                ranks[top] = len(ranks)
                self._by_rank.append(top)
                self._open.discard(top)
                stack.pop()
        return ranks[event_id]

    def has_no_cycle_below(self, event_ids: Iterable[str]) -> bool:
        edges: dict[str, list[str]] = {}
        stack = [event_id for event_id in event_ids if event_id in self.events]
        while stack:
            event_id = stack.pop()
            if event_id not in edges:
                edges[event_id] = self.auth_ids(event_id)
                stack += edges[event_id]
        try:
            TopologicalSorter(edges).prepare()
        except CycleError:
            return False
        return True

    # --- walks --------------------------------------------------------------------------------------------------
    def difference(self, sets: Sequence[Collection[str]], common: Iterable[str]) -> set[str]:
        """Returns the auth difference: the events in the auth chains of some of the sets, but not of all.

        The auth chain of a set includes the set itself. The events in ``common`` belong to every set. Beyond the given
        events the walk visits only those that rank above the lowest event of the result.
        """
        full = (1 << len(sets)) - 1
        reached: dict[str, int] = {event_id: full for event_id in common if event_id in self.events}
        for number, members in enumerate(sets):
            for event_id in members:
                if event_id in self.events:
                    reached[event_id] = reached.get(event_id, 0) | 1 << number
        heap = [(-(self._ranks.get(event_id) or self.rank(event_id)), event_id) for event_id in reached]
        heapq.heapify(heap)
        partial = sum(mask != full for mask in reached.values())
        found = set()
        while partial:
            rank, event_id = heapq.heappop(heap)
            mask = reached[event_id]
            if mask != full:
                partial -= 1
                found.add(event_id)
            for other in self._below(event_id, -rank):
                before = reached.get(other)
                if before is None:
                    heapq.heappush(heap, (-self._ranks[other], other))
                after = reached[other] = (before or 0) | mask
                partial += (after != full) - (before is not None and before != full)
        return found

    def recent_difference(
        self, held: Mapping[str, int], full: int, is_common: Callable[[str], bool], most: int
    ) -> set[str] | None:
        """Returns the auth difference as ``difference`` does, or None if it is not among the ``most`` highest ranks.

        ``held`` maps the events of the sets to bit masks: bit *n* is 1 if the *n*-th set contains the event. ``full``
        is the mask of all sets. ``is_common`` returns true for events that belong to every set. ``rank`` must have been
        called for all events.
        """
        reached = {event_id: mask for event_id, mask in held.items() if event_id in self.events}
        partial = sum(mask != full for mask in reached.values())
        found = set()
        rank, lowest = len(self._by_rank), max(len(self._by_rank) - most, 0)
        while partial and rank > lowest:
            rank -= 1
            event_id = self._by_rank[rank]
            mask = reached.get(event_id) or (full if is_common(event_id) else 0)
            if 0 < mask < full:
                partial -= 1
                found.add(event_id)
            for other in self._below(event_id, rank) if mask else ():
                before = reached.get(other, 0)
                after = reached[other] = full if not before and is_common(other) else before | mask
                partial += (after != full) - (before not in (0, full))
        return None if partial else found

    def between(self, event_ids: Collection[str]) -> set[str]:
        """Returns all events on paths along auth events from one given event to another, including the given events."""
        ends = {event_id for event_id in event_ids if event_id in self.events}
        lowest = min((self.rank(event_id) for event_id in ends), default=0)
        below, stack = set(ends), list(ends)
        while stack:
            event_id = stack.pop()
            for other in self._below(event_id, self._ranks[event_id]):
                if other not in below and self._ranks[other] >= lowest:
                    below.add(other)
                    stack.append(other)
        found: set[str] = set()
        for event_id in sorted(below, key=self._ranks.__getitem__):
            if event_id in ends or not found.isdisjoint(self._below(event_id, self._ranks[event_id])):
                found.add(event_id)
        return found

    def within(self, event_ids: Iterable[str], limits: Collection[str]) -> dict[str, list[str]]:
        """Returns ``{event: its auth events within limits}`` of the given events, and of all reached within ``limits``."""
        found: dict[str, list[str]] = {}
        stack = list(event_ids)
        while stack:
            event_id = stack.pop()
            if event_id not in found:
                inside = [o for o in self.auth_ids(event_id) if o in limits and self.is_below(o, event_id)]
                found[event_id] = inside
                stack += inside
        return found

    def is_below(self, event_id: str, above: str) -> bool:
        """Returns true if the link from ``above`` to its auth event ``event_id`` closes no cycle."""
        return self.is_acyclic or self.rank(event_id) < self.rank(above)

    def _below(self, event_id: str, rank: int) -> list[str]:
        # auth events of the same or a higher rank would close a cycle
        return [other for other in self.auth_ids(event_id) if self.rank(other) < rank]

    # --- by an event's auth events ------------------------------------------------------------------------------
    def power_levels_event(self, event_id: str) -> str | None:
        for other in self.auth_ids(event_id):
            if state_key_of(self.events[other]) == POWER_LEVELS and self.events[other].state_key is not None:
                return other
        return None

    def sender_level(self, event_id: str) -> float:
        """Returns the power level of an event's sender, according to the event's own auth events."""
        levels_id, create = self.power_levels_event(event_id), None
        for other in self.auth_ids(event_id):
            if state_key_of(self.events[other]) == CREATE:
                create = self.events[other]
        creators = creators_of(create.sender, create.content, self._version) if create is not None else ()
        content = self.events[levels_id].content if levels_id is not None else None
        return PowerLevels(self._version, content, creators).of_user(self.events[event_id].sender)
