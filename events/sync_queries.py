"""Runs the queries of syncs: planned once a session, for planning takes longer than most of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import connections

from streams.database import Statement, send_together

__all__ = ["rows"]


def rows(text: str, values: Mapping[str, Any], using: str) -> list[tuple[Any, ...]]:
    """The rows of a query with named parameters, in the open transaction of the alias."""
    return send_together(connections[using], [Statement(text, values)])
