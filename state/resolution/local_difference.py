"""Finds the auth difference of states in a stored room, by reading only the events near the difference (pure).

An event is *disputed* if some of the states contain it and others do not.

A walk by rank (``state.resolution.auth_graph``) would have to visit all state events since the oldest disputed event.
This search needs no ranks. The search goes down from the disputed events to their auth events. But an event that it
finds may be in every auth chain. A path of auth events may lead to this event from an entry that all states share.
There are too many shared entries to start a search from each of them. So a second search goes upwards from the event,
to the events that name it as auth event, until it meets a shared entry.

Assumes that no event leads back to itself.

    A ◄─ P1     Ada's join A is an auth event of P1, the power levels of state 1,
    A ◄─ P2     and of P2, those of state 2.
    A ◄─ A2     Both states have A2, her new display name.

The search down from P1 and P2 finds A, which is in neither state. The search up from A meets A2, which is in both. So A
is in both auth chains, and the difference is P1 and P2.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from state.groups.layered import StateKey
from state.resolution.auth_graph import AuthGraph
from state.rules.auth_selection import state_key_of

_MOST_NAMING = 20_000
_NAMING_PER_EVENT = 10
"""One search reads at most ``_MOST_NAMING`` events that name others, and ``_NAMING_PER_EVENT`` more for each disputed event."""
_ASKED_AT_ONCE = 100
_ENTRIES_AT_ONCE = 50
_AHEAD_OF_CHAINS = 16
"""From this depth on, whole auth chains are read together."""


class Naming(NamedTuple):
    """The state events that name a certain event as auth event, as (event ID, key). ``complete``: all of them."""

    events: Sequence[tuple[str, StateKey]]
    complete: bool


class Shared(Protocol):
    """The entries that all states share."""

    def load(self, keys: Collection[StateKey], /) -> None:
        """Reads the entries at these keys together, if they are not in memory."""

    def holds(self, event_id: str, key: StateKey, /) -> bool:
        """Returns true if all states have this event at this key."""


class Reads(Protocol):
    def load(self, event_ids: Collection[str], /) -> None: ...

    def load_chains(self, event_ids: Collection[str], /) -> None: ...

    def naming(self, event_ids: Collection[str], /) -> Mapping[str, Naming]: ...


def local_difference(
    graph: AuthGraph, held: Mapping[str, int], full: int, shared: Shared, reads: Reads
) -> set[str] | None:
    """Returns the auth difference: the events in the auth chains of some states, but not of all.

    ``held`` maps the disputed events to bit masks: bit *n* is 1 if the *n*-th state contains the event. ``full`` is the
    mask of all states. Events of ``held`` are left out of the result. Returns None if the search would have to read
    more events than its limit.
    """
    return _Search(graph, held, full, shared, reads).difference()


class _Search:
    """One search.

    ``_masks`` has for each visited event the states whose auth chains contain it.

    A visited event passes its mask on to its auth events, if it is disputed or is not known to be in every chain.
    """

    def __init__(self, graph: AuthGraph, held: Mapping[str, int], full: int, shared: Shared, reads: Reads) -> None:
        self._graph, self._full, self._shared, self._reads = graph, full, shared, reads
        self._masks = {event_id: mask for event_id, mask in held.items() if event_id in graph.events}
        self._held = frozenset(self._masks)
        self._spreading = set(self._held)
        """Events that pass their masks on."""
        self._common: set[str] = set()
        """Events that are in every chain, because an event that all states share leads to them."""
        self._searched: set[str] = set()
        """Events to which no event leads that is known to be in every chain."""
        self._naming: dict[str, Naming] = {}
        self._left = _MOST_NAMING + _NAMING_PER_EVENT * len(self._held)

    def difference(self) -> set[str] | None:
        new: Collection[str] = self._held
        ahead = 0
        while new:
            if ahead >= _AHEAD_OF_CHAINS:
                self._reads.load_chains(new)
            if self._spread(new, ahead):
                self._searched.clear()  # events above may be in every chain now
            partial = self._partial()
            if not self._graph.implied or partial.isdisjoint(self._graph.implied):
                found = self._find_common(partial - self._searched)
            else:
                found = False  # all events lead to it, although none names it
            if not found:
                return None
            new = partial - self._common - self._spreading
            self._spreading |= new
            # The number of rounds is the logarithm of the length of the chains.
            ahead = 2 * ahead or 1
        return self._partial()

    def _partial(self) -> set[str]:
        return {event_id for event_id, mask in self._masks.items() if mask != self._full} - self._held - self._common

    # --- downwards ----------------------------------------------------------------------------------------------
    def _spread(self, new: Collection[str], ahead: int) -> bool:
        """Passes masks on to auth events, at most ``ahead`` levels further down.

        True if an event came to be in every chain.
        """
        graph, masks, grown = self._graph, self._masks, False
        self._load({other for event_id in new for other in graph.events[event_id].auth_event_ids})
        # The depth is only what senders claim. With true depths, an event passes its mask on when all events above it have
        # passed theirs on. Any other order leads to the same masks, but more slowly.
        heap = [(-graph.events[event_id].depth, event_id, ahead) for event_id in new]
        heapq.heapify(heap)
        while heap:
            _, event_id, levels = heapq.heappop(heap)
            for other in graph.auth_ids(event_id):
                if other in self._common:
                    continue
                event, before = graph.events[other], masks.get(other, 0)
                if self._shared.holds(other, state_key_of(event)):
                    self._common.add(other)
                    continue
                after = before | masks[event_id]
                if after == before:
                    continue
                masks[other] = after
                grown |= after == self._full
                if levels and other not in self._spreading:
                    self._load(event.auth_event_ids)
                    self._spreading.add(other)
                if other in self._spreading:
                    heapq.heappush(heap, (-event.depth, other, max(levels - 1, 0)))
        return grown

    def _load(self, event_ids: Collection[str]) -> None:
        # the events, and the entries of which ``_spread`` asks whether they are these events
        self._reads.load(event_ids)
        events = self._graph.events
        self._shared.load({state_key_of(events[event_id]) for event_id in event_ids if event_id in events})

    # --- upwards ------------------------------------------------------------------------------------------------
    def _find_common(self, sources: Collection[str]) -> bool:
        """Finds out which of the events ``sources`` are in every auth chain.

        False if too many would have to be read.

        An event is in every chain if another event of every chain leads to it by auth events. Such events go to
        ``_common``, the other visited events to ``_searched``.
        """
        below: dict[str, list[str]] = {event_id: [] for event_id in sources}
        level = sorted(sources)
        while level:
            if self._common.issuperset(sources):
                return True
            above: list[str] = []
            for start in range(0, len(level), _ASKED_AT_ONCE):
                some = [e for e in level[start : start + _ASKED_AT_ONCE] if e not in self._common]
                if not self._read_naming(some):
                    return False
                for event_id in some:
                    self._go_up(event_id, below, above)
            level = above
        undecided = below.keys() - self._common
        if any(event_id in self._naming and not self._naming[event_id].complete for event_id in undecided):
            return self._common.issuperset(sources)
        self._searched |= undecided
        return True

    def _go_up(self, event_id: str, below: dict[str, list[str]], above: list[str]) -> None:
        # An event that an event of every auth chain names is in every chain, too. Otherwise the search goes on
        # ``above``.
        events = self._naming[event_id].events
        for number, (other, key) in enumerate(events):
            if number % _ENTRIES_AT_ONCE == 0:
                self._shared.load([at for _, at in events[number : number + _ENTRIES_AT_ONCE]])
            if other in self._common or self._masks.get(other) == self._full or self._shared.holds(other, key):
                self._mark(event_id, below)
                return
            if other not in below:
                below[other] = []
                if other not in self._searched:
                    above.append(other)
            below[other].append(event_id)

    def _mark(self, event_id: str, below: Mapping[str, Sequence[str]]) -> None:
        stack = [event_id]
        while stack:
            found = stack.pop()
            if found not in self._common:
                self._common.add(found)
                stack += below.get(found, ())
                if found in self._spreading:
                    stack += [other for other in self._graph.auth_ids(found) if other in self._masks]

    def _read_naming(self, event_ids: Sequence[str]) -> bool:
        unread = [event_id for event_id in event_ids if event_id not in self._naming]
        if unread:
            found = self._reads.naming(unread)
            self._naming.update(found)
            self._left -= sum(len(naming.events) for naming in found.values())
        return self._left >= 0
