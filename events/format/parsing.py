"""Parses a line of an import into an event, or raises an error with the reason why the line is refused (pure).

A line is a bare federation event, or a wrapper such as

    {"json": {"type": "m.room.message", …}, "room_version": "11", "stream_ordering": 7}

A wrapper may also have ``event_id``, ``outlier``, ``rejected_reason`` and ``soft_failed``; other keys are ignored. The
stored bytes of an event are the exact substring of the line that has the event. Each line is parsed on its own, in time
linear in its length.

If the content does not match its hash, the event was redacted or tampered with on the way, and no signature covers its
content. Such an event is redacted before any other code reads it, so that only the redacted form is stored and served.
If it was redacted before it arrived, nothing more is removed, and the bytes are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import msgspec
from msgspec.structs import replace

from events.errors import EventRefused, NotCanonical, Reason
from events.format import hashes
from events.format.canonical_json import encode_examined, examine
from events.format.foreign_forms import BYTE_ORDER_MARK, foreign_form
from events.format.redaction import pruned_fields
from events.format.strict_json import decode_event, decode_plain, decode_stored
from state.errors import UnknownRoomVersion
from state.rules.room_versions import RoomVersion, room_version
from streams.core.own_stack import on_own_stack

__all__ = [
    "ANNOUNCING",
    "IDENTIFIER_LIMIT_BYTES",
    "LINE_LIMIT_BYTES",
    "RULED_TYPES",
    "SIZE_LIMIT_BYTES",
    "ParsedEvent",
    "Verdict",
    "announced_version",
    "boolean",
    "identifier",
    "integer",
    "optional_identifier",
    "parse_event",
    "parse_line",
    "parse_row",
    "parse_stored",
    "references",
    "required",
    "ruled_content",
    "shown",
    "storable",
]

LINE_LIMIT_BYTES = 1024 * 1024
"""The most bytes of a line. It is sixteen times the size limit of an event, to allow for white space and escapes."""
SIZE_LIMIT_BYTES = 65_536
"""The most bytes of an event in canonical form, without ``unsigned``."""
_LARGEST_BIGINT = 2**63 - 1
IDENTIFIER_LIMIT_BYTES = 255
"""The most bytes of an event ID, room ID, user ID, type or state key, in UTF-8."""
_KINDS: dict[type, str] = {str: "a string", int: "an integer", dict: "an object", list: "an array", bool: "a boolean"}
ANNOUNCING = b"m.room.create"
"""Bytes that every line with a create event contains."""


class ParsedEvent(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One event, checked, with everything that storage and the room's graph need.

    ``content`` is kept only if rules read it later (``ruled_content``), else it is empty. ``json`` has the bytes to
    store: the received bytes, or the redacted form if ``content_hash_matches`` is false; ``events.history``, which does
    not read it, may empty it. ``rejection_given`` and ``soft_failure_given``: the source stated this part of the
    verdict, so the rules are not applied.
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
        return self.state_key is not None

    @property
    def backfilled(self) -> bool:
        return self.stream_ordering is not None and self.stream_ordering < 0


RULED_TYPES = frozenset(
    {"m.room.create", "m.room.history_visibility", "m.room.power_levels"}
    | {"m.room.join_rules", "m.room.third_party_invite"}
)
"""The types of events whose whole content the auth and visibility rules may read."""
_RULED_MEMBER_KEYS = ("third_party_invite", "join_authorised_via_users_server")


def ruled_content(event_type: str, content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the part of the content that the auth and visibility rules read."""
    if event_type in RULED_TYPES:
        return content
    if event_type == "m.room.member":  # the membership has a field of its own
        return {key: content[key] for key in _RULED_MEMBER_KEYS if key in content}
    return {}


class Verdict(NamedTuple):
    """The verdict on an event, and its position: the last fields of ``ParsedEvent``."""

    outlier: bool
    rejected_reason: str | None
    soft_failed: bool
    stream_ordering: int | None
    rejection_given: bool
    soft_failure_given: bool


def event_of_columns(columns: Sequence[Any], verdict: Sequence[Any] = ()) -> ParsedEvent:
    """Returns an event without JSON and content. ``columns`` are its fields up to ``relates_to``, ``verdict`` a ``Verdict``."""
    known = (*columns[:8], tuple(columns[8]), tuple(columns[9]), *columns[10:])
    values: tuple[Any, ...] = (*known, True, b"", {}, *verdict)
    return ParsedEvent(*values)


def parse_stored(
    json: bytes,
    version: RoomVersion,
    event_id: str,
    verdict: Verdict,
    kept: dict[Any, Any],
    *,
    unique_keys: bool = False,
) -> ParsedEvent:
    """Returns a stored event with its verdict.

    Raises ``EventRefused`` and ``ValueError``. With ``unique_keys``, a key that occurs twice is always refused.

    ``json`` of the result is empty, or the redacted form that should replace the stored bytes. ``kept`` collects
    values, so that equal values of a room's events share one object.
    """
    if version.ids_are_hashes:
        try:
            return _proven(
                json, version, event_id, verdict, kept.setdefault, decode_event if unique_keys else decode_stored
            )
        except (EventRefused, ValueError, TypeError, AttributeError, KeyError, RecursionError):
            pass  # the full parse finds the reason
    parsed = parse_event(json, decode_event(json), version.name, event_id)
    return replace(parsed, json=b"" if parsed.json == json else parsed.json, **verdict._asdict())


def _proven(
    json: bytes,
    version: RoomVersion,
    given_id: str,
    verdict: Verdict,
    share: Callable[[Any, Any], Any],
    decode: Callable[[bytes], dict[str, Any] | None],
) -> ParsedEvent:
    plain = decode_plain(json)  # no key of a plain text occurs twice
    event = decode(json) if plain is None else plain
    if event is None:
        raise ValueError("the bytes are damaged")
    _, room_id = _ids(event, version, True, given_id)
    if (
        not hashes.content_hash_matches(event, version, plain=plain is not None or None)
        and _redacted(json, event, version)[0] != json
    ):
        raise ValueError("another form of it is to be stored")
    event_type, state_key, content = event["type"], event.get("state_key"), required(event, "content", dict)
    sender, auth = event["sender"], tuple(dict.fromkeys(event["auth_events"]))
    relation = content.get("m.relates_to")
    return ParsedEvent(
        share(given_id, given_id),
        share(room_id, room_id),
        version.name,
        share(event_type, event_type),
        state_key,
        share(sender, sender),
        event["depth"],
        event["origin_server_ts"],
        tuple([share(prev, prev) for prev in dict.fromkeys(event["prev_events"])]),
        share(auth, auth),
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


class _Wrapper(msgspec.Struct):
    # Of any type here, so that the messages on wrong types are ours and not the decoder's.
    json: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    content: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    room_version: Any = None
    event_id: Any = None
    outlier: Any = None
    rejected_reason: Any = msgspec.UNSET
    soft_failed: Any = msgspec.UNSET
    stream_ordering: Any = None


_WRAPPER = msgspec.json.Decoder(_Wrapper)
_EMPTY_WRAPPER = _Wrapper()


def parse_line(line: bytes, versions: Mapping[str, str] | None = None) -> ParsedEvent:
    """Parses one line and returns its event.

    Raises ``EventRefused``.

    ``versions`` maps room IDs to room versions, for bare events, as ``announced_version`` of all lines finds them. A
    bare create event needs no entry, nor does one whose room ID names no server (version 12).
    """
    text = _stripped(line)
    if len(text) > LINE_LIMIT_BYTES:
        raise EventRefused(Reason.LINE_TOO_LONG, f"{len(text)} bytes; at most {LINE_LIMIT_BYTES} are looked at")
    try:
        wrapper = _split(text)
        if wrapper is not None:
            raw = bytes(wrapper.json) if isinstance(wrapper.json, msgspec.Raw) else b""
            return _parse_wrapped(raw, wrapper, versions or {})
        plain = decode_plain(text)
        event = decode_event(text) if plain is None else plain
        return parse_event(text, event, _bare_version(event, versions or {}), plain=plain is not None)
    except EventRefused as refused:
        if refused.reason in (Reason.NOT_JSON, Reason.NOT_AN_OBJECT) and (form := foreign_form(text)) is not None:
            raise EventRefused(refused.reason, f"the line is {form}") from None
        raise


def _stripped(text: bytes) -> bytes:
    return text.removeprefix(BYTE_ORDER_MARK).strip(b" \t\r\n")


def parse_row(json: bytes, stated: Mapping[str, Any], versions: Mapping[str, str] | None = None) -> ParsedEvent:
    """Parses an event that comes as a row of a source: its bytes, and the other keys of a wrapper (``stated``).

    Raises ``EventRefused``.
    """
    if len(json) > LINE_LIMIT_BYTES:
        raise EventRefused(Reason.LINE_TOO_LONG, f"{len(json)} bytes; at most {LINE_LIMIT_BYTES} are looked at")
    return _parse_wrapped(_stripped(json), _Wrapper(**stated), versions or {})


def announced_version(line: bytes, stated: Mapping[str, Any] | None = None) -> tuple[str, str] | None:
    """Returns (room ID, room version) if the line is a create event, else None.

    Never raises.

    If ``stated`` is given, ``line`` is the JSON of a row, as for ``parse_row``. A line without ``ANNOUNCING`` is not
    parsed.
    """
    if ANNOUNCING not in line or len(line) > LINE_LIMIT_BYTES:
        return None
    try:
        parsed = parse_line(line) if stated is None else parse_row(line, stated)
    except EventRefused:
        return None
    return (parsed.room_id, parsed.room_version) if parsed.type == "m.room.create" else None


def parse_event(
    json: bytes, event: Mapping[str, Any], version_name: Any, given_id: Any = None, *, plain: bool = False
) -> ParsedEvent:
    """Checks one event and returns it parsed.

    ``json`` has its bytes, and ``event`` is the same event decoded.

    ``given_id`` is the event ID that the source states, if any. ``plain``: the bytes passed
    ``strict_json.decode_plain``, so that numbers and depth need no check.
    """
    wrapper = _EMPTY_WRAPPER if given_id is None else _Wrapper(event_id=given_id)
    return _checked(json, event, version_name, plain, wrapper)


def _checked(json: bytes, event: Mapping[str, Any], version_name: Any, plain: bool, wrapper: _Wrapper) -> ParsedEvent:
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
    # as it is, if a redaction would remove nothing
    pruned = pruned_fields(event, version)
    if len(pruned) == len(event) - ("unsigned" in event) and pruned["content"] == event["content"]:
        return json, event
    if plain is None:
        plain = examine(pruned, strict=version.strict_json)
    return encode_examined(pruned, plain=plain), pruned


def _parse_wrapped(raw: bytes, wrapper: _Wrapper, versions: Mapping[str, str]) -> ParsedEvent:
    plain = decode_plain(raw)
    event = decode_event(raw) if plain is None else plain
    name = wrapper.room_version
    version = name if name is not None else _bare_version(event, versions)
    return _checked(raw, event, version, plain is not None, wrapper)


def _split(text: bytes) -> _Wrapper | None:
    if not text.startswith(b"{"):
        decode_event(text)  # raises with the reason
    try:
        wrapper = on_own_stack(_WRAPPER.decode, text)
    except (ValueError, RecursionError):  # msgspec's errors, and Python's for text and depth, are of these kinds
        decode_event(text)
        raise EventRefused(Reason.NOT_JSON, "the line cannot be read") from None
    is_bare = wrapper.json is msgspec.UNSET or wrapper.content is not msgspec.UNSET
    return None if is_bare else wrapper


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
        f"the version is not known of room {room_id!r}: wrap the event with its room_version, or add the create event",
    )


def _version(name: Any) -> RoomVersion:
    if not isinstance(name, str):
        raise EventRefused(Reason.WRONG_TYPE, f"room_version is {shown(name)} and should be a string")
    try:
        return room_version(name)
    except UnknownRoomVersion as error:
        raise EventRefused(Reason.UNKNOWN_ROOM_VERSION, str(error)) from error


def _examined(json: bytes, event: Mapping[str, Any], version: RoomVersion) -> bool:
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


def _verdict(wrapper: _Wrapper) -> Verdict:
    reason, ordering = wrapper.rejected_reason, wrapper.stream_ordering
    soft_failed = wrapper.soft_failed
    if reason is msgspec.UNSET:
        reason = None
    elif reason is not None:
        reason = storable(reason, "rejected_reason", limit_bytes=None)
    if ordering is not None:
        ordering = integer({"stream_ordering": ordering}, "stream_ordering", -_LARGEST_BIGINT)
    return Verdict(
        boolean(wrapper.outlier, "outlier"),
        reason,
        boolean(None if soft_failed is msgspec.UNSET else soft_failed, "soft_failed"),
        ordering or None,
        wrapper.rejected_reason is not msgspec.UNSET,
        soft_failed is not msgspec.UNSET,
    )


# --- single fields -----------------------------------------------------------------------------------------------------


def required(event: Mapping[str, Any], name: str, kind: type) -> Any:
    """Returns the field ``name``, which must be present and exactly of the type ``kind``."""
    try:
        value = event[name]
    except KeyError:
        raise EventRefused(Reason.MISSING_KEY, f"{name} is missing") from None
    if type(value) is not kind:
        raise EventRefused(Reason.WRONG_TYPE, f"{name} is {shown(value)} and should be {_KINDS[kind]}")
    return value


def storable(value: Any, name: str, limit_bytes: int | None = IDENTIFIER_LIMIT_BYTES) -> str:
    """Returns a string that a text column can hold: without NUL, valid Unicode, and short enough for an index."""
    if type(value) is not str:
        raise EventRefused(Reason.WRONG_TYPE, f"{name} is {shown(value)} and should be a string")
    if "\0" in value:
        raise EventRefused(Reason.NUL_CHARACTER, f"{name} holds the character U+0000, which cannot be stored")
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError:
        raise EventRefused(Reason.BAD_UNICODE, f"{name} holds half of a surrogate pair") from None
    if limit_bytes is not None and size > limit_bytes:
        raise EventRefused(Reason.IDENTIFIER_TOO_LONG, f"{name} has {size} bytes; at most {limit_bytes} are allowed")
    return value


def identifier(event: Mapping[str, Any], name: str, sigil: str = "") -> str:
    """Returns the Matrix identifier in the field ``name``, which must begin with ``sigil``."""
    found = event.get(name)
    if _is_plain(found, sigil):
        return found
    value = storable(required(event, name, str), name)
    if not value.startswith(sigil):
        raise EventRefused(Reason.BAD_IDENTIFIER, f"{name} is {shown(value)} and should begin with {sigil!r}")
    return value


def _is_plain(value: Any, sigil: str) -> TypeGuard[str]:
    # The usual form: short and ASCII. Others may be valid all the same.
    return (
        type(value) is str
        and len(value) <= IDENTIFIER_LIMIT_BYTES
        and value.startswith(sigil)
        and value.isascii()
        and "\0" not in value
    )


def optional_identifier(value: Any) -> str | None:
    """Returns an identifier that content names, of whatever type, or None if a column cannot hold it."""
    if value is None:
        return None
    if type(value) is not str or "\0" in value or len(value.encode()) > IDENTIFIER_LIMIT_BYTES:
        return None
    return value


def integer(event: Mapping[str, Any], name: str, least: int) -> int:
    value = event.get(name)
    if type(value) is int and least <= value <= _LARGEST_BIGINT:
        return value
    value = required(event, name, int)
    if not least <= value <= _LARGEST_BIGINT:
        shown = value if value.bit_length() < 200 else "far too large"
        raise EventRefused(Reason.OUT_OF_RANGE, f"{name} is {shown}; it must lie between {least} and {_LARGEST_BIGINT}")
    return int(value)


def boolean(value: Any, name: str) -> bool:
    # absent and null mean false
    if value is None:
        return False
    if type(value) is not bool:
        raise EventRefused(Reason.WRONG_TYPE, f"{name} is {shown(value)} and should be a boolean")
    return value


def references(event: Mapping[str, Any], name: str, version: RoomVersion, event_id: str) -> tuple[str, ...]:
    """Returns the IDs in ``prev_events`` or ``auth_events``, in the event's order and without repetitions."""
    found: dict[str, None] = {}
    hashed = version.ids_are_hashes
    for entry in required(event, name, list):
        if hashed and _is_plain(entry, "$"):
            found[entry] = None
        else:
            value = entry
            if not hashed:  # ``[id, {"sha256": hash}]``, the form of room versions 1 and 2
                if type(entry) is not list or len(entry) != 2:
                    detail = f"{name} holds {shown(entry)}; it should hold pairs of ID and hashes"
                    raise EventRefused(Reason.BAD_REFERENCE, detail)
                value = entry[0]
            reference = storable(value, f"an entry of {name}")
            if not reference.startswith("$"):
                raise EventRefused(Reason.BAD_REFERENCE, f"{name} names {shown(reference)}, which is no event ID")
            found[reference] = None
    if event_id in found:
        raise EventRefused(Reason.BAD_REFERENCE, f"{name} names the event itself")
    return tuple(found)


def shown(value: Any) -> str:
    text = repr(value) if type(value) in (str, int, float, bool, type(None)) else _KINDS.get(type(value), "a value")
    return text if len(text) <= 100 else text[:100] + "…"
