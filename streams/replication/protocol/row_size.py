"""An estimate of the memory that a row takes (pure)."""

from __future__ import annotations

from typing import Any

#: Assumed memory of one value of a row, without the text of a string.
VALUE_BYTES = 64


def row_size(row: Any) -> int:
    """Returns the approximate size of a row in bytes: `VALUE_BYTES` per value and key, plus the length of every string."""
    size, left = 0, [row]
    while left:
        value = left.pop()
        size += VALUE_BYTES
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, list):
            left += value
        elif isinstance(value, dict):
            left += [*value.keys(), *value.values()]
    return size
