"""Encodes and decodes JSON as it is on the wire (pure): no blanks, ASCII only, no NaN or Infinity in either direction.

``orjson`` encodes a value if it writes the same text as the standard encoder. Values that ``orjson`` would write
differently (non-ASCII text, numbers beyond 64 bits, floats that are not finite) are encoded by the standard encoder.

Both directions take values that are nested up to ``MOST_DEPTH`` levels deep, however deep the caller's own call stack
is.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import msgspec
import orjson

from streams.core.own_stack import on_own_stack
from streams.errors import BadJson

#: Most levels of arrays and objects in one another.
MOST_DEPTH = 900
#: The most levels in one value of a fact. Fewer, because rows, answers and dead letters have some levels around the value.
MOST_VALUE_DEPTH = 850

_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}:,]')
_EXACT = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), allow_nan=False)
_OPTIONS = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS


def encode_json(value: Any) -> bytes:
    """Encodes one value as JSON. Raises ``BadJson`` for a value that JSON cannot express."""
    try:
        fast = orjson.dumps(value, option=_OPTIONS)
    except TypeError:
        return _encode_exactly(value)
    # The fast encoder keeps non-ASCII text and DEL, and writes NaN as null.
    if fast.isascii() and b"\x7f" not in fast and (b"null" not in fast or not _holds_float(value)):
        return fast
    return _encode_exactly(value)


def decode_json(text: str) -> Any:
    """Decodes one JSON value. Integers may have any size. Raises ``BadJson`` with the reason if the text is not JSON."""
    try:
        value = on_own_stack(msgspec.json.decode, text)
    except (msgspec.MsgspecError, RecursionError):
        value = _decode_exactly(text)
    if text.count("[") + text.count("{") > MOST_DEPTH and is_deeper(value, MOST_DEPTH):
        raise BadJson(f"nested deeper than {MOST_DEPTH} levels")
    return value


def decode_stored_json(text: str) -> Any:
    """Decodes the JSON of a stored row. Returns None for a text that is not JSON, as a writer in SQL may have stored it.

    Never raises, so that one row does not keep readers from all others.
    """
    try:
        return decode_json(text)
    except BadJson:
        return None


def decode_stored_object(text: str) -> dict[str, Any]:
    """Decodes the JSON object of a stored row. A member whose value cannot be decoded is None (``decode_stored_json``).

    A number of PostgreSQL's ``jsonb`` may have 131,072 digits, and a value 6,000 levels. The text must be an object.
    """
    try:
        return dict(decode_json(text))
    except BadJson:
        pass
    found, key, start, depth = {}, "", 0, 0
    for token in _TOKENS.finditer(text):
        mark = token[0]
        if depth == 1 and mark == ":":
            key, start = json.loads(text[start : token.start()]), token.end()
        elif depth == 1 and mark in ",}":
            found[key], start = decode_stored_json(text[start : token.start()]), token.end()
        elif not depth:
            start = token.end()
        depth += (mark in "[{") - (mark in "]}")
    return found


def is_deeper(value: Any, depth: int) -> bool:
    """Returns true if more than ``depth`` arrays and objects are nested in one another."""
    # Depth first: a value that holds itself ends the search at once.
    above = [(value, 1)]
    while above:
        nested, at = above.pop()
        if isinstance(nested, list | tuple | dict):
            if at > depth:
                return True
            parts = nested.values() if isinstance(nested, dict) else nested
            above += [(part, at + 1) for part in parts if isinstance(part, list | tuple | dict)]
    return False


def _encode_exactly(value: Any) -> bytes:
    if is_deeper(value, MOST_DEPTH):
        raise BadJson(f"row cannot be written as JSON: nested deeper than {MOST_DEPTH} levels")
    try:
        return on_own_stack(_EXACT.encode, value).encode("ascii")
    except (ValueError, TypeError, RecursionError) as error:
        raise BadJson(f"row cannot be written as JSON: {error}") from error


def _decode_exactly(text: str) -> Any:
    # The standard decoder accepts lone surrogates, and its errors say where the text is wrong.
    try:
        return on_own_stack(json.loads, text, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError:
        raise BadJson(f"nested deeper than {MOST_DEPTH} levels") from None
    except ValueError as error:
        raise BadJson(f"no valid JSON: {error}") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"number {text[:20]} is out of range")
    return number


def _holds_float(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_holds_float(part) for part in value)
    if isinstance(value, dict):
        return any(_holds_float(part) for part in value.values())
    return isinstance(value, float)
