"""Everything that is stored of one room, read once: what ``events.room_check`` compares.

Reads on the given alias in the caller's transaction, which should be one view of the database. Takes memory in proportion to
the room's events, edges and state changes; the JSON text is parsed on the way and dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from django.db import connections

from events.errors import EventRefused
from events.parsing import parse_event
from events.room_check import RoomRows, StoredEvent
from events.visibility_ranges import VisibilityRow, in_order

__all__ = ["read_room"]

_ROOM_COLUMNS = (
    "room_id", "room_version", "creator", "create_event_id", "current_state_unresolved", "visibility_unresolved",
)  # fmt: skip
_ROOM = f"SELECT {', '.join(_ROOM_COLUMNS)} FROM events_room WHERE room_id = %(room)s"
_EVENTS = """
SELECT e.event_id, e.stream_ordering, e.type, e.state_key, e.sender, e.topological_ordering, e.origin_server_ts, e.membership,
  e.redacts, e.relates_to, e.outlier, e.rejected_reason, e.soft_failed, e.redacted_by, e.state_unresolved,
  e.censored_at IS NOT NULL, e.state_group, j.json
FROM events_event e LEFT JOIN events_eventjson j USING (event_id) WHERE e.room_id = %(room)s ORDER BY e.stream_ordering
"""
_QUERIES = {
    "edges": "SELECT edge.event_id, prev_event_id FROM events_eventedge edge JOIN events_event e USING (event_id) "
    "WHERE e.room_id = %(room)s",
    "auth": "SELECT a.event_id, auth_event_ids FROM events_eventauth a JOIN events_event e USING (event_id) "
    "WHERE e.room_id = %(room)s",
    "forward": "SELECT event_id FROM events_forwardextremity WHERE room_id = %(room)s",
    "backward": "SELECT event_id FROM events_backwardextremity WHERE room_id = %(room)s",
    "groups": "SELECT id, prev_group, chain, hops, keys, rows_to_read FROM state_stategroup WHERE room_id = %(room)s",
    "deltas": "SELECT chain, state_group, type, state_key, event_id FROM state_stategroupdelta "
    "WHERE chain IN (SELECT chain FROM state_stategroup WHERE room_id = %(room)s)",
    "current": "SELECT type, state_key, event_id, membership FROM events_currentstate WHERE room_id = %(room)s",
    "ranges": "SELECT user_id, kind, first, last FROM events_eventvisibility WHERE room_id = %(room)s",
}
_FETCHED = 1_000


def read_room(room_id: str, using: str = "default") -> RoomRows | None:
    """The rows of a room, or null where there is none."""
    with connections[using].cursor() as cursor:
        cursor.execute(_ROOM, {"room": room_id})
        room = cursor.fetchone()
        if room is None:
            return None
        cursor.execute(_EVENTS, {"room": room_id})
        events = []
        while rows := cursor.fetchmany(_FETCHED):
            events += [_event(row, room[1]) for row in rows]
        found: dict[str, list[Any]] = {}
        for name, query in _QUERIES.items():
            cursor.execute(query, {"room": room_id})
            found[name] = cursor.fetchall()
    columns: dict[str, Any] = dict(zip(_ROOM_COLUMNS, room, strict=True))
    return RoomRows(
        **columns,
        events=events,
        edges={(event_id, prev) for event_id, prev in found["edges"]},
        auth={event_id: tuple(ids) for event_id, ids in found["auth"]},
        forward={event_id for (event_id,) in found["forward"]},
        backward={event_id for (event_id,) in found["backward"]},
        groups=found["groups"],
        deltas=found["deltas"],
        current={(kind, key): (event_id, membership) for kind, key, event_id, membership in found["current"]},
        ranges=in_order(VisibilityRow(*row) for row in found["ranges"]),
    )


def _event(row: Sequence[Any], version: str) -> StoredEvent:
    """The event with its JSON parsed, as far as it can be."""
    event_id, text = row[0], row[-1]
    parsed, problem = None, None
    if text is None:
        problem = "its JSON is not stored"
    else:
        json = bytes(text)
        try:
            parsed = parse_event(json, orjson.loads(json), version, event_id)
        except (EventRefused, ValueError) as error:
            problem = f"its JSON cannot be read: {error}"
    values: dict[str, Any] = dict(zip(StoredEvent.__slots__, (*row[:-1], parsed, problem), strict=True))
    return StoredEvent(**values)
