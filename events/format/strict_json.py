"""Decodes the JSON text of an event strictly (pure).

Texts that parsers silently read in different ways are refused: duplicate keys, numbers such as NaN, broken Unicode,
endless nesting. The common case costs one fast parse.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import orjson

from events.errors import EventRefused, Reason
from streams.core.own_stack import on_own_stack

_DECODER = msgspec.json.Decoder()
_FLOATS = re.compile(rb"[:,\[]-?[0-9]+[.eE]")


class _FloatFound(Exception):
    """Raised to end the parsing when the text has a float, because such a text is not plain."""


def _no_float(_: str) -> None:
    raise _FloatFound


_PLAIN_DECODER = msgspec.json.Decoder(float_hook=_no_float)


def decode_plain(text: bytes) -> dict[str, Any] | None:
    """Decodes an event from a plain text.

    Returns None if the text is not plain.

    A text is plain if it is as short as possible and all its numbers are integers within ±(2^53 - 1). Most events are,
    and need no other check: the decoded event, encoded again, is as long as ``text``, so no key occurs twice.
    """
    try:
        event = _PLAIN_DECODER.decode(text)
        if type(event) is dict and len(orjson.dumps(event, option=orjson.OPT_STRICT_INTEGER)) == len(text):
            return event
    except (_FloatFound, ValueError, TypeError, RecursionError):
        pass  # ``decode_event`` finds the reason
    return None


def decode_event(text: bytes) -> dict[str, Any]:
    try:
        event = on_own_stack(_DECODER.decode, text)
    except RecursionError:
        raise EventRefused(Reason.TOO_DEEP, "nested deeper than any event needs to be") from None
    except UnicodeDecodeError:  # its place is in a string of the text
        raise EventRefused(Reason.BAD_UNICODE, _not_utf_8(text)) from None
    except ValueError as error:  # msgspec's own errors are ValueErrors too
        raise _why_unreadable(text, error) from None
    if type(event) is not dict:
        raise EventRefused(Reason.NOT_AN_OBJECT, f"the event is {_kind(event)} and should be an object")
    if not _surely_unique_keys(text, event):
        _check_unique_keys(text)
    return event


def decode_stored(text: bytes) -> dict[str, Any] | None:
    """Decodes an event from stored bytes.

    Returns None if they are damaged, and no event with content any more.

    Never raises, so that one event does not keep others from being read. All numbers stay exact, whereas ``orjson``
    refuses integers of more than 308 digits and rounds others.
    """
    try:
        event = on_own_stack(_DECODER.decode, text)
    except (ValueError, RecursionError):  # msgspec's own errors are ValueErrors too
        return None
    return event if type(event) is dict and type(event.get("content")) is dict else None


def _surely_unique_keys(text: bytes, event: dict[str, Any]) -> bool:
    # Spaces, longer escapes and duplicate keys make a text longer than its shortest form. Only floats may be shorter in
    # it.
    try:
        shortest = orjson.dumps(event)
    except (orjson.JSONEncodeError, RecursionError):
        return False
    return len(shortest) == len(text) and not _FLOATS.search(shortest)


def _check_unique_keys(text: bytes) -> None:
    try:
        on_own_stack(json.loads, text, object_pairs_hook=_unique, parse_int=_no_number, parse_float=_no_number)
    except RecursionError:
        raise EventRefused(Reason.TOO_DEEP, "nested deeper than any event needs to be") from None


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) == len(pairs):
        return
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise EventRefused(Reason.DUPLICATE_KEY, f"the key {key[:100]!r} occurs twice in one object")
        seen.add(key)


def _no_number(_: str) -> None:
    """Only keys matter here, and converting long numbers would be slow."""


def _why_unreadable(text: bytes, error: ValueError) -> EventRefused:
    # Decoded here: given bytes, ``json.loads`` would read UTF-16 and a byte order mark as well.
    if reason := _not_utf_8(text):
        return EventRefused(Reason.NOT_JSON, reason)
    try:
        on_own_stack(
            json.loads, text.decode(), parse_int=_no_number, parse_float=_no_number, parse_constant=_refuse_constant
        )
    except RecursionError:
        return EventRefused(Reason.TOO_DEEP, "nested deeper than any event needs to be")
    except EventRefused as refused:
        return refused
    except ValueError:
        return EventRefused(Reason.NOT_JSON, str(error))
    if "out of range" in str(error):
        return EventRefused(Reason.BAD_NUMBER, str(error))
    return EventRefused(Reason.BAD_UNICODE, "a lone surrogate escape: \\ud800 to \\udfff count in pairs only")


def _not_utf_8(text: bytes) -> str:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8: {error.reason} at byte {error.start}"
    return ""


def _refuse_constant(name: str) -> None:
    raise EventRefused(Reason.BAD_NUMBER, f"{name} is not a JSON number")


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return "an array"
    if isinstance(value, str):
        return "a string"
    return "null" if value is None else f"the value {str(value)[:50]}"
