"""The auth rules of m.room.member: which users may change a membership (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from state.rules.auth_selection import AUTHORISING_USER, JOIN_RULES, AuthEvent, State
from state.rules.power_levels import PowerLevels, shown_level, too_low
from state.rules.room_versions import RoomVersion

SignedBy = Callable[[Mapping[str, Any], Sequence[str]], bool]
"""Returns true if a signed object has a valid signature of one of these ed25519 public keys (base64)."""


@dataclass(frozen=True, slots=True)
class MemberChange:
    """An m.room.member event of ``sender`` about ``target``, with the state that authorises it."""

    event: AuthEvent
    target: str
    state: State
    levels: PowerLevels
    create: AuthEvent

    @property
    def sender(self) -> str:
        return self.event.sender

    @property
    def is_self(self) -> bool:
        return self.sender == self.target

    def membership(self, user_id: str) -> str | None:
        found = self.state.get(("m.room.member", user_id))
        return None if found is None else found.membership

    @property
    def join_rule(self) -> str:
        return _join_rule(self.state)


def needs_voucher(state: State, user_id: str, version: RoomVersion) -> bool:
    """Returns true if the user can join only with a member who authorises the join."""
    found = state.get(("m.room.member", user_id))
    is_in = found is not None and found.membership in ("join", "invite")
    return not is_in and _is_restricted(_join_rule(state), version)


def _join_rule(state: State) -> str:
    found = state.get(JOIN_RULES)
    rule = None if found is None else found.content.get("join_rule", "invite")
    return rule if isinstance(rule, str) else "invite"


def _is_restricted(rule: str, version: RoomVersion) -> bool:
    return (rule == "restricted" and version.restricted_joins) or (
        rule == "knock_restricted" and version.knock_restricted_joins
    )


def membership_refusal(change: MemberChange, signed_by: SignedBy) -> str | None:
    match change.event.membership:
        case "join":
            return None if _is_creators_first_join(change) else _join(change)
        case "invite" if "third_party_invite" in change.event.content:
            return _third_party_invite(change, signed_by)
        case "invite":
            return _invite(change)
        case "leave":
            return _leave(change)
        case "ban":
            return _ban(change)
        case "knock" if change.levels.version.knocking:
            return _knock(change)
    return f"there is no membership {change.event.membership!r} in this room version"


def _is_creators_first_join(change: MemberChange) -> bool:
    # Whether the *sender* is the creator is not checked: the specification does not ask, and all servers must decide
    # alike.
    creator = change.create.sender
    if not change.levels.version.newer_redactions:
        creator = change.create.content.get("creator", "")
    return change.event.prev_event_ids == (change.create.event_id,) and change.target == creator


def _join(change: MemberChange) -> str | None:
    before = change.membership(change.target)
    if not change.is_self:
        return "a join is sent by the user who joins"
    if before == "ban":
        return f"{change.target} is banned"
    rule, version = change.join_rule, change.levels.version
    restricted = _is_restricted(rule, version)
    if rule == "public":
        return None
    if rule == "invite" or (rule == "knock" and version.knocking) or restricted:
        if before in ("join", "invite"):
            return None
        return _authorised_join(change) if restricted else f"{change.target} is not invited"
    return f"the join rule {rule!r} allows no joins"


def _authorised_join(change: MemberChange) -> str | None:
    user = change.event.content.get(AUTHORISING_USER)
    if not isinstance(user, str):
        return f"{change.target} is not invited, and no member vouches for the join"
    if change.membership(user) != "join":
        return f"{user}, who should vouch for the join, is not joined"
    if change.levels.of_user(user) < change.levels.to("invite"):
        return f"{user}, who should vouch for the join, may not invite"
    return None


def _invite(change: MemberChange) -> str | None:
    before = change.membership(change.target)
    if change.membership(change.sender) != "join":
        return f"{change.sender} is not joined"
    if before in ("join", "ban"):
        return f"{change.target} cannot be invited: the membership is {before}"
    return _lacks(change, "invite")


def _third_party_invite(change: MemberChange, signed_by: SignedBy) -> str | None:
    if change.membership(change.target) == "ban":
        return f"{change.target} is banned"
    invite = change.event.content["third_party_invite"]
    signed = invite.get("signed") if isinstance(invite, dict) else None
    if not isinstance(signed, dict):
        return "third_party_invite.signed is not an object"
    token, mxid = signed.get("token"), signed.get("mxid")
    if not isinstance(token, str) or not isinstance(mxid, str):
        return "third_party_invite.signed lacks mxid or token"
    if mxid != change.target:
        return f"third_party_invite.signed is about {mxid}"
    ground = change.state.get(("m.room.third_party_invite", token))
    if ground is None:
        return "there is no third party invite with this token"
    if ground.sender != change.sender:
        return f"the third party invite was sent by {ground.sender}"
    if not signed_by(signed, _public_keys(ground.content)):
        return "third_party_invite.signed bears no valid signature of a key of the third party invite"
    return None


def _public_keys(content: Mapping[str, Any]) -> list[str]:
    listed = content.get("public_keys")
    found = [content.get("public_key")]
    found += [
        entry.get("public_key") for entry in (listed if isinstance(listed, list) else []) if isinstance(entry, dict)
    ]
    return [key for key in found if isinstance(key, str)]


def _leave(change: MemberChange) -> str | None:
    before, target = change.membership(change.sender), change.membership(change.target)
    if change.is_self and (before in ("join", "invite") or (before == "knock" and change.levels.version.knocking)):
        return None
    if before != "join":
        return f"{change.sender} is not joined"
    if target == "ban" and (refusal := _lacks(change, "ban")):
        return refusal
    return _lacks(change, "kick") or _does_not_outrank(change)


def _ban(change: MemberChange) -> str | None:
    if change.membership(change.sender) != "join":
        return f"{change.sender} is not joined"
    return _lacks(change, "ban") or _does_not_outrank(change)


def _knock(change: MemberChange) -> str | None:
    before = change.membership(change.target)
    version = change.levels.version
    if change.join_rule != "knock" and not (change.join_rule == "knock_restricted" and version.knock_restricted_joins):
        return f"the join rule {change.join_rule!r} does not let knock"
    if not change.is_self:
        return "a knock is sent by the user who knocks"
    if before in ("join", "invite", "ban"):
        return f"{change.target} cannot knock: the membership is {before}"
    return None


def _lacks(change: MemberChange, act: str) -> str | None:
    has, required = change.levels.of_user(change.sender), change.levels.to(act)
    return too_low(change.sender, has, act, required) if has < required else None


def _does_not_outrank(change: MemberChange) -> str | None:
    has, other = change.levels.of_user(change.sender), change.levels.of_user(change.target)
    if has > other:
        return None
    return f"the level of {change.sender}, {shown_level(has)}, is not above that of {change.target}"
