"""Makes the forms of an event for clients and for servers from its stored bytes (pure).

Clients get the fields meant for them (type, content, sender …), the event ID and the room ID. Content is copied byte
for byte, including its numbers. ``events.format.redaction`` decides what a redaction leaves.

Any server on the way may have written into ``unsigned``. So clients get only two parts of ``unsigned``: the fields that
this server adds itself, and the room state that comes with an invite or a knock. A redacted invite or knock has no room
state.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from events.errors import NotCanonical
from events.format import canonical_json
from events.format.hashes import NOT_COVERED
from events.format.parsing import optional_identifier
from events.format.redaction import prune, pruned_fields
from events.format.strict_json import decode_stored
from state.rules.room_versions import room_version
from streams.core.own_stack import on_own_stack


class StoredForm(msgspec.Struct, frozen=True):
    """The stored bytes of an event, and the stored values that its form for clients needs.

    If ``pruned`` is true, clients get only what a redaction leaves. ``redacted_by`` is the ID of the redaction that
    applies, and ``because`` that redaction, if it is stored here.
    """

    event_id: str
    room_id: str
    version: str
    json: bytes
    redacts: str | None = None
    pruned: bool = False
    redacted_by: str | None = None
    because: StoredForm | None = None


class _Unsigned(msgspec.Struct):
    # the parts of ``unsigned`` that clients get
    replaces_state: Any = msgspec.UNSET
    invite_room_state: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    knock_room_state: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Stored(msgspec.Struct):
    # The parts that clients get. All others are skipped without decoding.
    content: msgspec.Raw
    origin_server_ts: msgspec.Raw
    sender: msgspec.Raw
    type: msgspec.Raw
    state_key: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    unsigned: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Uncovered(msgspec.Struct):
    # the parts that neither hashes nor signatures cover (``hashes.NOT_COVERED``)
    unsigned: dict[str, msgspec.Raw] = {}
    age_ts: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    outlier: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    destinations: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    @property
    def is_marked(self) -> bool:
        return any(part is not msgspec.UNSET for part in (self.age_ts, self.outlier, self.destinations))


class _ForClients(msgspec.Struct):
    # in the order in which it is written
    content: msgspec.Raw
    event_id: str
    origin_server_ts: msgspec.Raw
    room_id: str
    sender: msgspec.Raw
    type: msgspec.Raw
    unsigned: _Unsigned
    state_key: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Damaged(ValueError):
    """Raised for stored JSON that is no event."""


_INVITE, _KNOCK = "invite_room_state", "knock_room_state"
_CLIENT_KEYS = frozenset({"type", "sender", "content", "origin_server_ts", "state_key"})
_SENT_UNSIGNED = frozenset({"age", "age_ts", "replaces_state", _INVITE, _KNOCK})
_STORED = msgspec.json.Decoder(_Stored)
_UNCOVERED = msgspec.json.Decoder(_Uncovered)
_UNSIGNED = msgspec.json.Decoder(_Unsigned)
_ANY = msgspec.json.Decoder()
_ENCODE = msgspec.json.Encoder().encode
_NOTHING = _Unsigned()
_NOTHING_LEFT = b"{}"


def client_json(event: StoredForm) -> bytes | None:
    """Returns the event for clients: UTF-8 JSON, with redactions applied. None if the stored JSON is damaged."""
    try:
        return on_own_stack(_client_json, event)
    except (ValueError, RecursionError):  # the errors of msgspec are ValueErrors
        return None


def _client_json(event: StoredForm) -> bytes:
    if event.pruned or event.redacts is not None:
        try:
            return canonical_json.encode(_rewritten(event), strict=False)
        except NotCanonical:  # the redaction, which is nested in it, is nested too deep
            return canonical_json.encode(_rewritten(replace(event, because=None)), strict=False)
    stored = _STORED.decode(event.json)
    if memoryview(stored.content)[0] != ord("{"):
        raise _Damaged
    return _ENCODE(
        _ForClients(
            stored.content,
            event.event_id,
            stored.origin_server_ts,
            event.room_id,
            stored.sender,
            stored.type,
            _known_unsigned(stored),
            stored.state_key,
        )
    )


def covered_json(json: bytes) -> bytes:
    """Returns an event without what any server on the way may have written: what neither hash nor signature covers.

    Of ``unsigned`` only the keys that servers give each other are kept. An event without anything else is returned byte
    for byte. Others are written as canonical JSON, so hashes and signatures still verify.
    """
    try:
        found = on_own_stack(_UNCOVERED.decode, json)
        foreign = found.unsigned.keys() - _SENT_UNSIGNED
    except (ValueError, RecursionError):  # ``unsigned`` is no object, or the JSON is damaged
        foreign = {"unsigned"}
    event = decode_stored(json) if foreign or found.is_marked else None
    if event is None:
        return json
    unsigned = event.get("unsigned")
    covered = {key: value for key, value in event.items() if key not in NOT_COVERED}
    if isinstance(unsigned, dict):
        covered["unsigned"] = {key: value for key, value in unsigned.items() if key in _SENT_UNSIGNED}
    return canonical_json.encode(covered, strict=False)


def pruned_json(json: bytes, version: str) -> bytes:
    """Returns the redacted form in canonical JSON, on which signatures still verify. Damaged JSON gives ``{}``."""
    event = decode_stored(json)
    return (
        _NOTHING_LEFT
        if event is None
        else canonical_json.encode(pruned_fields(event, room_version(version)), strict=False)
    )


def _known_unsigned(stored: _Stored) -> _Unsigned:
    if stored.unsigned is msgspec.UNSET:
        return _NOTHING
    try:
        known = _UNSIGNED.decode(stored.unsigned)
    except msgspec.ValidationError:  # it may be anything: no signature covers it
        return _NOTHING
    if not _is_event_id(known.replaces_state):
        known.replaces_state = msgspec.UNSET
    if known.invite_room_state is not msgspec.UNSET or known.knock_room_state is not msgspec.UNSET:
        room_state = _room_state_key(_ANY.decode(stored.type), _ANY.decode(stored.content))
        if room_state != _INVITE:
            known.invite_room_state = msgspec.UNSET
        if room_state != _KNOCK:
            known.knock_room_state = msgspec.UNSET
    return known


def _is_event_id(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("$") and optional_identifier(value) is not None


def _room_state_key(event_type: Any, content: Any) -> str | None:
    membership = content.get("membership") if event_type == "m.room.member" and isinstance(content, dict) else None
    return {"invite": _INVITE, "knock": _KNOCK}.get(membership) if isinstance(membership, str) else None


def _rewritten(event: StoredForm) -> dict[str, Any]:
    # For pruned events and redactions only: of all others the bytes are copied, which is faster.
    version = room_version(event.version)
    stored = decode_stored(event.json)
    if stored is None:
        raise _Damaged
    if event.pruned:
        stored = prune(stored, version)
    unsigned = stored.get("unsigned")
    room_state = _room_state_key(stored.get("type"), stored.get("content"))
    found = {key: value for key, value in stored.items() if key in _CLIENT_KEYS}
    found |= {"event_id": event.event_id, "room_id": event.room_id}
    kept = unsigned if isinstance(unsigned, dict) else {}
    found["unsigned"] = {
        key: value
        for key, value in kept.items()
        if key == room_state or (key == "replaces_state" and _is_event_id(value))
    }
    if event.redacted_by is not None:
        found["unsigned"]["redacted_by"] = event.redacted_by
    if event.because is not None:
        with suppress(_Damaged):
            found["unsigned"]["redacted_because"] = _rewritten(event.because)
    if event.redacts is not None and not (event.pruned and not version.newer_redactions):
        found["redacts"] = event.redacts
        found["content"] = {**found["content"], "redacts": event.redacts}
    return found
