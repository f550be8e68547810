"""The auth rules of room versions 1 to 12: whether a state allows an event (pure).

Each rule of the Matrix specification is one function, in the order of the specification. Where servers in use differ
from the specification, the rules follow these servers, because all servers of a room must decide alike. For example,
without a power levels event, a user needs level 50 to send state. A rule returns the reason of a refusal, or None if
the event is allowed. Signatures of servers, hashes and sizes are checked elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from state.rules.auth_selection import CREATE, POWER_LEVELS, AuthEvent, State, auth_keys, server_of
from state.rules.membership import MemberChange, SignedBy, membership_refusal
from state.rules.power_level_changes import level_change_refusal
from state.rules.power_levels import PowerLevels, creators_of, too_low
from state.rules.room_versions import ROOM_VERSIONS, RoomVersion


def _no_signature(_signed: Mapping[str, Any], _keys: Sequence[str]) -> bool:
    return False


_MORE_THAN_LEVELS = ("m.room.power_levels", "m.room.redaction")
"""Types for which the decision also depends on other parts of the event than its sender and type."""
_MOST_SENDERS = 10_000
_UNKNOWN = "not asked yet"


class AuthRules:
    """The rules of one room version. Without ``signed_by``, all third-party invites are refused."""

    def __init__(self, version: RoomVersion, signed_by: SignedBy = _no_signature) -> None:
        self.version = version
        self._signed_by = signed_by
        self._last_levels: tuple[AuthEvent | None, AuthEvent | None, PowerLevels] | None = None
        self._by_sender: dict[tuple[str, str], str | None] = {}
        """(sender, type) -> refusal, or None. For events that are not state, under the power levels used last."""

    def refusal(self, event: AuthEvent, state: State) -> str | None:
        """Returns the reason why a state does not allow an event, or None.

        Of the state, only the entries at the event's ``auth_keys`` are needed. These include the create event, although
        an event of room version 12 does not list it.
        """
        kind = event.type
        if kind == "m.room.create":
            return self._create(event)
        create = state.get(CREATE)
        if create is None:
            return "there is no create event"
        if reason := self._other_room(event, create) or self._not_federated(event, create):
            return reason
        if kind == "m.room.aliases" and self.version.aliases_are_special:
            return self._aliases(event)
        levels = self.levels(state, create)
        if kind == "m.room.member":
            if event.state_key is None:
                return "a membership is a state event"
            return membership_refusal(MemberChange(event, event.state_key, state, levels, create), self._signed_by)
        sender = event.sender
        member = state.get(("m.room.member", sender))
        if member is None or member.membership != "join":
            return f"{sender} is not joined"
        if event.state_key is not None or kind in _MORE_THAN_LEVELS:
            return self._by_level(event, levels)
        return self._by_sender_level(event, levels)

    def levels(self, state: State, create: AuthEvent | None) -> PowerLevels:
        found = state.get(POWER_LEVELS)
        last = self._last_levels
        if last is not None and last[0] is found and last[1] is create:
            return last[2]
        creators = creators_of(create.sender, create.content, self.version) if create is not None else ()
        levels = PowerLevels(self.version, None if found is None else found.content, creators)
        self._last_levels = found, create, levels
        self._by_sender.clear()
        return levels

    def _by_sender_level(self, event: AuthEvent, levels: PowerLevels) -> str | None:
        # Of events that are no state, the answer depends on sender and type alone, as long as the levels are the same.
        key = event.sender, event.type
        known = self._by_sender.get(key, _UNKNOWN)
        if known is _UNKNOWN:
            if len(self._by_sender) >= _MOST_SENDERS:
                self._by_sender.clear()
            known = self._by_sender[key] = self._by_level(event, levels)
        return known

    def auth_events_refusal(self, event: AuthEvent, auth_events: Sequence[AuthEvent]) -> str | None:
        """Returns the reason why an event may not list these auth events (those that the caller knows), or None.

        Whether they allow the event is not checked.
        """
        if event.type == "m.room.create":
            return "a create event has no auth events" if event.auth_event_ids else None
        wanted = set(auth_keys(event, self.version))
        seen = set()
        for other in auth_events:
            key = other.type, other.state_key or ""
            if other.state_key is None or key not in wanted or (key == CREATE and self.version.room_id_is_create_hash):
                return f"auth event {other.event_id} has no say about it"
            if key in seen:
                return f"two auth events for {key}"
            if other.rejected_reason is not None:
                return f"auth event {other.event_id} was rejected"
            if other.room_id != event.room_id:
                return f"auth event {other.event_id} is of another room"
            seen.add(key)
        complete = len(auth_events) == len(event.auth_event_ids)
        if complete and CREATE not in seen and not self.version.room_id_is_create_hash:
            return "the create event is not among its auth events"
        return None

    # --- one rule each ------------------------------------------------------------------------------------------
    def _create(self, event: AuthEvent) -> str | None:
        if event.prev_event_ids:
            return "a create event has no prev events"
        if not self.version.room_id_is_create_hash and server_of(event.room_id) != server_of(event.sender):
            return "room ID and sender are of different servers"
        named = event.content.get("room_version", "1")
        if not isinstance(named, str) or named not in ROOM_VERSIONS:
            return f"there are no rules for room version {named!r}"
        if not self.version.newer_redactions and "creator" not in event.content:
            return "creator is missing"
        if self.version.room_id_is_create_hash and "additional_creators" in event.content:
            return _unusable_creators(event.content["additional_creators"])
        return None

    def _other_room(self, event: AuthEvent, create: AuthEvent) -> str | None:
        if self.version.room_id_is_create_hash and event.room_id[1:] != create.event_id[1:]:
            return "the room ID is not that of the create event"
        return None

    def _not_federated(self, event: AuthEvent, create: AuthEvent) -> str | None:
        # of the sender, and of the user whose membership changes
        if create.content.get("m.federate", True) is not False:
            return None
        home = server_of(create.sender)
        users = [event.sender]
        if event.type == "m.room.member" and event.state_key is not None:
            users.append(event.state_key)
        strange = [user for user in users if server_of(user) != home]
        return f"the room is not federated, and {strange[0]} is of another server" if strange else None

    def _aliases(self, event: AuthEvent) -> str | None:
        if not event.state_key:
            return "aliases have a server as their state key"
        return None if event.state_key == server_of(event.sender) else "the aliases are those of another server"

    def _by_level(self, event: AuthEvent, levels: PowerLevels) -> str | None:
        has = levels.of_user(event.sender)
        if event.type == "m.room.third_party_invite":
            required = levels.to("invite")
            return too_low(event.sender, has, "invite", required) if has < required else None
        required = levels.to_send(event.type, is_state=event.state_key is not None)
        if has < required:
            return too_low(event.sender, has, f"send {event.type}", required)
        if event.state_key is not None and event.state_key.startswith("@") and event.state_key != event.sender:
            return "the state key is another user"
        if event.type == "m.room.power_levels":
            return level_change_refusal(event.sender, event.content, levels)
        if event.type == "m.room.redaction" and not self.version.ids_are_hashes:
            return self._redaction(event, levels)
        return None

    def _redaction(self, event: AuthEvent, levels: PowerLevels) -> str | None:
        # For room versions 1 and 2. Later ones check the right when the redaction takes effect.
        if levels.of_user(event.sender) >= levels.to_redact():
            return None
        same = event.redacts is not None and server_of(event.redacts) == server_of(event.event_id)
        return None if same else f"{event.sender} may not redact events of other servers"


def _unusable_creators(value: Any) -> str | None:
    if not isinstance(value, list):
        return "additional_creators is not a list"
    for user in value:
        if not isinstance(user, str) or not user.startswith("@") or ":" not in user or len(user.encode()) > 255:
            return "additional_creators holds what is no user ID"
    return None
