"""State resolution of room version 1 (pure).

A key is in conflict if states hold different events for it. That some states lack a key is no conflict. The
*candidates* for a key are the events that the states hold for it. The candidates for power levels, join rules and
memberships come first, and are tried from the oldest to the newest. The candidates for all other keys are tried from
the newest to the oldest. Every candidate is sorted and authorised once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from state.groups.deltas import StateKey
from state.rules.auth_rules import AuthRules
from state.rules.auth_selection import POWER_LEVELS, AuthEvent

StateMap = Mapping[StateKey, str]


class Base(Protocol):
    """The entries without conflict, by key."""

    def get(self, key: StateKey, /) -> str | None: ...


def resolve_v1(rules: AuthRules, events: Mapping[str, AuthEvent], maps: Sequence[StateMap]) -> dict[StateKey, str]:
    candidates: dict[StateKey, set[str]] = {}
    for state in maps:
        for key, event_id in state.items():
            candidates.setdefault(key, set()).add(event_id)
    agreed = {key: next(iter(found)) for key, found in candidates.items() if len(found) == 1}
    disputed = {key: found for key, found in candidates.items() if len(found) > 1}
    return {**agreed, **settle_v1(rules, events, agreed, disputed)}


def settle_v1(
    rules: AuthRules, events: Mapping[str, AuthEvent], agreed: Base, candidates: Mapping[StateKey, Collection[str]]
) -> dict[StateKey, str]:
    """Returns the entries at the keys in conflict, of which ``candidates`` are the events that the states have there.

    Candidates that are not in ``events`` are ignored. The result lacks keys that have no others.
    """
    known = {key: [event_id for event_id in found if event_id in events] for key, found in candidates.items()}
    disputed = {key: found for key, found in known.items() if found}
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
    return resolved


class _Context:
    # The entries without conflict, and the candidates that have won so far.
    def __init__(self, events: Mapping[str, AuthEvent], agreed: Base) -> None:
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
    # Equal depths are ordered by the hash of the event ID, descending.
    found = [events[event_id] for event_id in event_ids]
    return sorted(found, key=lambda event: (event.depth, _inverted_sha1(event.event_id)))


def _inverted_sha1(event_id: str) -> int:
    return -int.from_bytes(hashlib.sha1(event_id.encode(), usedforsecurity=False).digest(), "big")


def _oldest_unbroken(rules: AuthRules, by_age: Sequence[AuthEvent], context: _Context) -> AuthEvent:
    # Each is authorised by a state with the one before it; the oldest is not checked. The first refusal ends it.
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
    for event in reversed(by_age):
        if rules.refusal(event, context) is None:
            return event
    return by_age[0]
