"""Canonical JSON: the single byte form of a value, over which hashes and signatures are computed (pure).

Keys are sorted by code point. There are no spaces, the text is UTF-8, and escapes are the shortest. Under the strict
rules (room version 6 and later) numbers are integers within ±(2^53 - 1). In earlier versions any integer and any finite
float is accepted, as servers of that time did.

``orjson`` writes this form if its input is *plain*: all numbers are integers within ±(2^53 - 1), and the nesting is not
too deep for ``orjson``. All other values go through the slower encoder of the standard library.
"""

from __future__ import annotations

import json
import math
from typing import Any

import orjson

from events.errors import NotCanonical, Reason
from streams.core.own_stack import on_own_stack

LARGEST_INTEGER = 2**53 - 1
_TOO_LONG = 10**4_300
"""The least integer with more digits than Python reads and writes. Events from elsewhere are refused when they are read."""
_ORJSON_DEPTH = 250
_DEPTH_LIMIT = 900

_SLOW = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)


def encode(value: Any, *, strict: bool = True) -> bytes:
    """Returns the canonical form of a JSON value. Raises ``NotCanonical``."""
    return encode_examined(value, plain=examine(value, strict=strict))


def encode_examined(value: Any, *, plain: bool) -> bytes:
    """Returns the canonical form of (a part of) a value that ``examine`` accepted, with ``plain`` as its result.

    Raises ``NotCanonical`` if a string cannot be written as UTF-8.
    """
    try:
        if plain:
            return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        return on_own_stack(_SLOW.encode, value).encode()
    except (orjson.JSONEncodeError, UnicodeEncodeError) as error:
        raise NotCanonical(Reason.BAD_UNICODE, f"a string cannot be written as UTF-8: {error}") from error


def examine(value: Any, *, strict: bool = True) -> bool:
    """Checks a value and all values nested in it, in linear time.

    Returns true if the value is plain, so that the fast encoder writes the exact form. Raises ``NotCanonical`` for what
    JSON or the strict rules do not allow.
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
                for key in item:
                    if type(key) is not str:
                        raise NotCanonical(Reason.WRONG_TYPE, f"the key {key!r} is not a string")
                below.extend(item.values())
            elif kind is list:
                below.extend(item)
            elif not _check_number(item, strict):
                plain = False
        level = below
    if depth > _DEPTH_LIMIT:
        raise NotCanonical(Reason.TOO_DEEP, f"nested {depth} levels deep; at most {_DEPTH_LIMIT} are taken")
    return plain and depth <= _ORJSON_DEPTH


def _check_number(item: Any, strict: bool) -> bool:
    kind = type(item)
    if kind is int:
        if -LARGEST_INTEGER <= item <= LARGEST_INTEGER:
            return True
        if strict:
            raise NotCanonical(Reason.BAD_NUMBER, f"the integer {_shown(item)} is outside of ±(2^53 - 1)")
        if not -_TOO_LONG < item < _TOO_LONG:
            raise NotCanonical(Reason.BAD_NUMBER, f"the integer {_shown(item)} has more than 4,300 digits")
        return False
    if kind is float:
        if strict or not math.isfinite(item):
            raise NotCanonical(Reason.BAD_NUMBER, f"{item!r} is not an integer")
        return False
    raise NotCanonical(Reason.WRONG_TYPE, f"a value of type {kind.__name__} is not JSON")


def _shown(number: int) -> str:
    # printing all digits takes quadratic time
    return str(number) if number.bit_length() < 200 else f"of {number.bit_length()} bits"
