"""Whether an event is rejected or soft-failed: the auth rules, asked as a server asks them when the event comes in (pure).

An event is *rejected* when it may not stand on its own auth events or on the state before it. It is *soft-failed* when it may
not stand on the room's current state, which is asked only where it does not build on that. What was decided by another
server and told with the event is taken over.
"""

from __future__ import annotations

from collections.abc import Mapping

from events.parsing import ParsedEvent
from state.auth_rules import AuthRules
from state.auth_selection import CREATE, State, state_key_of

__all__ = ["REFUSED_BY_AUTH_EVENTS", "REFUSED_BY_STATE", "Judge"]

REFUSED_BY_AUTH_EVENTS = "auth events"
REFUSED_BY_STATE = "state before"


class Judge:
    """Judges the events of one room.

    ``events`` are those that are here, each with its verdict once it has one. ``trusting`` takes an event that
    lists no auth events at all as one whose auth events were not told, as in dumps; it is then judged by the state
    before it alone.
    """

    def __init__(
        self, rules: AuthRules, events: Mapping[str, ParsedEvent], create: ParsedEvent | None, *, trusting: bool
    ) -> None:
        self._rules = rules
        self._events = events
        self._create = create
        self._trusting = trusting

    def rejection(self, event: ParsedEvent, before: State | None) -> str | None:
        """Why the event is rejected; null: it is accepted. ``before`` is null where the state is not known."""
        if event.rejection_given:
            return event.rejected_reason
        if reason := self._by_auth_events(event):
            return f"{REFUSED_BY_AUTH_EVENTS}: {reason}"
        if before is not None and (reason := self._rules.refusal(event, before)):
            return f"{REFUSED_BY_STATE}: {reason}"
        return None

    def soft_fails(self, event: ParsedEvent, current: State) -> bool:
        """Whether the event may not stand on the current state."""
        return self._rules.refusal(event, current) is not None

    def _by_auth_events(self, event: ParsedEvent) -> str | None:
        """What the listed auth events say; nothing where some of them are not here."""
        if self._trusting and not event.auth_event_ids:
            return None
        here = [self._events[other] for other in event.auth_event_ids if other in self._events]
        if reason := self._rules.auth_events_refusal(event, here):
            return reason
        state = {state_key_of(other): other for other in here}
        if self._rules.version.room_id_is_create_hash and self._create is not None:
            state[CREATE] = self._create
        complete = len(here) == len(event.auth_event_ids) and (CREATE in state or event.type == "m.room.create")
        return self._rules.refusal(event, state) if complete else None
