"""JSON text of an event -> a dictionary, strictly (pure).

What parsers silently disagree about is refused: duplicate keys, numbers that are not numbers, broken Unicode,
endless nesting. The common case costs one fast parse.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import orjson

from events.errors import EventRefused, Reason
from events.format.own_stack import on_own_stack

__all__ = ["decode_event", "decode_plain", "decode_stored"]

_DECODER = msgspec.json.Decoder()
_FLOATS = re.compile(rb"[:,\[]-?[0-9]+[.eE]")


class _FloatFound(Exception):
    """Ends the parsing of a text that is not plain."""


def _no_float(_: str) -> None:
    raise _FloatFound


_PLAIN_DECODER = msgspec.json.Decoder(float_hook=_no_float)


def decode_plain(text: bytes) -> dict[str, Any] | None:
    """The event in a piece of JSON written as short as can be, with numbers that are integers within ±(2^53 - 1) only.

    Null for every other text, good or bad: ``decode_event`` and ``canonical.examine`` tell which. Most events are plain, and
    for them this is all the looking that is needed: written again they are as long, so no key stood twice.
    """
    try:
        event = _PLAIN_DECODER.decode(text)
        if type(event) is dict and len(orjson.dumps(event, option=orjson.OPT_STRICT_INTEGER)) == len(text):
            return event
    except (_FloatFound, ValueError, TypeError, RecursionError):
        pass  # the slow way has the reason
    return None


def decode_event(text: bytes) -> dict[str, Any]:
    """The event in a piece of UTF-8 JSON; raises ``EventRefused``."""
    try:
        event = on_own_stack(_DECODER.decode, text)
    except RecursionError:
        raise EventRefused(Reason.TOO_DEEP, "nested deeper than any event needs to be") from None
    except UnicodeDecodeError as error:
        raise EventRefused(Reason.BAD_UNICODE, f"not UTF-8: {error.reason} at byte {error.start}") from None
    except ValueError as error:  # msgspec's own errors are ValueErrors too
        raise _why_unreadable(text, error) from None
    if type(event) is not dict:
        raise EventRefused(Reason.NOT_AN_OBJECT, f"the event is {_kind(event)} and should be an object")
    if not _surely_unique_keys(text, event):
        _check_unique_keys(text)
    return event


def decode_stored(text: bytes) -> dict[str, Any]:
    """The event in bytes that ``decode_event`` has read before, with all numbers as they are: orjson rounds large integers."""
    event: dict[str, Any] = on_own_stack(_DECODER.decode, text)
    return event


def _surely_unique_keys(text: bytes, event: dict[str, Any]) -> bool:
    """True when the event written shortest is as long as its text: then no key can have been dropped.

    Every other difference (spaces, longer escapes, duplicate keys) makes the text longer. Floats may be shorter in
    the text, so they are left to the slow way.
    """
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
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise EventRefused(Reason.DUPLICATE_KEY, f"the key {key[:100]!r} stands twice in one object")
        seen.add(key)


def _no_number(_: str) -> None:
    """Numbers do not matter here, and turning long ones into integers would be slow."""


def _why_unreadable(text: bytes, error: ValueError) -> EventRefused:
    """The reason for text that the fast parser refused."""
    try:
        on_own_stack(json.loads, text, parse_int=_no_number, parse_float=_no_number, parse_constant=_refuse_constant)
    except RecursionError:
        return EventRefused(Reason.TOO_DEEP, "nested deeper than any event needs to be")
    except EventRefused as refused:
        return refused
    except ValueError:
        return EventRefused(Reason.NOT_JSON, str(error))
    if "out of range" in str(error):
        return EventRefused(Reason.BAD_NUMBER, str(error))
    return EventRefused(Reason.BAD_UNICODE, f"{error} (a lone surrogate escape, most likely)")


def _refuse_constant(name: str) -> None:
    raise EventRefused(Reason.BAD_NUMBER, f"{name} is not a JSON number")


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return "an array"
    if isinstance(value, str):
        return "a string"
    return "null" if value is None else f"the value {str(value)[:50]}"
