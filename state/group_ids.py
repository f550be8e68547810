"""Reserves IDs of new state groups from the sequence of their table. Needs no Django."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

GROUP_SEQUENCE = "state_stategroup_id_seq"
#: Reserves IDs for new groups. The IDs ascend.
_RESERVE = f"""
SELECT nextval('{GROUP_SEQUENCE}') FROM generate_series(1, %(count)s)
"""


def reserve_group_ids(cursor: Any, count: int) -> Sequence[int]:
    """Returns ``count`` new group IDs, ascending, possibly with gaps. IDs that are not used are lost."""
    cursor.execute(_RESERVE, {"count": count})
    return sorted(number for (number,) in cursor)
