"""Resolves the states of state groups that differ little, from their differences only (pure).

The result equals the result of ``state.resolution.resolve`` for the full states. The time of that function grows with
the size of the states. Here time grows with the changes between the groups, and in a stored room with the auth
difference. If all events of the room are in memory, time grows with the changes, and with the number of state events
since the oldest disputed event. An event is *disputed* if it is in the states of some groups only.

For example, group 7 has 100,000 entries. On top of it, group 8 has a new topic and group 9 a new name. The old and new
events of these two keys are disputed. Nothing else of the states is read.

In three cases there is no result, and the caller has to resolve the full states:

* The changes between the groups are not known.
* The room is stored and of version 2, where event IDs are not hashes, and an auth chain leads back to itself.
* The auth difference is not found within a limit. In memory the limit is about one state event for each entry of a
  state. In a stored room it is the limit of ``state.resolution.local_difference``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from state.groups.deltas import GroupBuilder, StateKey
from state.resolution.auth_graph import AuthGraph
from state.resolution.local_difference import Reads, local_difference
from state.resolution.v1 import settle_v1
from state.resolution.v2 import settle
from state.rules.auth_rules import AuthRules
from state.rules.auth_selection import POWER_LEVELS, auth_keys, state_key_of
from state.rules.room_versions import Resolution

Changes = dict[StateKey, "str | None"]
"""Key -> its event in the resolved state, or None if the resolved state has no entry there."""
_SPARE_EVENTS = 100


@dataclass(frozen=True, slots=True)
class Resolved:
    """A resolved state, as the changes that lead to it from the state of each group, and their numbers."""

    sizes: Mapping[int, int]
    changes: Callable[[int], Changes]


def resolve_near(
    rules: AuthRules, graph: AuthGraph, builder: GroupBuilder, groups: Sequence[int], reads: Reads | None = None
) -> Resolved | None:
    """Returns the state that some groups (at least two) resolve to, or None in the cases listed above.

    ``reads`` reads the events of a stored room. Without it, all events of the states must have been ranked before
    (``AuthGraph.rank``), as they are while a whole history is processed.
    """
    apart = builder.apart(groups)
    if apart is None:
        return None
    disputed = sorted(set[StateKey]().union(*apart))
    agreed = _Agreed(builder, groups[0], disputed)
    answer: Changes = {}
    if rules.version.resolution is Resolution.V1:
        candidates_of = _candidates_of(builder, groups, disputed, apart)
        answer = _settled_v1(rules, graph, agreed, candidates_of, reads)
    elif disputed:
        held, full = _held(builder, groups, disputed, apart), (1 << len(groups)) - 1
        if reads is None:
            most = builder.size(groups[0]) + _SPARE_EVENTS
            candidates = graph.recent_difference(held, full, lambda event_id: _is_entry(graph, agreed, event_id), most)
        else:
            graph = graph.caching_auth_ids()
            if not graph.is_acyclic and not _proven_acyclic(graph, agreed, held, reads):
                return None
            candidates = _read_difference(rules, graph, agreed, held, full, reads)
        if candidates is None:
            return None
        added = settle(rules, graph, agreed, held, candidates)
        answer = {key: added.get(key) for key in disputed} | {k: e for k, e in added.items() if agreed.get(k) is None}

    def changes(group: int) -> Changes:
        return {key: event_id for key, event_id in answer.items() if builder.lookup(group, key) != event_id}

    return Resolved(_sizes(builder, groups, apart, answer), changes)


class _Agreed:
    def __init__(self, builder: GroupBuilder, group: int, disputed: Sequence[StateKey]) -> None:
        self._builder, self._group = builder, group
        self._found: dict[StateKey, str | None] = dict.fromkeys(disputed)

    def get(self, key: StateKey, /) -> str | None:
        if key not in self._found:
            self._found[key] = self._builder.lookup(self._group, key)
        return self._found[key]

    def load(self, keys: Collection[StateKey], /) -> None:
        self._builder.load(self._group, [key for key in keys if key not in self._found])

    def holds(self, event_id: str, key: StateKey, /) -> bool:
        return self.get(key) == event_id

    def extend(self, entries: Mapping[StateKey, str | None]) -> None:
        self._found.update(entries)


def _candidates_of(
    builder: GroupBuilder, groups: Sequence[int], disputed: Sequence[StateKey], apart: Sequence[Changes]
) -> dict[StateKey, set[str]]:
    found = {key: {builder.lookup(groups[0], key)} for key in disputed}
    for entries in apart:
        for key, event_id in entries.items():
            found[key].add(event_id)
    return {key: {event_id for event_id in events if event_id is not None} for key, events in found.items()}


def _settled_v1(
    rules: AuthRules, graph: AuthGraph, agreed: _Agreed, candidates: Mapping[StateKey, set[str]], reads: Reads | None
) -> Changes:
    # A key is not in conflict if some groups have no event there, and all others have the same one.
    answer: Changes = {key: next(iter(found)) if len(found) == 1 else None for key, found in candidates.items()}
    agreed.extend(answer)
    in_conflict = {key: found for key, found in candidates.items() if len(found) > 1}
    if reads is not None:
        some = set[str]().union(*in_conflict.values())
        reads.load(some)
        _load_authorising(rules, graph, agreed, some, reads)
    return {**answer, **settle_v1(rules, graph.events, agreed, in_conflict)}


def _load_authorising(
    rules: AuthRules, graph: AuthGraph, agreed: _Agreed, event_ids: Iterable[str], reads: Reads
) -> None:
    # Together, not by a query each: auth events, and entries that all groups share.
    events = [graph.events[event_id] for event_id in event_ids if event_id in graph.events]
    keys = {key for event in events for key in auth_keys(event, rules.version)}
    agreed.load(keys)
    entries = {agreed.get(key) for key in keys}
    named = {other for event in events for other in event.auth_event_ids}
    reads.load(named.union(entry for entry in entries if entry is not None))


def _held(
    builder: GroupBuilder, groups: Sequence[int], disputed: Sequence[StateKey], apart: Sequence[Changes]
) -> dict[str, int]:
    # Time grows with the entries in ``apart``, not with the keys times the groups.
    full = (1 << len(groups)) - 1
    differing = dict.fromkeys(disputed, 0)
    held: dict[str, int] = {}
    for number, entries in enumerate(apart):
        for key, event_id in entries.items():
            differing[key] |= 1 << number
            if event_id is not None:
                held[event_id] = held.get(event_id, 0) | 1 << number
    for key, mask in differing.items():
        event_id = builder.lookup(groups[0], key)
        if event_id is not None:
            held[event_id] = held.get(event_id, 0) | (full & ~mask)
    return held


def _proven_acyclic(graph: AuthGraph, agreed: _Agreed, held: Iterable[str], reads: Reads) -> bool:
    # A graph that is known to be acyclic needs no ranks, for which the auth chains of all groups would be read.
    shared = agreed.get(POWER_LEVELS)
    starts = {*held, *([shared] if shared is not None else [])}
    reads.load_chains(starts)
    graph.is_acyclic = graph.has_no_cycle_below(starts)
    return graph.is_acyclic


def _read_difference(
    rules: AuthRules, graph: AuthGraph, agreed: _Agreed, held: Mapping[str, int], full: int, reads: Reads
) -> set[str] | None:
    reads.load(held)
    found = local_difference(graph, held, full, agreed, reads)
    if found is None:
        return None
    candidates = found.union(event_id for event_id in held if event_id in graph.events)
    if rules.version.resolution is Resolution.V2_1:
        reads.load_chains(candidates)  # for the paths between disputed events
    _load_authorising(rules, graph, agreed, candidates, reads)
    return found


def _is_entry(graph: AuthGraph, agreed: _Agreed, event_id: str) -> bool:
    event = graph.events[event_id]
    return event.state_key is not None and agreed.holds(event_id, state_key_of(event))


def _sizes(
    builder: GroupBuilder, groups: Sequence[int], apart: Sequence[Changes], answer: Mapping[StateKey, str | None]
) -> dict[int, int]:
    first = {key for key, event_id in answer.items() if builder.lookup(groups[0], key) != event_id}
    sizes = {}
    for group, entries in zip(groups, apart, strict=True):
        differing = sum(answer[key] != event_id for key, event_id in entries.items())
        sizes[group] = len(first) + differing - sum(key in first for key in entries)
    return sizes
