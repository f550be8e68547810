"""One line of an import -> a parsed event, or the reason why not (pure).

A line is a bare federation event, or a wrapper ``{"json": {event}, "room_version": …}`` whose ``event_id``,
``outlier``, ``rejected_reason``, ``soft_failed`` and ``stream_ordering`` are honoured and whose other keys are
ignored. The stored bytes of an event are its exact substring of the line. Every line is judged by itself, in time
linear in its length.

An event whose content does not fit its hash was redacted or tampered with on the way: no signature covers what it says. It is
redacted here, before anything looks at it, so what is stored and told of it is what a redaction leaves. One that was redacted
before it came has no more than that, and keeps its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from events.errors import EventRefused, NotCanonical, Reason
from events.format import hashes
from events.format.canonical_json import encode_examined, examine
from events.format.field_checks import (
    boolean,
    identifier,
    integer,
    optional_identifier,
    references,
    required,
    shown,
    storable,
)
from events.format.own_stack import on_own_stack
from events.format.redaction import pruned_fields
from events.format.strict_json import decode_event, decode_plain, decode_stored
from state.errors import UnknownRoomVersion
from state.rules.room_versions import RoomVersion, room_version

__all__ = [
    "ANNOUNCING",
    "LARGEST_STREAM_ORDERING",
    "LINE_LIMIT_BYTES",
    "SIZE_LIMIT_BYTES",
    "ParsedEvent",
    "Verdict",
    "announced_version",
    "parse_event",
    "parse_line",
    "parse_row",
    "parse_stored",
    "ruled_content",
]

LINE_LIMIT_BYTES = 1024 * 1024
"""Longest line that is looked at: sixteen times the size limit, room for white space and escapes."""
SIZE_LIMIT_BYTES = 65_536
"""Largest event in canonical form, what this server added itself (``unsigned``) not counted."""
LARGEST_STREAM_ORDERING = 2**63 - 1
ANNOUNCING = b"m.room.create"
"""What stands in every line that ``announced_version`` learns from."""


class ParsedEvent(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Everything that storage and the room's graph need to know of one event, checked.

    ``prev_event_ids`` and ``auth_event_ids`` are in the event's order without repetitions. ``content`` is kept only
    where rules look at it later (``events.format.parsing.ruled_content``), else it is empty. ``json`` is what is stored: the
    bytes that came, or the redacted form where ``content_hash_matches`` is false. It may be emptied for ``room_history``, which
    does not read it. ``rejection_given`` and ``soft_failure_given`` say that it was told whether the event was rejected or
    soft-failed, so that the rules are not asked.
    """

    event_id: str
    room_id: str
    room_version: str
    type: str
    state_key: str | None
    sender: str
    depth: int
    origin_server_ts: int
    prev_event_ids: tuple[str, ...]
    auth_event_ids: tuple[str, ...]
    membership: str | None
    redacts: str | None
    relates_to: str | None
    content_hash_matches: bool
    json: bytes
    content: Mapping[str, Any]
    outlier: bool = False
    rejected_reason: str | None = None
    soft_failed: bool = False
    stream_ordering: int | None = None
    rejection_given: bool = False
    soft_failure_given: bool = False

    @property
    def is_state(self) -> bool:
        """True for a state event, also when its state key is empty."""
        return self.state_key is not None

    @property
    def backfilled(self) -> bool:
        """True when the wrapper gave it a negative stream ordering."""
        return self.stream_ordering is not None and self.stream_ordering < 0


_RULED_TYPES = frozenset(
    {"m.room.create", "m.room.history_visibility", "m.room.power_levels"}
    | {"m.room.join_rules", "m.room.third_party_invite"}
)
_RULED_MEMBER_KEYS = ("third_party_invite", "join_authorised_via_users_server")


def ruled_content(event_type: str, content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of an event's content that decides about this or other events: who may do what, who may see."""
    if event_type in _RULED_TYPES:
        return content
    if event_type == "m.room.member":  # the membership has a field of its own
        return {key: content[key] for key in _RULED_MEMBER_KEYS if key in content}
    return {}


class Verdict(NamedTuple):
    """What became of an event: the last fields of ``ParsedEvent``."""

    outlier: bool
    rejected_reason: str | None
    soft_failed: bool
    stream_ordering: int | None
    rejection_given: bool
    soft_failure_given: bool


def parse_stored(
    json: bytes, version: RoomVersion, event_id: str, verdict: Verdict, kept: dict[Any, Any]
) -> ParsedEvent:
    """A stored event with what became of it. Raises ``EventRefused`` and ``ValueError``.

    ``json`` of the outcome is empty, unless other bytes should be stored: the redacted form, where the content does not fit its
    hash. An ID that is the hash of the event, and a content hash that fits, prove that its fields are those that were examined
    when it was stored, so they are taken as they are. What the hashes do not cover is looked at, and so is everything where they
    prove nothing. ``kept`` is what equal values of the room's events are shared in.
    """
    if version.ids_are_hashes:
        try:
            return _proven(json, decode_stored(json), version, event_id, verdict, kept.setdefault)
        except (EventRefused, ValueError, TypeError, AttributeError, KeyError, RecursionError):
            pass  # the slow way has the reason
    parsed = parse_event(json, decode_event(json), version.name, event_id)
    return replace(parsed, json=b"" if parsed.json == json else parsed.json, **verdict._asdict())


def _proven(
    json: bytes,
    event: dict[str, Any],
    version: RoomVersion,
    given_id: str,
    verdict: Verdict,
    one: Callable[[Any, Any], Any],
) -> ParsedEvent:
    _, room_id = _ids(event, version, True, given_id)
    if not hashes.content_hash_matches(event, version) and _redacted(json, event, version)[0] != json:
        raise ValueError("another form of it is to be stored")
    event_type, state_key, content = event["type"], event.get("state_key"), required(event, "content", dict)
    sender, auth = event["sender"], tuple(dict.fromkeys(event["auth_events"]))
    relation = content.get("m.relates_to")
    return ParsedEvent(
        one(given_id, given_id),
        one(room_id, room_id),
        version.name,
        one(event_type, event_type),
        state_key,
        one(sender, sender),
        event["depth"],
        event["origin_server_ts"],
        tuple([one(prev, prev) for prev in dict.fromkeys(event["prev_events"])]),
        one(auth, auth),
        optional_identifier(content.get("membership"))
        if event_type == "m.room.member" and state_key is not None
        else None,
        _redacts(event, content, version),
        optional_identifier(relation.get("event_id")) if isinstance(relation, dict) else None,
        True,
        b"",
        ruled_content(event_type, content),
        *verdict,
    )


class _Line(msgspec.Struct):
    """The wrapper's keys; every type is checked by us, so that the reason is ours."""

    json: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    content: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    room_version: Any = None
    event_id: Any = None
    outlier: Any = None
    rejected_reason: Any = msgspec.UNSET
    soft_failed: Any = msgspec.UNSET
    stream_ordering: Any = None


_LINE = msgspec.json.Decoder(_Line)
_NOTHING_TOLD = _Line()


def parse_line(line: bytes, versions: Mapping[str, str] | None = None) -> ParsedEvent:
    """The event of one line; raises ``EventRefused``.

    ``versions`` tells the room version of bare events by room ID: ask ``announced_version`` of all lines first. A
    bare create event needs none, nor does a bare event of a room whose ID names no server (version 12).
    """
    text = line.strip(b" \t\r\n")
    if len(text) > LINE_LIMIT_BYTES:
        raise EventRefused(Reason.LINE_TOO_LONG, f"{len(text)} bytes; at most {LINE_LIMIT_BYTES} are looked at")
    wrapper = _split(text)
    if wrapper is None:
        plain = decode_plain(text)
        event = decode_event(text) if plain is None else plain
        return parse_event(text, event, _bare_version(event, versions or {}), plain=plain is not None)
    raw = bytes(wrapper.json) if isinstance(wrapper.json, msgspec.Raw) else b""
    return _parse_wrapped(raw, wrapper, versions or {})


def parse_row(json: bytes, told: Mapping[str, Any], versions: Mapping[str, str] | None = None) -> ParsedEvent:
    """The same of an event whose wrapper comes in parts: its bytes, and what columns beside them tell.

    ``told`` may have the keys of a wrapper but for ``json``; what it leaves out was not said. Raises ``EventRefused``.
    """
    if len(json) > LINE_LIMIT_BYTES:
        raise EventRefused(Reason.LINE_TOO_LONG, f"{len(json)} bytes; at most {LINE_LIMIT_BYTES} are looked at")
    return _parse_wrapped(json.strip(b" \t\r\n"), _Line(**told), versions or {})


def announced_version(line: bytes, told: Mapping[str, Any] | None = None) -> tuple[str, str] | None:
    """(room ID, room version) of a create event; null for every other line (with ``told``, row).

    Cheap for lines that cannot be one. Never raises: what is wrong with a line is found by ``parse_line``.
    """
    if ANNOUNCING not in line or len(line) > LINE_LIMIT_BYTES:
        return None
    try:
        parsed = parse_line(line) if told is None else parse_row(line, told)
    except EventRefused:
        return None
    return (parsed.room_id, parsed.room_version) if parsed.type == "m.room.create" else None


def parse_event(
    json: bytes, event: Mapping[str, Any], version_name: Any, given_id: Any = None, *, plain: bool = False
) -> ParsedEvent:
    """Check one event: its bytes, the same decoded, its room version, and the ID that it is said to have.

    ``plain``: the bytes are known to be (``events.format.strict_json.decode_plain``), so that numbers and depth need no look.
    """
    told = _NOTHING_TOLD if given_id is None else _Line(event_id=given_id)
    return _checked(json, event, version_name, plain, told)


def _checked(json: bytes, event: Mapping[str, Any], version_name: Any, plain: bool, wrapper: _Line) -> ParsedEvent:
    """``version_name`` is what holds, whatever the wrapper tells."""
    version = _version(version_name)
    plain = (plain and len(json) <= SIZE_LIMIT_BYTES) or _examined(json, event, version)
    content = required(event, "content", dict)
    fits = hashes.content_hash_matches(event, version, plain=plain)
    if not fits:
        json, event = _redacted(json, event, version, plain=plain)
        content = event["content"]
    event_type = identifier(event, "type")
    event_id, room_id = _ids(event, version, plain, wrapper.event_id)
    state_key = storable(event["state_key"], "state_key") if "state_key" in event else None
    membership = content.get("membership") if event_type == "m.room.member" and state_key is not None else None
    relation = content.get("m.relates_to")
    return ParsedEvent(
        event_id,
        room_id,
        version.name,
        event_type,
        state_key,
        identifier(event, "sender", "@"),
        integer(event, "depth", 0),
        integer(event, "origin_server_ts", -(2**63)),
        references(event, "prev_events", version, event_id),
        references(event, "auth_events", version, event_id),
        optional_identifier(membership),
        _redacts(event, content, version),
        optional_identifier(relation.get("event_id")) if isinstance(relation, dict) else None,
        fits,
        json,
        ruled_content(event_type, content),
        *_verdict(wrapper),
    )


def _redacted(
    json: bytes, event: Mapping[str, Any], version: RoomVersion, *, plain: bool | None = None
) -> tuple[bytes, Mapping[str, Any]]:
    """What is kept of an event whose content does not fit its hash: the same where a redaction takes nothing away."""
    pruned = pruned_fields(event, version)
    if len(pruned) == len(event) - ("unsigned" in event) and pruned["content"] == event["content"]:
        return json, event
    if plain is None:
        plain = examine(pruned, strict=version.strict_json)
    return encode_examined(pruned, plain=plain), pruned


def _parse_wrapped(raw: bytes, wrapper: _Line, versions: Mapping[str, str]) -> ParsedEvent:
    plain = decode_plain(raw)
    event = decode_event(raw) if plain is None else plain
    name = wrapper.room_version
    version = name if name is not None else _bare_version(event, versions)
    return _checked(raw, event, version, plain is not None, wrapper)


def _split(text: bytes) -> _Line | None:
    """The wrapper, or null for a bare event."""
    if not text.startswith(b"{"):
        decode_event(text)  # raises with the reason
    try:
        line = on_own_stack(_LINE.decode, text)
    except (ValueError, RecursionError):  # msgspec's errors, and Python's for text and depth, are of these kinds
        decode_event(text)
        raise EventRefused(Reason.NOT_JSON, "the line cannot be read") from None
    bare = line.json is msgspec.UNSET or line.content is not msgspec.UNSET
    return None if bare else line


def _bare_version(event: Mapping[str, Any], versions: Mapping[str, str]) -> str:
    room_id = event.get("room_id")
    if event.get("type") == "m.room.create":
        content = event.get("content")
        name = content.get("room_version", "1") if isinstance(content, dict) else "1"
        return name if isinstance(name, str) else shown(name)
    if isinstance(room_id, str):
        if room_id in versions:
            return versions[room_id]
        if room_id.startswith("!") and ":" not in room_id:
            return "12"
    raise EventRefused(
        Reason.UNKNOWN_ROOM_VERSION,
        f"nothing tells the version of room {room_id!r}: wrap the event with its room_version, or add the create event",
    )


def _version(name: Any) -> RoomVersion:
    if not isinstance(name, str):
        raise EventRefused(Reason.WRONG_TYPE, f"room_version is {shown(name)} and should be a string")
    try:
        return room_version(name)
    except UnknownRoomVersion as error:
        raise EventRefused(Reason.UNKNOWN_ROOM_VERSION, str(error)) from error


def _examined(json: bytes, event: Mapping[str, Any], version: RoomVersion) -> bool:
    """Numbers, depth and size; true when the event is plain (``canonical.examine``)."""
    try:
        plain = examine(event, strict=version.strict_json)
        if len(json) > SIZE_LIMIT_BYTES:
            counted = {key: value for key, value in event.items() if key != "unsigned"}
            size = len(encode_examined(counted, plain=plain))
            if size > SIZE_LIMIT_BYTES:
                raise EventRefused(Reason.TOO_LARGE, f"{size} bytes; an event has at most {SIZE_LIMIT_BYTES}")
    except NotCanonical as error:
        raise EventRefused(error.reason, str(error)) from error
    return plain


def _ids(event: Mapping[str, Any], version: RoomVersion, plain: bool, given_id: Any) -> tuple[str, str]:
    """Event ID and room ID; refuses a given event ID that is not the computed one."""
    hashed = version.ids_are_hashes
    event_id = hashes.event_id(event, version, plain=plain) if hashed else identifier(event, "event_id", "$")
    if given_id is not None and given_id != event_id:
        raise EventRefused(Reason.WRONG_EVENT_ID, f"said to be {shown(given_id)}, but the event is {event_id}")
    if version.room_id_is_create_hash and event.get("type") == "m.room.create":
        if "room_id" in event:
            raise EventRefused(Reason.BAD_IDENTIFIER, f"a create event of version {version.name} has no room_id")
        return event_id, "!" + event_id[1:]
    return event_id, identifier(event, "room_id", "!")


def _redacts(event: Mapping[str, Any], content: Mapping[str, Any], version: RoomVersion) -> str | None:
    if event.get("type") != "m.room.redaction":
        return None
    return optional_identifier((content if version.newer_redactions else event).get("redacts"))


def _verdict(wrapper: _Line) -> Verdict:
    """What the wrapper says about the event."""
    reason, ordering = wrapper.rejected_reason, wrapper.stream_ordering
    soft_failed = wrapper.soft_failed
    if reason is msgspec.UNSET:
        reason = None
    elif reason is not None:
        reason = storable(reason, "rejected_reason", limit_bytes=None)
    if ordering is not None:
        ordering = integer({"stream_ordering": ordering}, "stream_ordering", -LARGEST_STREAM_ORDERING)
    return Verdict(
        boolean(wrapper.outlier, "outlier"),
        reason,
        boolean(None if soft_failed is msgspec.UNSET else soft_failed, "soft_failed"),
        ordering or None,
        wrapper.rejected_reason is not msgspec.UNSET,
        soft_failed is not msgspec.UNSET,
    )
