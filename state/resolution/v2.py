"""State resolution of room versions 2 to 11, and its variant 2.1 of version 12 (pure).

An entry of a state is *disputed* if not all states have it. Candidates are the events of the disputed entries, and the
events that are in the auth chains of some states, but not of all. Power events are applied first, in an order that
prefers senders of higher power. The other candidates follow, in the order of the power levels events among their auth
events. Each candidate is authorised once, by the state that the candidates before it have built. An entry that all
states share is never replaced.

For example, Ada bans Bob while he sets the topic. The ban is a power event and comes first. Then Ada's old topic is
allowed. Bob's topic is refused, because the state that has been built bans him.

Time is linear in the size of the states. In addition, time is O(n log n). Here n counts the candidates, their auth
events, and the events of the auth graph that are not older than the oldest candidate.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from state.groups.deltas import StateKey
from state.resolution.auth_graph import AuthGraph
from state.rules.auth_rules import AuthRules
from state.rules.auth_selection import CREATE, JOIN_RULES, POWER_LEVELS, AuthEvent, state_key_of
from state.rules.room_versions import Resolution

StateMap = Mapping[StateKey, str]


class Base(Protocol):
    """The entries that all states share, by key."""

    def get(self, key: StateKey, /) -> str | None: ...


def resolve_v2(rules: AuthRules, graph: AuthGraph, maps: Sequence[StateMap]) -> dict[StateKey, str]:
    first, *others = maps
    differing: set[StateKey] = set()
    for state in others:
        differing.update(key for key, event_id in state.items() if first.get(key) != event_id)
        differing.update(key for key in first if key not in state)
    agreed = {key: event_id for key, event_id in first.items() if key not in differing}
    disputed = [{state[key] for key in differing if key in state} for state in maps]
    held = set[str]().union(*disputed)
    added = settle(rules, graph, agreed, held, graph.difference(disputed, agreed.values()))
    return {**added, **agreed}


def settle(
    rules: AuthRules, graph: AuthGraph, agreed: Base, disputed: Iterable[str], candidates: Collection[str]
) -> dict[StateKey, str]:
    """Returns the entries that resolution adds to ``agreed``, the entries that all states share.

    ``disputed`` are the events of all other entries. ``candidates`` are the events in the auth chains of some states,
    but not of all; disputed ones may be left out. The caller must ignore keys of ``agreed`` in the result.
    """
    held = {event_id for event_id in disputed if event_id in graph.events}
    candidates = held.union(candidates)
    newer = rules.version.resolution is Resolution.V2_1
    if newer:
        candidates |= graph.between(held)
    state = _GrowingState(graph.events, {} if newer else agreed)
    first = graph.within((event_id for event_id in candidates if _is_power_event(graph.events[event_id])), candidates)
    _grow(rules, graph, state, _power_order(graph, first))
    rest = candidates - first.keys()
    _grow(rules, graph, state, mainline_order(graph, rest, state.event_id(POWER_LEVELS)))
    return state.added


def _is_power_event(event: AuthEvent) -> bool:
    if event.state_key is None:
        return False
    if event.type == "m.room.member":
        return event.membership in ("leave", "ban") and event.sender != event.state_key
    return state_key_of(event) in (POWER_LEVELS, JOIN_RULES, CREATE)


class _GrowingState:
    # The shared entries (none in room version 12), and the added candidates, which win.
    def __init__(self, events: Mapping[str, AuthEvent], base: Base) -> None:
        self._events = events
        self._base = base
        self.added: dict[StateKey, str] = {}

    def event_id(self, key: StateKey) -> str | None:
        return self.added.get(key) or self._base.get(key)

    def event(self, key: StateKey) -> AuthEvent | None:
        found = self._events.get(self.event_id(key) or "")
        return found if found is not None and found.rejected_reason is None else None


class _Context:
    # For each key the growing state's event, else the candidate's own auth event, unless that is rejected.
    def __init__(self, graph: AuthGraph, state: _GrowingState, event_id: str) -> None:
        listed = (graph.events[other] for other in graph.auth_ids(event_id))
        self._auth_events = {state_key_of(other): other for other in listed if other.rejected_reason is None}
        self._state = state

    def get(self, key: StateKey, /) -> AuthEvent | None:
        return self._state.event(key) or self._auth_events.get(key)


def _grow(rules: AuthRules, graph: AuthGraph, state: _GrowingState, order: Iterable[str]) -> None:
    for event_id in order:
        event = graph.events[event_id]
        if event.rejected_reason is None and rules.refusal(event, _Context(graph, state, event_id)) is None:
            state.added[state_key_of(event)] = event_id


def _power_order(graph: AuthGraph, edges: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the keys of ``edges`` in reverse topological power order: each event after its auth events.

    Among events whose auth events are all done, the highest power level of the sender comes first, then the oldest.
    """

    def key(event_id: str) -> tuple[float, int, str]:
        return -graph.sender_level(event_id), graph.events[event_id].origin_server_ts, event_id

    waiting = {event_id: len(below) for event_id, below in edges.items()}
    above: dict[str, list[str]] = {event_id: [] for event_id in edges}
    for event_id, below in edges.items():
        for other in below:
            above[other].append(event_id)
    free = [key(event_id) for event_id, count in waiting.items() if not count]
    heapq.heapify(free)
    order = []
    while free:
        event_id = heapq.heappop(free)[-1]
        order.append(event_id)
        for other in above[event_id]:
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(free, key(other))
    return order


def mainline_order(graph: AuthGraph, event_ids: Collection[str], power_levels: str | None) -> list[str]:
    """Returns events in mainline order: by the power levels event among their auth events, then by time.

    The *mainline* is the event ``power_levels``, the power levels event among its auth events, and so on. Each event is
    placed at the mainline event that its own such chain meets first; those that never meet it come first.
    """
    # The mainline is walked only as far as the events meet it. A room may have thousands of power levels events, and
    # usually all events meet the latest ones.
    unmet = {
        older or event_id
        for event_id in event_ids
        if (older := _older(graph, event_id)) is not None or state_key_of(graph.events[event_id]) == POWER_LEVELS
    }
    mainline, event_id = [], power_levels
    while unmet and event_id is not None and event_id in graph.events:
        mainline.append(event_id)
        unmet.discard(event_id)
        event_id = _older(graph, event_id)
    epochs = {event_id: number for number, event_id in enumerate(reversed(mainline), start=1)}

    def key(event_id: str) -> tuple[int, int, str]:
        return _epoch(graph, epochs, event_id), graph.events[event_id].origin_server_ts, event_id

    return sorted(event_ids, key=key)


def _epoch(graph: AuthGraph, epochs: dict[str, int], event_id: str) -> int:
    # The number of the mainline event that the chain meets first, or 0. It is stored for the whole chain.
    path: list[str] = []
    at: str | None = event_id
    while at is not None and at not in epochs:
        path.append(at)
        at = _older(graph, at)
    found = epochs[at] if at is not None else 0
    epochs.update(dict.fromkeys(path, found))
    return found


def _older(graph: AuthGraph, event_id: str) -> str | None:
    # the next power levels event, unless it would close a cycle
    other = graph.power_levels_event(event_id)
    return other if other is not None and graph.is_below(other, event_id) else None
