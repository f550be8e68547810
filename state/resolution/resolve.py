"""State resolution: computes one state of a room out of several (pure).

The result is the same on every server, and for every order of the states.

The room version determines the algorithm. Rejected events are never added. A state may name events that the graph does
not contain. Such events can neither win a conflict nor authorise other events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from state.groups.deltas import StateKey
from state.resolution.auth_graph import AuthGraph
from state.resolution.v1 import resolve_v1
from state.resolution.v2 import resolve_v2
from state.rules.auth_rules import AuthRules
from state.rules.room_versions import Resolution


def resolve(rules: AuthRules, graph: AuthGraph, maps: Sequence[Mapping[StateKey, str]]) -> dict[StateKey, str]:
    """Returns the state that the given states (at least one) resolve to."""
    if all(state == maps[0] for state in maps[1:]):
        return dict(maps[0])
    if rules.version.resolution is Resolution.V1:
        return resolve_v1(rules, graph.events, maps)
    return resolve_v2(rules, graph, maps)
