"""Resolves the states of state groups that differ little, from their differences only (pure).

The result equals that of ``state.resolution.resolve`` on the full states. The time of that function grows with the size
of the states. Here time grows with the changes between the groups, and with the state events since the oldest disputed
event.

In three cases nothing is resolved here, and the caller has to resolve the full states. The room has version 1. Or there
are more state events since the oldest disputed event than a state has entries. Or no group lies below all the groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from state.groups.deltas import GroupBuilder, StateKey
from state.resolution.auth_graph import AuthGraph
from state.resolution.v2 import settle
from state.rules.auth_rules import AuthRules
from state.rules.auth_selection import state_key_of
from state.rules.room_versions import Resolution

__all__ = ["Changes", "resolve_near"]

Changes = dict[StateKey, "str | None"]
"""Key -> its event in the resolved state, or null if the resolved state has no entry there."""
_SPARE_EVENTS = 100


def resolve_near(
    rules: AuthRules, graph: AuthGraph, builder: GroupBuilder, groups: Sequence[int]
) -> Mapping[int, Changes] | None:
    """Returns for each group (at least two) the changes from its state to the resolved state.

    Returns null if the caller has to resolve the full states; the module lists the cases. All events of the states must
    have been ranked (``AuthGraph.rank``). While a whole history is processed, all its events have been ranked.
    """
    if rules.version.resolution is Resolution.V1:
        return None
    touched = builder.keys_apart(groups)
    if touched is None:
        return None
    held = {group: {key: builder.lookup(group, key) for key in sorted(touched)} for group in groups}
    first, *others = held.values()
    disputed = {key for key in first if any(state[key] != first[key] for state in others)}
    if not disputed:
        return {group: {} for group in groups}
    agreed = _Agreed(builder, groups[0], disputed)
    sets = [{event_id for key in disputed if (event_id := state[key]) is not None} for state in held.values()]
    candidates = graph.recent_difference(sets, _is_agreed(graph, agreed), builder.size(groups[0]) + _SPARE_EVENTS)
    if candidates is None:
        return None
    added = settle(rules, graph, agreed, sets, candidates)
    answer = {key: added.get(key) for key in disputed} | {k: e for k, e in added.items() if agreed.get(k) is None}
    return {group: _changes(builder, group, answer) for group in groups}


class _Agreed:
    """The entries that are the same in all groups. ``disputed`` are the keys in which the groups differ."""

    def __init__(self, builder: GroupBuilder, group: int, disputed: set[StateKey]) -> None:
        self._builder, self._group, self._disputed = builder, group, disputed

    def get(self, key: StateKey, /) -> str | None:
        return None if key in self._disputed else self._builder.lookup(self._group, key)


def _is_agreed(graph: AuthGraph, agreed: _Agreed) -> Callable[[str], bool]:
    def is_agreed(event_id: str) -> bool:
        event = graph.events[event_id]
        return event.state_key is not None and agreed.get(state_key_of(event)) == event_id

    return is_agreed


def _changes(builder: GroupBuilder, group: int, answer: Mapping[StateKey, str | None]) -> Changes:
    """Returns those resolved entries (``answer``) that differ from the state of the group."""
    return {key: event_id for key, event_id in answer.items() if builder.lookup(group, key) != event_id}
