"""Converts values to SQL literals, for statements that cannot have parameters (pure)."""

from __future__ import annotations

__all__ = ["literal"]


def literal(value: str | int | bool) -> str:
    """Returns a value as an SQL literal, for statements that cannot have parameters."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"({value}::bigint)"
    quoted = value.replace("'", "''")
    return f"E'{quoted}'".replace("\\", "\\\\") if "\\" in quoted else f"'{quoted}'"
