"""Runs the queries of syncs. Each query is planned once per session.

For most of these queries, planning takes longer than running.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import connections

from streams.db.driver import Statement, send_together

__all__ = ["rows"]


#: Makes the planner read a room's events in index order and stop when it has enough. By the average size of a room it would
#: choose to read and sort all events of the room, which is slow for large rooms.
_BY_INDEX = Statement("SET LOCAL enable_bitmapscan = off", {}, again=False)


def rows(text: str, values: Mapping[str, Any], using: str, *, by_index: bool = False) -> list[tuple[Any, ...]]:
    """Returns the rows of a query with named parameters, run in the open transaction of the alias.

    ``by_index`` makes the planner read events in index order, for the rest of the transaction.
    """
    before = [_BY_INDEX] if by_index else []
    return send_together(connections[using], [*before, Statement(text, values)])
