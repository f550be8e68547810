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

PRUNED_TYPES = (POWER_LEVELS[0], "m.room.third_party_invite")
"""The types of state events whose redaction removes content that the auth rules read."""

_MORE_THAN_SENDER = ("m.room.create", "m.room.redaction", POWER_LEVELS[0])
"""Types of events of which the auth rules read more than type, sender and auth events, even without a state key."""
_MOST_CACHED = 10_000

REFUSED_BY_AUTH_EVENTS = "auth events"
REFUSED_BY_STATE = "state before"


def is_ruled_by_sender(event: AuthEvent) -> bool:
    """Returns true if the auth rules read only type, sender and auth events of this event."""
    return event.state_key is None and event.type not in _MORE_THAN_SENDER


def is_third_party_invite(event: ParsedEvent) -> bool:
    """Returns true for an invite that an identity server signed, which any server may send."""
    return event.membership == "invite" and "third_party_invite" in event.content


def as_seen_by(event: ParsedEvent, server: str) -> ParsedEvent:
    """Returns the event as the named server stores it. A server never soft-fails events of its own users."""
    if event.soft_failure_given or event.sender.partition(":")[2] != server:
        return event
    return replace(event, soft_failure_given=True)


class EventAuthorizer:
    """Event auth for the events of one room.

    ``events`` has the known events by ID, with their verdicts as soon as these are known. ``from_dump``: the source may
    omit auth events (dumps of databases do). Then only the state before an event without auth events authorises it.
    """

    def __init__(
        self, rules: AuthRules, events: Mapping[str, ParsedEvent], create: ParsedEvent | None, *, from_dump: bool
    ) -> None:
        self._rules = rules
        self._events = events
        self._create = create
        self._trusting = from_dump
        self.redacted: set[str] = set()
        """Events of ``PRUNED_TYPES`` that have been redacted."""
        self._cached: dict[tuple[str, str, tuple[str, ...], int], tuple[list[ParsedEvent], str | None]] = {}

    def rejection(self, event: ParsedEvent, before: State | None) -> str | None:
        """Returns the reason why the event is rejected, or None.

        If the state before the event is not known (None), only its own auth events are checked.
        """
        if event.rejection_given:
            return event.rejected_reason
        if reason := self.by_auth_events(event):
            return f"{REFUSED_BY_AUTH_EVENTS}: {reason}"
        if before is not None and (reason := self._rules.refusal(event, self._with_redactions(before))):
            return f"{REFUSED_BY_STATE}: {reason}"
        return None

    def soft_fails(self, event: AuthEvent, current: State) -> bool:
        return self._rules.refusal(event, self._with_redactions(current)) is not None

    def record_redaction(self, redaction: ParsedEvent, before: State | None) -> None:
        """Records an accepted redaction.

        From now on event auth reads the redacted form of its target.

        If the state before the redaction is not known (None), only the rules apply that need no state.
        """
        target = self._events.get(redaction.redacts or "")
        if target is None or target.type not in PRUNED_TYPES:
            return
        levels = self._rules.levels(before, self._create) if before is not None else None
        if may_redact(redaction, target, self._rules.version, levels):
            self.redacted.add(target.event_id)

    def _with_redactions(self, state: State) -> State:
        return _Redacted(state, self.redacted, self._rules.version) if self.redacted else state

    def by_auth_events(self, event: ParsedEvent) -> str | None:
        """Returns the reason why the event's own auth events do not allow it, or None.

        If some are missing, it is checked by the present ones as far as possible.
        """
        if self._trusting and not event.auth_event_ids and event.type != CREATE[0]:
            return None
        present = []
        for other in event.auth_event_ids:
            try:
                present.append(self._events[other])
            except KeyError:  # this auth event is missing
                continue
        return (
            self._by_auth_events_cached(event, present)
            if is_ruled_by_sender(event)
            else self._by_present(event, present)
        )

    def _by_auth_events_cached(self, event: ParsedEvent, present: list[ParsedEvent]) -> str | None:
        # all messages of a sender with the same auth events have the same result
        key = event.type, event.sender, event.auth_event_ids, len(self.redacted)  # ``redacted`` only grows
        before = self._cached.get(key)
        if before is not None and len(before[0]) == len(present) and all(map(is_, before[0], present)):
            return before[1]
        if len(self._cached) >= _MOST_CACHED:
            self._cached.clear()
        self._cached[key] = present, self._by_present(event, present)
        return self._cached[key][1]

    def _by_present(self, event: ParsedEvent, present: Sequence[ParsedEvent]) -> str | None:
        if reason := self._rules.auth_events_refusal(event, present):
            return reason
        state = {(other.type, other.state_key or ""): other for other in present}
        if self._rules.version.room_id_is_create_hash and self._create is not None:
            state[CREATE] = self._create
        complete = len(present) == len(event.auth_event_ids) and (CREATE in state or event.type == "m.room.create")
        if complete:
            return self._rules.refusal(event, self._with_redactions(state))
        if event.outlier and is_third_party_invite(
            event
        ):  # only the auth events could prove it, and its sender need not have signed it
            return "not all of them are here, and the event is a third party's invite"
        return None


class _Redacted:
    # A state in which redacted events have their pruned form.
    def __init__(self, state: State, redacted: set[str], version: RoomVersion) -> None:
        self._state = state
        self._redacted = redacted
        self._version = version

    def get(self, key: StateKey, /) -> AuthEvent | None:
        found = self._state.get(key)
        if not isinstance(found, ParsedEvent) or found.event_id not in self._redacted:
            return found
        return replace(found, content=prune_content(found.type, found.content, self._version))
