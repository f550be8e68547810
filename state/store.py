"""Reading and numbering state groups in the database.

Works on the connection of the alias that is given, inside the caller's transaction if there is one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from django.db import connections

from state.errors import UnknownStateGroup
from state.models import StateGroup

__all__ = ["FULL_STATE", "entries", "full_state", "reserve_group_ids"]

#: All entries of a group: walks from chain to chain (``state.deltas.HOPS_LIMIT`` at most), one index range each.
#: ``OFFSET 0`` keeps the planner, which cannot guess how many chains there are, from reading the whole table instead.
FULL_STATE = """
WITH RECURSIVE spans AS (
    SELECT chain, id AS upto FROM state_stategroup WHERE id = %(group)s
    UNION ALL
    SELECT below.chain, below.id
    FROM spans
    JOIN state_stategroup AS first ON first.id = spans.chain
    JOIN state_stategroup AS below ON below.id = first.prev_group
), entries AS (
    SELECT DISTINCT ON (type, state_key) type, state_key, event_id
    FROM spans, LATERAL (
        SELECT type, state_key, event_id, state_group FROM state_stategroupdelta AS delta
        WHERE delta.chain = spans.chain AND delta.state_group <= spans.upto
        OFFSET 0
    ) AS read
    ORDER BY type, state_key, state_group DESC
)
SELECT type, state_key, event_id FROM entries WHERE event_id IS NOT NULL
"""

#: The entries of several groups at some keys: the same walk, which leaves out all other keys as it reads.
_ENTRIES = """
WITH RECURSIVE spans AS (
    SELECT id AS wanted, chain, id AS upto FROM state_stategroup WHERE id = ANY(%(groups)s)
    UNION ALL
    SELECT spans.wanted, below.chain, below.id
    FROM spans
    JOIN state_stategroup AS first ON first.id = spans.chain
    JOIN state_stategroup AS below ON below.id = first.prev_group
), entries AS (
    SELECT DISTINCT ON (wanted, type, state_key) wanted, type, state_key, event_id
    FROM spans, LATERAL (
        SELECT type, state_key, event_id, state_group FROM state_stategroupdelta AS delta
        WHERE delta.chain = spans.chain AND delta.state_group <= spans.upto
          AND (type, state_key) IN (SELECT * FROM unnest(%(types)s::text[], %(keys)s::text[]))
        OFFSET 0
    ) AS read
    ORDER BY wanted, type, state_key, state_group DESC
)
SELECT wanted, type, state_key, event_id FROM entries WHERE event_id IS NOT NULL
"""

#: IDs for new groups, ascending.
_RESERVE = """
SELECT nextval(pg_get_serial_sequence('state_stategroup', 'id')) FROM generate_series(1, %(count)s)
"""


def full_state(group: int, using: str = "default") -> dict[tuple[str, str], str]:
    """The state of a group, ``(type, state_key) -> event_id``; raises ``UnknownStateGroup``."""
    with connections[using].cursor() as cursor:
        cursor.execute(FULL_STATE, {"group": group})
        state = {(event_type, state_key): event_id for event_type, state_key, event_id in cursor}
    if not state and not StateGroup.objects.using(using).filter(pk=group).exists():
        raise UnknownStateGroup(f"State group {group} is not stored: it was deleted, or its room never was complete.")
    return state


def entries(
    groups: Collection[int], keys: Collection[tuple[str, str]], using: str = "default"
) -> dict[int, dict[tuple[str, str], str]]:
    """Of each group the entries at these keys, ``(type, state_key) -> event_id``; keys that it lacks are left out."""
    found: dict[int, dict[tuple[str, str], str]] = {group: {} for group in groups}
    with connections[using].cursor() as cursor:
        types, state_keys = [key[0] for key in keys], [key[1] for key in keys]
        where: dict[str, list[int] | list[str]] = {"groups": list(groups), "types": types, "keys": state_keys}
        cursor.execute(_ENTRIES, where)
        for group, event_type, state_key, event_id in cursor:
            found[group][event_type, state_key] = event_id
    return found


def reserve_group_ids(cursor: Any, count: int) -> Sequence[int]:
    """IDs for ``count`` new groups, ascending and not necessarily consecutive; never given back."""
    cursor.execute(_RESERVE, {"count": count})
    return sorted(number for (number,) in cursor)
