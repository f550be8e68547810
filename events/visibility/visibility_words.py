"""Explains the reasons for visibility in sentences for people (pure).

Programs use the stable words of the rules (``events.visibility.rule``, ``events.visibility.access``) instead.
"""

from __future__ import annotations

from typing import Protocol

RULES = {
    "always_included": "It is part of the current state, which is sent in any case.",
    "own_membership": "It is the user's own membership, known without the room.",
    "own_leave": "It is the user's own leave, after a join or an invite.",
    "joined": "The user was joined at the event.",
    "invited": "The user was invited at the event, and invited users may read what came since.",
    "shared": "History was shared with members, and the user is or was one.",
    "world_readable": "The room was world readable at the event.",
    "not_visible": "At the event the room's history visibility did not let the user in.",
    "soft_failed": "The event is soft-failed: it fits its own place in the graph and not the room as it was when it came.",
    "rejected": "The event was rejected by the auth rules.",
    "outlier": "The event is an outlier: its place in the graph is not known.",
    "type": "Events of this type are shown to no client, or not in a room like this.",
    "ignored_sender": "The user ignores the sender.",
    "retention": "The event is older than the room keeps messages.",
    "redaction_without_effect": "It is a redaction without effect: its target is not here, or its sender may not redact it.",
}
"""Stable word of a rule -> its meaning."""
REACHES = {
    "member": "The user is joined to the room now.",
    "before_leave": "The user has left the room, after this event.",
    "peeking": "The user is no member; the room is world readable.",
    "after_leave": "The user left the room before this event.",
    "forgotten": "The user has left the room and forgotten it.",
    "not_a_member": "The user is no member of the room, and it is not world readable now.",
    "outlier": "No user reaches an event whose place in the graph is not known.",
    "unknown": "Who may read the room is not known: events below others are missing.",
}
"""Stable word of ``events.visibility.access.Reach`` -> its meaning."""


class Explained(Protocol):
    @property
    def allowed(self) -> bool: ...
    @property
    def pruned(self) -> bool: ...
    @property
    def reachable(self) -> bool: ...
    @property
    def rule(self) -> str: ...
    @property
    def reach(self) -> str: ...
    @property
    def membership(self) -> str | None: ...
    @property
    def history_visibility(self) -> str | None: ...
    @property
    def redacted_by(self) -> str | None: ...


def answer_in_words(found: Explained) -> str:
    if not found.allowed:
        return "Hidden: the rule does not let this user see the event."
    if not found.reachable:
        return "Out of reach: the rule would let this user see the event, but it cannot be got at now."
    if found.pruned:
        return "Shown in pruned form: the sender asked for erasure, and the user was not joined at the event."
    if found.redacted_by is not None:
        return "Shown in pruned form: the event is redacted for all users."
    return "Shown."


def reasons_in_words(found: Explained) -> list[str]:
    """Returns the reasons of the answer as sentences, the deciding rule first."""
    reasons = [RULES.get(found.rule, found.rule), REACHES.get(str(found.reach), str(found.reach))]
    if found.history_visibility is not None:
        membership = found.membership or "none"
        reasons.append(f"At the event: membership {membership}, history visibility {found.history_visibility}.")
    return reasons
