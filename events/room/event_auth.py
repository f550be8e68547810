"""Whether an event is rejected or soft-failed: the auth rules, asked as a server asks them when the event comes in (pure).

An event is *rejected* when it may not stand on its own auth events or on the state before it. It is *soft-failed* when it may
not stand on the room's current state, which is asked only where it does not build on that. What was decided by another
server and told with the event is taken over.

What it is judged by is looked at as it is when the event comes in: a redacted power level event has lost its ``invite`` level by
then (before room version 11), and with it what that forbade. State resolution looks at events as they were sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_

from msgspec.structs import replace

from events.format.parsing import ParsedEvent
from events.format.redaction import may_redact, prune_content
from state.groups.deltas import StateKey
from state.rules.auth_rules import AuthRules
from state.rules.auth_selection import CREATE, POWER_LEVELS, AuthEvent, State, state_key_of
from state.rules.room_versions import RoomVersion

__all__ = [
    "PRUNED_TYPES",
    "REFUSED_BY_AUTH_EVENTS",
    "REFUSED_BY_STATE",
    "Judge",
    "as_let_through",
    "is_asked_by_sender",
    "is_third_party_invite",
]

PRUNED_TYPES = (POWER_LEVELS[0], "m.room.third_party_invite")
"""State of which a redaction takes something away that the rules ask for."""

_ASKED_ANEW = ("m.room.create", "m.room.redaction", POWER_LEVELS[0])
"""Of all other events that are no state the rules ask for type, sender and auth events only."""
_MOST_ASKED = 10_000

REFUSED_BY_AUTH_EVENTS = "auth events"
REFUSED_BY_STATE = "state before"


def is_asked_by_sender(event: AuthEvent) -> bool:
    """True for an event of which the rules ask for type, sender and auth events only."""
    return event.state_key is None and event.type not in _ASKED_ANEW


def is_third_party_invite(event: ParsedEvent) -> bool:
    """Whether it is an invite for which an identity server vouches, as the rules verify; another may have sent it."""
    return event.membership == "invite" and "third_party_invite" in event.content


def as_let_through(event: ParsedEvent, server: str) -> ParsedEvent:
    """The event as the server of that name has it: it asks whether what others send soft-fails, and not what its own users send.

    What is told of soft failure stays.
    """
    if event.soft_failure_given or event.sender.partition(":")[2] != server:
        return event
    return replace(event, soft_failure_given=True)


class Judge:
    """Judges the events of one room.

    ``events`` are those that are here, each with its verdict once it has one. ``trusting`` takes an event that
    lists no auth events at all as one whose auth events were not told, as in dumps; it is then judged by the state
    before it alone. A create event has none.
    """

    def __init__(
        self, rules: AuthRules, events: Mapping[str, ParsedEvent], create: ParsedEvent | None, *, trusting: bool
    ) -> None:
        self._rules = rules
        self._events = events
        self._create = create
        self._trusting = trusting
        self.redacted: set[str] = set()
        """Events of ``PRUNED_TYPES`` that are redacted by now."""
        self.known: State | None = None
        """The room's current state, where outliers are judged by it of which not all auth events are here."""
        self._asked: dict[tuple[str, str, tuple[str, ...], int], tuple[list[ParsedEvent], str | None]] = {}

    def rejection(self, event: ParsedEvent, before: State | None) -> str | None:
        """Why the event is rejected; null: it is accepted. ``before`` is null where the state is not known."""
        if event.rejection_given:
            return event.rejected_reason
        if reason := self._by_auth_events(event):
            return f"{REFUSED_BY_AUTH_EVENTS}: {reason}"
        if before is not None and (reason := self._rules.refusal(event, self._as_it_is(before))):
            return f"{REFUSED_BY_STATE}: {reason}"
        return None

    def soft_fails(self, event: AuthEvent, current: State) -> bool:
        """Whether the event may not stand on the current state."""
        return self._rules.refusal(event, self._as_it_is(current)) is not None

    def note_redaction(self, redaction: ParsedEvent, before: State | None) -> None:
        """An accepted redaction came in, on top of that state: what it redacts counts for less from now on."""
        target = self._events.get(redaction.redacts or "")
        if target is None or target.type not in PRUNED_TYPES:
            return
        levels = self._rules.levels(before, self._create) if before is not None else None
        if may_redact(redaction, target, self._rules.version, levels):
            self.redacted.add(target.event_id)

    def _as_it_is(self, state: State) -> State:
        return _Redacted(state, self.redacted, self._rules.version) if self.redacted else state

    def _by_auth_events(self, event: ParsedEvent) -> str | None:
        """What the listed auth events say; nothing where some of them are not here."""
        if self._trusting and not event.auth_event_ids and event.type != CREATE[0]:
            return None
        find = self._events.get
        here = [found for other in event.auth_event_ids if (found := find(other)) is not None]
        return self._as_before(event, here) if is_asked_by_sender(event) else self._by_these(event, here)

    def _as_before(self, event: ParsedEvent, here: list[ParsedEvent]) -> str | None:
        """What these auth events say; found once for all messages of a sender on the same ones, with the same verdicts."""
        asked = event.type, event.sender, event.auth_event_ids, len(self.redacted)  # which only grows
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
        state = {state_key_of(other): other for other in here}
        if self._rules.version.room_id_is_create_hash and self._create is not None:
            state[CREATE] = self._create
        complete = len(here) == len(event.auth_event_ids) and (CREATE in state or event.type == "m.room.create")
        if complete:
            return self._rules.refusal(event, self._as_it_is(state))
        if event.outlier and is_third_party_invite(
            event
        ):  # nobody but they can tell, and its sender need not have signed it
            return "not all of them are here, and the event is a third party's invite"
        if (
            event.outlier and self.known is not None and event.membership != "invite"
        ):  # those come from rooms left long ago
            reason = self._rules.refusal(event, self._as_it_is(self.known))
            return f"not all of them are here, and by the current state {reason}" if reason is not None else None
        return None


class _Redacted:
    """A state of which some events are redacted."""

    def __init__(self, state: State, redacted: set[str], version: RoomVersion) -> None:
        self._state = state
        self._redacted = redacted
        self._version = version

    def get(self, key: StateKey, /) -> AuthEvent | None:
        found = self._state.get(key)
        if not isinstance(found, ParsedEvent) or found.event_id not in self._redacted:
            return found
        return replace(found, content=prune_content(found.type, found.content, self._version))
