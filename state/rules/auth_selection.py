"""The parts of an event that the auth rules read, and the state entries that authorise an event (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from state.groups.deltas import StateKey
from state.rules.room_versions import RoomVersion

CREATE: StateKey = ("m.room.create", "")
POWER_LEVELS: StateKey = ("m.room.power_levels", "")
JOIN_RULES: StateKey = ("m.room.join_rules", "")
AUTHORISING_USER = "join_authorised_via_users_server"
"""The key of a join's content that names the user who authorised it, in a room with restricted joins."""


class AuthEvent(Protocol):
    """An event as the auth rules read it.

    ``content`` may lack keys that no rule reads.

    ``membership`` is None if the content has none that is text.
    """

    @property
    def event_id(self) -> str: ...
    @property
    def room_id(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def state_key(self) -> str | None: ...
    @property
    def sender(self) -> str: ...
    @property
    def content(self) -> Mapping[str, Any]: ...
    @property
    def membership(self) -> str | None: ...
    @property
    def depth(self) -> int: ...
    @property
    def origin_server_ts(self) -> int: ...
    @property
    def prev_event_ids(self) -> tuple[str, ...]: ...
    @property
    def auth_event_ids(self) -> tuple[str, ...]: ...
    @property
    def redacts(self) -> str | None: ...
    @property
    def rejected_reason(self) -> str | None: ...


class State(Protocol):
    """A room's state, as far as the rules need it, such as a dictionary from key to event."""

    def get(self, key: StateKey, /) -> AuthEvent | None: ...


def state_key_of(event: AuthEvent) -> StateKey:
    return event.type, event.state_key or ""


def server_of(identifier: object) -> str:
    """Returns the server in an ID of a user, room or event. Empty if there is none."""
    return identifier.partition(":")[2] if isinstance(identifier, str) else ""


def auth_keys(event: AuthEvent, version: RoomVersion) -> list[StateKey]:
    """Returns the keys of the state entries that authorise an event; none for a create event.

    The state may have no entry at some of the keys. The key of the create event is always included, although events of
    room version 12 do not list it.
    """
    if event.type == "m.room.create":
        return []
    keys = dict.fromkeys((CREATE, POWER_LEVELS, ("m.room.member", event.sender)))
    if event.type == "m.room.member" and event.state_key is not None:
        keys |= dict.fromkeys(_membership_keys(event, event.state_key, version))
    return list(keys)


def _membership_keys(event: AuthEvent, target: str, version: RoomVersion) -> list[StateKey]:
    keys = [("m.room.member", target)]
    if event.membership in ("join", "invite", "knock"):
        keys.append(JOIN_RULES)
    if event.membership == "invite":
        invite = event.content.get("third_party_invite")
        signed = invite.get("signed") if isinstance(invite, dict) else None
        token = signed.get("token") if isinstance(signed, dict) else None
        if isinstance(token, str):
            keys.append(("m.room.third_party_invite", token))
    if event.membership == "join" and version.restricted_joins:
        authorising = event.content.get(AUTHORISING_USER)
        if isinstance(authorising, str):
            keys.append(("m.room.member", authorising))
    return keys
