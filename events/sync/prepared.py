"""Runs the queries of syncs: planned once a session, for planning takes longer than most of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import connections

from streams.db.driver import Statement, send_together

__all__ = ["rows"]


#: A room's events are read in the order of an index, as far as is needed. By the average size of rooms it would look cheaper to
#: read a room whole and sort it, which is slow for just the large ones.
_BY_INDEX = Statement("SET LOCAL enable_bitmapscan = off", {}, again=False)


def rows(text: str, values: Mapping[str, Any], using: str, *, by_index: bool = False) -> list[tuple[Any, ...]]:
    """The rows of a query with named parameters, in the open transaction of the alias."""
    before = [_BY_INDEX] if by_index else []
    return send_together(connections[using], [*before, Statement(text, values)])
