"""Who may see one event: the rule that everything about visibility goes back to (pure).

The answer depends on the state *after* the event, at its own place in the graph: the viewer's membership there and the room's
history visibility there. Three kinds of events are judged more kindly: a change of the visibility counts by its
more open side, the viewer's own membership by its more joined side, and an own leave after a join or invite is always
seen. Whoever looks into a room without any record of membership is *peeking*.

Not decided here: whether somebody may read the room at all, and that those who left see nothing later.
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
    "Sight",
    "Verdict",
    "admits",
    "effective_visibility",
    "for_client",
    "for_server",
    "known_visibility",
    "more_joined",
]

HISTORY_VISIBILITIES = ("world_readable", "shared", "invited", "joined")
"""From the most open one to the closest."""
_MEMBERSHIPS = ("join", "invite", "knock", "leave", "ban")
CALL_INVITE = "m.call.invite"
_DUMMY = "org.matrix.dummy_event"
_NEVER_SHOWN = frozenset({_DUMMY, "m.room.aliases"})


class Answer(StrEnum):
    """What becomes of an event on its way to a viewer."""

    FULL = "full"
    REDACTED = "redacted"
    HIDDEN = "hidden"


class Rule(StrEnum):
    """What decided, in stable words (``docs/reference/visibility.md``); those of clients in the order in which they are asked."""

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
    """The answer and the rule that it comes from."""

    answer: Answer
    rule: Rule


_OWN_OUTLIER = Verdict(Answer.FULL, Rule.OWN_MEMBERSHIP)
_OUTLIER = Verdict(Answer.HIDDEN, Rule.OUTLIER)


@dataclass(frozen=True, slots=True)
class Sight:
    """An event as a viewer stands to it.

    ``membership`` and ``visibility`` are the values after the event (null: none). ``own_before`` is set for the viewer's own
    membership events (``own`` true): the membership before. ``visibility_before`` is set for history visibility
    events (``changes_visibility`` true).
    """

    event_type: str = "m.room.message"
    is_state: bool = False
    membership: str | None = None
    visibility: object = None
    peeking: bool = False
    own: bool = False
    own_before: str | None = None
    changes_visibility: bool = False
    visibility_before: object = None
    sender_erased: bool = False
    sender_ignored: bool = False
    expired: bool = False
    """Older than the room keeps messages."""
    public_room: bool = False
    soft_failed: bool = False
    outlier: bool = False
    always_included: bool = False
    """Sent along whatever the rule says, as current state in sync is."""


def known_visibility(value: object) -> str:
    """The setting that a value stands for: everything unknown is ``shared``."""
    return value if isinstance(value, str) and value in HISTORY_VISIBILITIES else "shared"


def effective_visibility(after: object, before: object, *, changes: bool) -> str:
    """The setting that an event is judged by: a change by its more open side."""
    now = known_visibility(after)
    return min(now, known_visibility(before), key=HISTORY_VISIBILITIES.index) if changes else now


def more_joined(one: str | None, other: str | None) -> str | None:
    """Of two memberships the one that sees more."""
    return min((one, other), key=lambda value: _MEMBERSHIPS.index(value) if value in _MEMBERSHIPS else 5)


def for_client(sight: Sight) -> Verdict:
    """What a user sees of an event."""
    if (hidden := _never(sight)) is not None:
        return Verdict(Answer.HIDDEN, hidden)
    if sight.always_included:
        return Verdict(Answer.FULL, Rule.ALWAYS_INCLUDED)
    if sight.outlier:
        return _OWN_OUTLIER if sight.own else _OUTLIER
    rule = admits(sight)
    if rule is None:
        return Verdict(Answer.HIDDEN, Rule.NOT_VISIBLE)
    if sight.sender_erased and (_seen_as(sight) != "join" or rule is Rule.OWN_LEAVE):
        return Verdict(Answer.REDACTED, rule)
    return Verdict(Answer.FULL, rule)


def _never(sight: Sight) -> Rule | None:
    """Why nobody, or not this user, sees the event wherever they stand."""
    if sight.soft_failed:
        return Rule.SOFT_FAILED
    if sight.event_type in _NEVER_SHOWN or (sight.event_type == CALL_INVITE and sight.public_room):
        return Rule.TYPE
    if sight.is_state:
        return None
    if sight.sender_ignored:
        return Rule.IGNORED_SENDER
    return Rule.RETENTION if sight.expired else None


def admits(sight: Sight) -> Rule | None:
    """What in the room's state lets the viewer see the event; null: nothing does.

    Those who are invited see what comes while invited members may read, also the change to that, not the change away. A
    change by an erased sender counts by its new side alone: what is left of the event does not tell the old one.
    """
    membership = _seen_as(sight)
    changes = sight.changes_visibility and not sight.sender_erased
    visibility = effective_visibility(sight.visibility, sight.visibility_before, changes=changes)
    left = sight.membership == "leave" and sight.own_before in ("join", "invite")
    admitted = {
        Rule.OWN_LEAVE: sight.own and left,
        Rule.JOINED: membership == "join",
        Rule.WORLD_READABLE: visibility == "world_readable",
        Rule.SHARED: visibility == "shared" and not sight.peeking,
        Rule.INVITED: known_visibility(sight.visibility) == "invited" and membership == "invite",
    }
    return next((rule for rule, holds in admitted.items() if holds), None)


def _seen_as(sight: Sight) -> str | None:
    return more_joined(sight.membership, sight.own_before) if sight.own else sight.membership


def for_server(
    visibility: object, memberships: Collection[str | None], *, sender_erased: bool, state_known: bool = True
) -> Verdict:
    """What another server sees; ``memberships`` are those of its users after the event."""
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
