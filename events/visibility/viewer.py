"""Collects the data for ``events.visibility.rule`` from the states before and after an event (pure)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

from events.visibility.rule import RuleInput
from state.groups.deltas import StateKey
from state.rules.auth_selection import JOIN_RULES, State

HISTORY_VISIBILITY: StateKey = ("m.room.history_visibility", "")


class SeenEvent(Protocol):
    @property
    def type(self) -> str: ...
    @property
    def state_key(self) -> str | None: ...
    @property
    def sender(self) -> str: ...
    @property
    def membership(self) -> str | None: ...
    @property
    def outlier(self) -> bool: ...
    @property
    def soft_failed(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Viewer:
    """A user who reads. ``peeking``: without a membership event, because the room is world-readable."""

    user_id: str
    peeking: bool = False
    ignored: Collection[str] = field(default_factory=frozenset)
    erased: Collection[str] = field(default_factory=frozenset)


def history_visibility(state: State) -> object:
    """Returns the unchecked value in the history visibility event of the state, or None."""
    found = state.get(HISTORY_VISIBILITY)
    return None if found is None else found.content.get("history_visibility")


def membership(state: State, user_id: str) -> str | None:
    found = state.get(("m.room.member", user_id))
    return None if found is None else found.membership


def rule_input(event: SeenEvent, viewer: Viewer, before: State | None, after: State | None) -> RuleInput:
    """Returns what the rule needs to know.

    The states are None for an outlier.

    ``before`` is read only for changes of history visibility and for the viewer's own memberships.
    """
    own_membership = event.type == "m.room.member" and event.state_key == viewer.user_id
    changes = (event.type, event.state_key) == HISTORY_VISIBILITY
    rule = after.get(JOIN_RULES) if after is not None else None
    return RuleInput(
        event_type=event.type,
        is_state=event.state_key is not None,
        membership=membership(after, viewer.user_id) if after is not None else None,
        visibility=history_visibility(after) if after is not None else None,
        peeking=viewer.peeking,
        own_membership=own_membership,
        membership_before=membership(before, viewer.user_id) if own_membership and before is not None else None,
        changes_visibility=changes,
        visibility_before=history_visibility(before) if changes and before is not None else None,
        sender_erased=event.sender in viewer.erased,
        sender_ignored=event.sender in viewer.ignored,
        public_room=rule is not None and rule.content.get("join_rule") == "public",
        soft_failed=event.soft_failed,
        outlier=event.outlier,
    )
