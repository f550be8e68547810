"""Encodes and decodes JSON as it is on the wire (pure): no blanks, ASCII only, no NaN or Infinity in either direction.

``orjson`` encodes a value if its text equals that of the standard encoder. Values that ``orjson`` would write differently
(non-ASCII text, numbers beyond 64 bits, floats that are not finite) are encoded by the standard encoder.
"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import orjson

from streams.errors import BadJson

__all__ = ["decode_json", "encode_json"]

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
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return _decode_exactly(text)


def _encode_exactly(value: Any) -> bytes:
    try:
        return _EXACT.encode(value).encode("ascii")
    except (ValueError, TypeError, RecursionError) as error:
        raise BadJson(f"row cannot be written as JSON: {error}") from error


def _decode_exactly(text: str) -> Any:
    """Decodes with the standard decoder, which accepts lone surrogates and whose errors say where the text is wrong."""
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
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
