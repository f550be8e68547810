"""Applies the visibility rule to one event (pure). Everything else about visibility is based on this rule.

The answer depends on the state *after* the event, at its own place in the graph: on the viewer's membership and on the
room's history visibility. Three kinds of events are visible to more users:

* For a change of history visibility, the more open of the old and the new setting applies.
* For the viewer's own membership event, the old or the new membership applies, whichever lets the viewer see more.
* The viewer's own leave after a join or an invite is always visible.

A viewer without any membership event is *peeking*. Two things are decided elsewhere: whether the viewer may read the room at
all (``events.visibility.access``), and which later events are hidden from a user who has left (the rows ``cut``
of ``events.visibility.ranges``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "CALL_INVITE",
    "HISTORY_VISIBILITIES",
    "Answer",
    "Rule",
    "RuleInput",
    "Verdict",
    "admitting_rule",
    "effective_visibility",
    "for_client",
    "for_server",
    "known_visibility",
    "more_joined",
]

HISTORY_VISIBILITIES = ("world_readable", "shared", "invited", "joined")
"""The settings, from the most open to the most closed."""
_MEMBERSHIPS = ("join", "invite", "knock", "leave", "ban")
CALL_INVITE = "m.call.invite"
_DUMMY = "org.matrix.dummy_event"
_NEVER_SHOWN = frozenset({_DUMMY, "m.room.aliases"})


class Answer(StrEnum):
    FULL = "full"
    REDACTED = "redacted"
    HIDDEN = "hidden"


class Rule(StrEnum):
    """The rule that decided, as a stable word. Those for clients are in the order in which they are checked."""

    REJECTED = "rejected"
    REDACTION_WITHOUT_EFFECT = "redaction_without_effect"
    SOFT_FAILED = "soft_failed"
    TYPE = "type"
    IGNORED_SENDER = "ignored_sender"
    RETENTION = "retention"
    ALWAYS_INCLUDED = "always_included"
    OWN_MEMBERSHIP = "own_membership"
    OUTLIER = "outlier"
    OWN_LEAVE = "own_leave"
    JOINED = "joined"
    WORLD_READABLE = "world_readable"
    SHARED = "shared"
    INVITED = "invited"
    NOT_VISIBLE = "not_visible"
    ERASED_SENDER = "erased_sender"
    STATE_UNKNOWN = "state_unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    answer: Answer
    rule: Rule


_OWN_OUTLIER = Verdict(Answer.FULL, Rule.OWN_MEMBERSHIP)
_OUTLIER = Verdict(Answer.HIDDEN, Rule.OUTLIER)


@dataclass(frozen=True, slots=True)
class RuleInput:
    """What the rule needs to know about an event and a viewer.

    ``membership`` and ``visibility`` are the values after the event, or None. ``own_membership``: the event is the viewer's own
    membership event, and ``membership_before`` is the membership before it. ``changes_visibility``: the event is a history
    visibility event, and ``visibility_before`` is the setting before it.
    """

    event_type: str = "m.room.message"
    is_state: bool = False
    membership: str | None = None
    visibility: object = None
    peeking: bool = False
    own_membership: bool = False
    membership_before: str | None = None
    changes_visibility: bool = False
    visibility_before: object = None
    sender_erased: bool = False
    sender_ignored: bool = False
    expired: bool = False
    """True if the event is older than the retention time of the room."""
    public_room: bool = False
    soft_failed: bool = False
    outlier: bool = False
    always_included: bool = False
    """True if the event is sent regardless of the rule, as sync does with the current state."""


def known_visibility(value: object) -> str:
    """Any unknown value means ``shared``."""
    return value if isinstance(value, str) and value in HISTORY_VISIBILITIES else "shared"


def effective_visibility(after: object, before: object, *, changes: bool) -> str:
    # For a change of history visibility, the more open of the old and the new setting applies.
    now = known_visibility(after)
    return min(now, known_visibility(before), key=HISTORY_VISIBILITIES.index) if changes else now


def more_joined(left: str | None, right: str | None) -> str | None:
    return min((left, right), key=lambda value: _MEMBERSHIPS.index(value) if value in _MEMBERSHIPS else 5)


def for_client(given: RuleInput) -> Verdict:
    """Returns the verdict for a user: whether they see the event, and the rule that decided."""
    if (hidden := _never(given)) is not None:
        return Verdict(Answer.HIDDEN, hidden)
    if given.always_included:
        return Verdict(Answer.FULL, Rule.ALWAYS_INCLUDED)
    if given.outlier:
        return _OWN_OUTLIER if given.own_membership else _OUTLIER
    rule = admitting_rule(given)
    if rule is None:
        return Verdict(Answer.HIDDEN, Rule.NOT_VISIBLE)
    if given.sender_erased and (_membership_that_counts(given) != "join" or rule is Rule.OWN_LEAVE):
        return Verdict(Answer.REDACTED, rule)
    return Verdict(Answer.FULL, rule)


def _never(given: RuleInput) -> Rule | None:
    # What hides an event without regard to the membership. Ignored senders and retention do not hide state events.
    if given.soft_failed:
        return Rule.SOFT_FAILED
    if given.event_type in _NEVER_SHOWN or (given.event_type == CALL_INVITE and given.public_room):
        return Rule.TYPE
    if given.is_state:
        return None
    if given.sender_ignored:
        return Rule.IGNORED_SENDER
    return Rule.RETENTION if given.expired else None


def admitting_rule(given: RuleInput) -> Rule | None:
    """Returns the rule by which the room's state lets the viewer see the event, or None.

    Invited users see events while the setting is ``invited``, and the change to it, but not the change from it. Of a
    change by an erased sender only the new setting applies, because the redacted event does not show the old one.
    """
    membership = _membership_that_counts(given)
    changes = given.changes_visibility and not given.sender_erased
    visibility = effective_visibility(given.visibility, given.visibility_before, changes=changes)
    left = given.membership == "leave" and given.membership_before in ("join", "invite")
    admitted = {
        Rule.OWN_LEAVE: given.own_membership and left,
        Rule.JOINED: membership == "join",
        Rule.WORLD_READABLE: visibility == "world_readable",
        Rule.SHARED: visibility == "shared" and not given.peeking,
        Rule.INVITED: known_visibility(given.visibility) == "invited" and membership == "invite",
    }
    return next((rule for rule, holds in admitted.items() if holds), None)


def _membership_that_counts(given: RuleInput) -> str | None:
    return more_joined(given.membership, given.membership_before) if given.own_membership else given.membership


def for_server(
    visibility: object, memberships: Collection[str | None], *, sender_erased: bool, state_known: bool = True
) -> Verdict:
    """Returns the verdict for a server. ``memberships`` has the memberships of the server's users after the event."""
    if sender_erased:
        return Verdict(Answer.REDACTED, Rule.ERASED_SENDER)
    if not state_known:
        return Verdict(Answer.REDACTED, Rule.STATE_UNKNOWN)
    setting = known_visibility(visibility)
    if setting in ("world_readable", "shared"):
        return Verdict(Answer.FULL, Rule(setting))
    enough = {"join", "invite"} if setting == "invited" else {"join"}
    if enough & set(memberships):
        return Verdict(Answer.FULL, Rule(setting))
    return Verdict(Answer.REDACTED, Rule.NOT_VISIBLE)
