"""About how much memory a row takes (pure)."""

from __future__ import annotations

from typing import Any

__all__ = ["VALUE_BYTES", "row_size"]

#: What one value of a row takes at least.
VALUE_BYTES = 64


def row_size(row: Any) -> int:
    """Bytes, roughly: every value, and the length of every text."""
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
