"""Applies the auth rules to incoming events, and decides on rejection and soft failure (pure).

An event is *rejected* if its own auth events or the state before it do not allow it. An event is *soft-failed* if the
room's current state does not allow it. Soft failure is checked only for events that do not build on the current state.
A verdict that another server stated with the event is kept.

If an auth event of other events is redacted, event auth reads its redacted form from then on. Example: before room
version 11 the redaction of a power levels event removes its ``invite`` level. Invites that this level forbade are then
allowed. State resolution, however, reads events as they were sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_

from msgspec.structs import replace

from events.format.parsing import ParsedEvent
from events.format.redaction import may_redact, prune_content
from state.groups.deltas import StateKey
from state.rules.auth_rules import AuthRules
from state.rules.auth_selection import CREATE, POWER_LEVELS, AuthEvent, State
from state.rules.room_versions import RoomVersion

__all__ = [
    "PRUNED_TYPES",
    "REFUSED_BY_AUTH_EVENTS",
    "REFUSED_BY_STATE",
    "EventAuthorizer",
    "as_seen_by",
    "is_asked_by_sender",
    "is_third_party_invite",
]

PRUNED_TYPES = (POWER_LEVELS[0], "m.room.third_party_invite")
"""The types of state events whose redaction removes content that the auth rules read."""

_ASKED_ANEW = ("m.room.create", "m.room.redaction", POWER_LEVELS[0])
"""Types of events of which the auth rules read more than type, sender and auth events, even without a state key."""
_MOST_ASKED = 10_000

REFUSED_BY_AUTH_EVENTS = "auth events"
REFUSED_BY_STATE = "state before"


def is_asked_by_sender(event: AuthEvent) -> bool:
    """Returns true if the auth rules read only type, sender and auth events of this event."""
    return event.state_key is None and event.type not in _ASKED_ANEW


def is_third_party_invite(event: ParsedEvent) -> bool:
    """Returns true for an invite that an identity server signed. A server other than the sender's may have sent it."""
    return event.membership == "invite" and "third_party_invite" in event.content


def as_seen_by(event: ParsedEvent, server: str) -> ParsedEvent:
    """Returns the event as the named server stores it. A server never soft-fails events of its own users.

    If the source stated a soft failure with the event, this soft failure is kept.
    """
    if event.soft_failure_given or event.sender.partition(":")[2] != server:
        return event
    return replace(event, soft_failure_given=True)


class EventAuthorizer:
    """Event auth for the events of one room.

    ``events`` has the known events by ID, with their verdicts as soon as these are known. Some sources leave out auth
    events. So, if ``trusting`` is true, an event without auth events is checked only against the state before it. A
    create event is not affected, because it never has auth events.
    """

    def __init__(
        self, rules: AuthRules, events: Mapping[str, ParsedEvent], create: ParsedEvent | None, *, trusting: bool
    ) -> None:
        self._rules = rules
        self._events = events
        self._create = create
        self._trusting = trusting
        self.redacted: set[str] = set()
        """Events of ``PRUNED_TYPES`` that have been redacted."""
        self._asked: dict[tuple[str, str, tuple[str, ...], int], tuple[list[ParsedEvent], str | None]] = {}

    def rejection(self, event: ParsedEvent, before: State | None) -> str | None:
        """Returns the reason why the event is rejected, or null.

        ``before`` is the state before the event. If ``before`` is null (unknown), only the event's own auth events are
        checked.
        """
        if event.rejection_given:
            return event.rejected_reason
        if reason := self.by_auth_events(event):
            return f"{REFUSED_BY_AUTH_EVENTS}: {reason}"
        if before is not None and (reason := self._rules.refusal(event, self._as_it_is(before))):
            return f"{REFUSED_BY_STATE}: {reason}"
        return None

    def soft_fails(self, event: AuthEvent, current: State) -> bool:
        """Returns true if the current state does not allow the event."""
        return self._rules.refusal(event, self._as_it_is(current)) is not None

    def note_redaction(self, redaction: ParsedEvent, before: State | None) -> None:
        """Records an accepted redaction. From now on event auth reads the redacted form of its target.

        ``before`` is the state before the redaction. If ``before`` is null (unknown), only the rules apply that need no
        state.
        """
        target = self._events.get(redaction.redacts or "")
        if target is None or target.type not in PRUNED_TYPES:
            return
        levels = self._rules.levels(before, self._create) if before is not None else None
        if may_redact(redaction, target, self._rules.version, levels):
            self.redacted.add(target.event_id)

    def _as_it_is(self, state: State) -> State:
        return _Redacted(state, self.redacted, self._rules.version) if self.redacted else state

    def by_auth_events(self, event: ParsedEvent) -> str | None:
        """Returns the reason why the event's own auth events do not allow it, or null.

        If some auth events are missing, the event is checked by the present auth events as far as possible. If this
        check gives no reason, the result is null. Exception: an outlier that is a third-party invite is then not
        allowed.
        """
        if self._trusting and not event.auth_event_ids and event.type != CREATE[0]:
            return None
        here = []
        for other in event.auth_event_ids:
            try:
                here.append(self._events[other])
            except KeyError:  # this auth event is missing
                continue
        return self._as_before(event, here) if is_asked_by_sender(event) else self._by_these(event, here)

    def _as_before(self, event: ParsedEvent, here: list[ParsedEvent]) -> str | None:
        """Returns the result of ``_by_these``, from the cache if possible.

        All messages of a sender with the same auth events have the same result.
        """
        asked = event.type, event.sender, event.auth_event_ids, len(self.redacted)  # ``redacted`` only grows
        before = self._asked.get(asked)
        if before is not None and len(before[0]) == len(here) and all(map(is_, before[0], here)):
            return before[1]
        if len(self._asked) >= _MOST_ASKED:
            self._asked.clear()
        self._asked[asked] = here, self._by_these(event, here)
        return self._asked[asked][1]

    def _by_these(self, event: ParsedEvent, here: Sequence[ParsedEvent]) -> str | None:
        if reason := self._rules.auth_events_refusal(event, here):
            return reason
        state = {(other.type, other.state_key or ""): other for other in here}
        if self._rules.version.room_id_is_create_hash and self._create is not None:
            state[CREATE] = self._create
        complete = len(here) == len(event.auth_event_ids) and (CREATE in state or event.type == "m.room.create")
        if complete:
            return self._rules.refusal(event, self._as_it_is(state))
        if event.outlier and is_third_party_invite(
            event
        ):  # only the auth events could prove it, and its sender need not have signed it
            return "not all of them are here, and the event is a third party's invite"
        return None


class _Redacted:
    """A view of a state that returns redacted events in their pruned form."""

    def __init__(self, state: State, redacted: set[str], version: RoomVersion) -> None:
        self._state = state
        self._redacted = redacted
        self._version = version

    def get(self, key: StateKey, /) -> AuthEvent | None:
        found = self._state.get(key)
        if not isinstance(found, ParsedEvent) or found.event_id not in self._redacted:
            return found
        return replace(found, content=prune_content(found.type, found.content, self._version))
