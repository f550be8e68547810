"""Composes a local event from the sender's input and the event's place in the room (pure).

``compose`` fills in references, depth, auth events, hashes and signature. The auth events are chosen from the state
before the event, by the same rule that receivers apply to check them (``state.rules.auth_selection``). An event that
the auth rules refuse is not made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from events.errors import EventNotAllowed, EventRefused, NotCanonical, Reason
from events.format.canonical_json import LARGEST_INTEGER
from events.format.parsing import ParsedEvent, ruled_content
from events.format.signatures import SigningKey, signed_by
from events.sending.finish import finish_event
from state.rules.auth_rules import AuthRules
from state.rules.auth_selection import AUTHORISING_USER, CREATE, State, auth_keys, server_of
from state.rules.membership import needs_voucher
from state.rules.room_versions import RoomVersion

MOST_PREV_EVENTS = 10
"""The most forward extremities that a new event names as prev events."""
_LARGEST_DEPTH = 2**63 - 1


@dataclass(frozen=True, slots=True)
class NewEvent:
    """The sender's input for an event.

    Everything else is filled in.

    Without ``state_key``, the event is no state event. Without ``origin_server_ts``, the current time is used.
    ``extra`` has additional keys of the top level, such as ``redacts`` before room version 11.
    """

    sender: str
    type: str
    content: Mapping[str, Any]
    state_key: str | None = None
    origin_server_ts: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def _no_hash(event_id: str) -> str:
    raise AssertionError(f"the reference hash is not given of {event_id}")


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a new event in the graph: its prev events, and the state after them.

    ``opaque`` is a fresh random word for event IDs of room versions 1 and 2. ``reference_hash`` returns the hashes of
    prev and auth events, which only these versions include.
    """

    room_id: str
    version: RoomVersion
    state: State
    prev: Sequence[ParsedEvent]
    now_ms: int
    opaque: str = ""
    reference_hash: Callable[[str], str] = _no_hash


def compose(new: NewEvent, place: Place, key: SigningKey | None = None) -> ParsedEvent:
    """Composes an event, applies the auth rules, and returns the event.

    Raises ``EventRefused`` for invalid input, and ``EventNotAllowed`` if the rules forbid the event.
    """
    _check(new, key)
    new = _without_needless_voucher(new, place, key)
    parts = _parts(new, place)
    keys = auth_keys(_draft(new, place), place.version)
    if place.version.room_id_is_create_hash:
        keys = [key for key in keys if key != CREATE]
    auth_events = [found.event_id for key in keys if (found := place.state.get(key)) is not None]
    parts["auth_events"] = _references(auth_events, place)
    try:
        event = finish_event(parts, place.version.name, key)
    except NotCanonical as error:
        raise EventRefused(error.reason, str(error)) from error
    if reason := AuthRules(place.version, signed_by).refusal(event, place.state):
        raise EventNotAllowed(event.type, event.sender, place.room_id, reason)
    return event


def _check(new: NewEvent, key: SigningKey | None) -> None:
    if not isinstance(new.content, Mapping):
        raise EventRefused(Reason.WRONG_TYPE, f"content is {new.content!r:.100} and should be an object")
    server = server_of(new.sender)
    if not server:
        raise EventRefused(Reason.BAD_IDENTIFIER, f"sender is {new.sender!r} and should look like '@user:server'")
    if key is not None and key.server != server:
        raise EventRefused(
            Reason.BAD_IDENTIFIER, f"the key is that of {key.server}, which cannot sign for {new.sender}"
        )


def _without_needless_voucher(new: NewEvent, place: Place, key: SigningKey | None) -> NewEvent:
    # A *voucher* is the user who authorised a restricted join. Other servers demand the signature of the voucher's
    # server on every membership that names one, also on a change of the display name, or a leave, for which a client
    # copied the whole membership. They would refuse the event, and all events on top of it.
    voucher = new.content.get(AUTHORISING_USER)
    if AUTHORISING_USER not in new.content or not place.version.restricted_joins or new.type != "m.room.member":
        return new
    is_join = new.content.get("membership") == "join"
    if not (is_join and needs_voucher(place.state, new.state_key or "", place.version)):
        return replace(new, content={name: value for name, value in new.content.items() if name != AUTHORISING_USER})
    server = server_of(voucher)
    if key is not None and key.server != server:
        raise EventRefused(
            Reason.BAD_SIGNATURE,
            f"{voucher!r:.300} vouches for the join, so {server!r:.300} has to sign it, and the key is that of {key.server}: "
            "send the join through that server (make_join, send_join)",
        )
    return new


def _parts(new: NewEvent, place: Place) -> dict[str, Any]:
    depth_limit = LARGEST_INTEGER if place.version.strict_json else _LARGEST_DEPTH
    parts: dict[str, Any] = {
        **new.extra,
        "type": new.type,
        "sender": new.sender,
        "content": dict(new.content),
        "origin_server_ts": place.now_ms if new.origin_server_ts is None else new.origin_server_ts,
        "depth": min(depth_limit, 1 + max((event.depth for event in place.prev), default=0)),
        "prev_events": _references([event.event_id for event in place.prev], place),
    }
    if new.state_key is not None:
        parts["state_key"] = new.state_key
    if not (place.version.room_id_is_create_hash and new.type == "m.room.create"):
        parts["room_id"] = place.room_id
    if not place.version.ids_are_hashes:
        parts["event_id"] = f"${place.opaque}:{new.sender.partition(':')[2]}"
    return parts


def _references(event_ids: Sequence[str], place: Place) -> list[Any]:
    if place.version.ids_are_hashes:
        return list(event_ids)
    return [[event_id, {"sha256": place.reference_hash(event_id)}] for event_id in event_ids]


def _draft(new: NewEvent, place: Place) -> ParsedEvent:
    # only the fields by which its auth events are chosen
    membership = new.content.get("membership") if new.type == "m.room.member" else None
    return ParsedEvent(
        event_id="",
        room_id=place.room_id,
        room_version=place.version.name,
        type=new.type,
        state_key=new.state_key,
        sender=new.sender,
        depth=0,
        origin_server_ts=0,
        prev_event_ids=(),
        auth_event_ids=(),
        membership=membership if isinstance(membership, str) else None,
        redacts=None,
        relates_to=None,
        content_hash_matches=True,
        json=b"",
        content=ruled_content(new.type, new.content),
    )
