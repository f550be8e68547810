"""State resolution of room version 1 (pure).

A key is in conflict if states hold different events for it. That some states lack a key is no conflict.
The candidates for power levels, join rules and memberships come first, and are tried from the oldest to the newest. The
candidates for all other keys are tried from the newest to the oldest. Every candidate is sorted and authorised once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from state.groups.deltas import StateKey
from state.rules.auth_rules import AuthRules
from state.rules.auth_selection import POWER_LEVELS, AuthEvent

__all__ = ["resolve_v1"]

StateMap = Mapping[StateKey, str]


def resolve_v1(rules: AuthRules, events: Mapping[str, AuthEvent], maps: Sequence[StateMap]) -> dict[StateKey, str]:
    """Returns the state that several states resolve to."""
    agreed, disputed = _separate(events, maps)
    context = _Context(events, agreed)
    groups = (
        [key for key in disputed if key == POWER_LEVELS],
        sorted(key for key in disputed if key[0] == "m.room.join_rules"),
        sorted(key for key in disputed if key[0] == "m.room.member"),
    )
    resolved: dict[StateKey, str] = {}
    for keys in groups:
        winners = {key: _oldest_unbroken(rules, _by_age(events, disputed[key]), context) for key in keys}
        for key, winner in winners.items():
            context.put(key, winner)
            resolved[key] = winner.event_id
    for key in disputed.keys() - resolved.keys():
        resolved[key] = _newest_allowed(rules, _by_age(events, disputed[key]), context).event_id
    return {**agreed, **resolved}


def _separate(
    events: Mapping[str, AuthEvent], maps: Sequence[StateMap]
) -> tuple[dict[StateKey, str], dict[StateKey, list[str]]]:
    """Returns the entries without conflict, and the candidates of each key in conflict.

    Events that are not known here are no candidates. A key without known candidates is left out.
    """
    candidates: dict[StateKey, set[str]] = {}
    for state in maps:
        for key, event_id in state.items():
            candidates.setdefault(key, set()).add(event_id)
    agreed = {key: next(iter(found)) for key, found in candidates.items() if len(found) == 1}
    disputed = {key: [e for e in found if e in events] for key, found in candidates.items() if len(found) > 1}
    return agreed, {key: found for key, found in disputed.items() if found}


class _Context:
    """The state that authorises candidates: the entries without conflict, and the candidates that have won so far."""

    def __init__(self, events: Mapping[str, AuthEvent], agreed: StateMap) -> None:
        self._events = events
        self._agreed = agreed
        self._winners: dict[StateKey, AuthEvent] = {}

    def get(self, key: StateKey, /) -> AuthEvent | None:
        if key in self._winners:
            return self._winners[key]
        event_id = self._agreed.get(key)
        return self._events.get(event_id) if event_id is not None else None

    def put(self, key: StateKey, event: AuthEvent) -> None:
        self._winners[key] = event

    def drop(self, key: StateKey) -> None:
        self._winners.pop(key, None)


def _by_age(events: Mapping[str, AuthEvent], event_ids: Sequence[str]) -> list[AuthEvent]:
    """Returns the events, oldest first. Equal depths are ordered by the hash of the event ID, descending."""
    found = [events[event_id] for event_id in event_ids]
    return sorted(found, key=lambda event: (event.depth, _inverted_sha1(event.event_id)))


def _inverted_sha1(event_id: str) -> int:
    return -int.from_bytes(hashlib.sha1(event_id.encode(), usedforsecurity=False).digest(), "big")


def _oldest_unbroken(rules: AuthRules, by_age: Sequence[AuthEvent], context: _Context) -> AuthEvent:
    """Tries the candidates of one key from the oldest to the newest. Returns the last one before the first refusal.

    Each candidate is authorised by a state that contains the candidate before it. The oldest one is not checked.
    """
    key = (by_age[0].type, by_age[0].state_key or "")
    best = by_age[0]
    for event in by_age[1:]:
        context.put(key, best)
        if rules.refusal(event, context) is not None:
            break
        best = event
    context.drop(key)
    return best


def _newest_allowed(rules: AuthRules, by_age: Sequence[AuthEvent], context: _Context) -> AuthEvent:
    """Returns the newest candidate that the state allows, or the oldest candidate if the state allows none."""
    for event in reversed(by_age):
        if rules.refusal(event, context) is None:
            return event
    return by_age[0]
