"""The redaction rules: which fields an event keeps when it is redacted (pure).

Reference hashes and signatures are computed over the redacted form, so this form must be exact for every room version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from state.rules.auth_selection import server_of
from state.rules.power_levels import PowerLevels
from state.rules.room_versions import RoomVersion

REDACTION = "m.room.redaction"
"""An event of this type that names no target, for instance because it was redacted itself, is not given to clients."""
_KEPT_TOP_LEVEL = frozenset(
    {"event_id", "type", "room_id", "sender", "state_key", "content", "hashes", "signatures", "depth"}
    | {"prev_events", "auth_events", "origin_server_ts"}
)
_KEPT_TOP_LEVEL_BEFORE_VERSION_11 = _KEPT_TOP_LEVEL | {"origin", "prev_state", "membership"}
_KEPT_UNSIGNED = ("age_ts", "replaces_state")
_POWER_LEVELS = ("users", "users_default", "events", "events_default", "state_default", "ban", "kick", "redact")


def prune(event: Mapping[str, Any], version: RoomVersion) -> dict[str, Any]:
    """Returns the redacted form of a federation event. Of ``unsigned`` only what this server adds itself is kept."""
    pruned = pruned_fields(event, version)
    unsigned = event.get("unsigned")
    if isinstance(unsigned, dict):
        pruned["unsigned"] = {key: unsigned[key] for key in _KEPT_UNSIGNED if key in unsigned}
    return pruned


def pruned_fields(event: Mapping[str, Any], version: RoomVersion) -> dict[str, Any]:
    """Returns the redacted form without ``unsigned``, over which hashes and signatures are computed."""
    kept = _KEPT_TOP_LEVEL if version.newer_redactions else _KEPT_TOP_LEVEL_BEFORE_VERSION_11
    pruned = dict(event)
    for key in pruned.keys() - kept:
        del pruned[key]
    pruned["content"] = prune_content(event.get("type"), event.get("content"), version)
    return pruned


def prune_content(event_type: Any, content: Any, version: RoomVersion) -> dict[str, Any]:
    if event_type == "m.room.message" or not isinstance(content, dict):
        return {}
    if event_type == "m.room.create" and version.newer_redactions:
        return content
    pruned = {key: content[key] for key in _kept_content_keys(event_type, version) if key in content}
    if event_type == "m.room.member" and version.newer_redactions:
        invite = content.get("third_party_invite")
        if isinstance(invite, dict):
            pruned["third_party_invite"] = {"signed": invite["signed"]} if "signed" in invite else {}
    return pruned


def _kept_content_keys(event_type: Any, version: RoomVersion) -> tuple[str, ...]:  # noqa: PLR0911 - a table
    match event_type:
        case "m.room.member" if version.redaction_keeps_authorising_user:
            return ("membership", "join_authorised_via_users_server")
        case "m.room.member":
            return ("membership",)
        case "m.room.create":
            return ("creator",)
        case "m.room.join_rules":
            return ("join_rule", "allow") if version.restricted_joins else ("join_rule",)
        case "m.room.power_levels":
            return (*_POWER_LEVELS, "invite") if version.newer_redactions else _POWER_LEVELS
        case "m.room.history_visibility":
            return ("history_visibility",)
        case "m.room.aliases" if version.aliases_are_special:
            return ("aliases",)
        case "m.room.redaction" if version.newer_redactions:
            return ("redacts",)
    return ()


class _Party(Protocol):
    @property
    def event_id(self) -> str: ...
    @property
    def room_id(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def sender(self) -> str: ...


def may_redact(redaction: _Party, target: _Party, version: RoomVersion, levels: PowerLevels | None) -> bool:
    """Returns true if an accepted redaction that names the event ``target`` takes effect.

    ``levels`` are the power levels before the redaction. If None, only the rules that need no state are applied.
    """
    if target.type == "m.room.create" or target.room_id != redaction.room_id:
        return False
    if version.ids_are_hashes:
        same_server = server_of(redaction.sender) == server_of(target.sender)
    else:
        same_server = server_of(redaction.event_id) == server_of(target.event_id)
    return same_server or (levels is not None and levels.of_user(redaction.sender) >= levels.to_redact())
