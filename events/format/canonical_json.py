"""Canonical JSON: the one byte form of a value that hashes and signatures are made over (pure).

Keys sorted by code point, no spaces, UTF-8, shortest escapes. Numbers are integers within ±(2^53 - 1) under the
strict rules (room version 6 and up); before that any integer and any finite float is let through, as in the servers
of that time.

``orjson`` writes this form when its input is *plain*: only integers, no deeper than it goes. Everything else takes
the slower encoder of the standard library.
"""

from __future__ import annotations

import json
import math
from typing import Any

import orjson

from events.errors import NotCanonical, Reason
from events.format.own_stack import on_own_stack

__all__ = ["LARGEST_INTEGER", "encode", "encode_examined", "examine"]

LARGEST_INTEGER = 2**53 - 1
_ORJSON_DEPTH = 250
_DEPTH_LIMIT = 900

_SLOW = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)


def encode(value: Any, *, strict: bool = True) -> bytes:
    """The canonical form of a JSON value; raises ``NotCanonical`` when it has none."""
    return encode_examined(value, plain=examine(value, strict=strict))


def encode_examined(value: Any, *, plain: bool) -> bytes:
    """The canonical form of a value, or a part of it, that went through ``examine`` with the answer ``plain``."""
    try:
        if plain:
            return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        return on_own_stack(_SLOW.encode, value).encode()
    except (orjson.JSONEncodeError, UnicodeEncodeError) as error:
        raise NotCanonical(Reason.BAD_UNICODE, f"a string cannot be written as UTF-8: {error}") from error


def examine(value: Any, *, strict: bool = True) -> bool:
    """Check every value inside: true when it is plain, so that the fast encoder is exact.

    Raises ``NotCanonical`` for what JSON or the strict rules do not allow. Linear in the size of the value.
    """
    plain = True
    level = [value]
    depth = 0
    while level:
        depth += 1
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is str or item is None or kind is bool:
                continue
            if kind is dict:
                _check_keys(item)
                below.extend(item.values())
            elif kind is list:
                below.extend(item)
            elif not _check_number(item, strict):
                plain = False
        level = below
    if depth > _DEPTH_LIMIT:
        raise NotCanonical(Reason.TOO_DEEP, f"nested {depth} levels deep; at most {_DEPTH_LIMIT} are taken")
    return plain and depth <= _ORJSON_DEPTH


def _check_keys(item: dict[Any, Any]) -> None:
    for key in item:
        if type(key) is not str:
            raise NotCanonical(Reason.WRONG_TYPE, f"the key {key!r} is not a string")


def _check_number(item: Any, strict: bool) -> bool:
    """True for an integer that every encoder writes alike."""
    kind = type(item)
    if kind is int:
        if -LARGEST_INTEGER <= item <= LARGEST_INTEGER:
            return True
        if strict:
            raise NotCanonical(Reason.BAD_NUMBER, f"the integer {_shown(item)} is outside of ±(2^53 - 1)")
        return False
    if kind is float:
        if strict or not math.isfinite(item):
            raise NotCanonical(Reason.BAD_NUMBER, f"{item!r} is not an integer")
        return False
    raise NotCanonical(Reason.WRONG_TYPE, f"a value of type {kind.__name__} is not JSON")


def _shown(number: int) -> str:
    """The number for a message; very long ones by their size (turning them into text takes quadratic time)."""
    return str(number) if number.bit_length() < 200 else f"of {number.bit_length()} bits"
