"""The queries for the frames of stored rooms (no I/O).

Each query reads a range of rooms, or named rooms, by indexes that begin with the room ID. ``numbered`` numbers the
events of a room by stream ordering. ``groups`` numbers its state groups by ID. A state group gets a number if any row
of the room refers to it, even if the group's own row is missing. So if the row of a group is lost, the other groups
keep their numbers.

A bulk read takes no parameters, so all values are literals, quoted by ``literal``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipeline.source.literals import literal

__all__ = [
    "ALL_SIZES",
    "BY_EVENTS",
    "CUTS",
    "NAMED_SIZES",
    "SESSION",
    "RoomPart",
    "frame_sql",
    "links_sql",
    "rooms_sql",
    "source_sql",
]

#: Plans must not depend on statistics, because tables may have grown since. All tables have an index that fits. Rows are
#: joined to their numbers by hashes: a nested loop over two large rooms would take hours. Where rows are to be looked up one
#: by one, the query has LATERAL with OFFSET 0, which prevents a join by hashes.
SESSION = """
SELECT set_config(name, 'off', true) FROM unnest(ARRAY['enable_seqscan', 'enable_nestloop', 'jit']) AS name
UNION ALL SELECT set_config('max_parallel_workers_per_gather', '0', true)
"""


@dataclass(frozen=True, slots=True)
class RoomPart:
    """The rooms that one task reads: the list ``rooms``, or all rooms with ``after < room ID <= upto``.

    None for ``after`` and ``upto`` means no limit. For a part of a large room, ``first`` and ``last`` are the lowest
    and highest stream ordering of the events to read.
    """

    rooms: tuple[str, ...] | None = None
    after: str | None = None
    upto: str | None = None
    first: int | None = None
    last: int | None = None

    def where(self, alias: str) -> str:
        """Returns the SQL condition for rows of the part's rooms. ``alias`` is the name of the table in the query."""
        column = f"{alias}.room_id"
        if self.rooms is not None:
            return f"{column} IN ({', '.join(map(literal, self.rooms))})"
        bounds = [(">", self.after), ("<=", self.upto)]
        return " AND ".join(f"{column} {sign} {literal(room)}" for sign, room in bounds if room is not None) or "true"

    def events(self, alias: str) -> str:
        """Returns the SQL condition for the part's rows of ``events_event``. ``alias`` is the name of the table in the query."""
        if self.first is None or self.last is None:
            return self.where(alias)
        return f"{self.where(alias)} AND {alias}.stream_ordering BETWEEN {self.first} AND {self.last}"


_NUMBERED = """numbered AS MATERIALIZED (
    SELECT e.room_id, e.stream_ordering, row_number() OVER (PARTITION BY e.room_id ORDER BY e.stream_ordering) - 1 AS number
    FROM events_event e WHERE {e}
)"""
#: Rows of deltas have no room. A row belongs to the room whose state groups have its chain.
_DELTAS = """deltas AS MATERIALIZED (
    SELECT chains.room_id, d.* FROM (SELECT DISTINCT g.room_id, g.chain FROM state_stategroup g WHERE {g}) chains
    CROSS JOIN LATERAL (
        SELECT d.chain, d.state_group, d.type, d.state_key, d.event_id FROM state_stategroupdelta d
        WHERE d.chain = chains.chain OFFSET 0
    ) d
)"""
_GROUPS = f"""{_DELTAS}, groups AS MATERIALIZED (
    SELECT room_id, id, row_number() OVER (PARTITION BY room_id ORDER BY id) - 1 AS number FROM (
        SELECT g.room_id, unnest(ARRAY[g.id, g.prev_group, g.chain]) AS id FROM state_stategroup g WHERE {{g}}
        UNION SELECT room_id, state_group FROM deltas
        UNION SELECT e.room_id, e.state_group FROM events_event e WHERE {{e}}
    ) AS named WHERE id IS NOT NULL
)"""
_OF_EVENT = (
    "e.event_id, e.type, e.state_key, e.sender, e.topological_ordering, e.origin_server_ts, e.membership, e.redacts, "
    "e.relates_to, e.outlier, e.rejected_reason, e.soft_failed, e.redacted_by, e.state_unresolved"
)


def _by_event(columns: str, table: str) -> str:
    """Returns a query that finds rows of ``table`` by the IDs of a room's events. The rows are sorted by event ID."""
    return (
        f"SELECT e.room_id, {columns} FROM (SELECT e.room_id, e.event_id FROM events_event e WHERE {{e}} "
        f"ORDER BY e.event_id OFFSET 0) e CROSS JOIN LATERAL (SELECT * FROM {table} x WHERE x.event_id = e.event_id OFFSET 0) x"
    )


_FRAMES: Mapping[str, str] = {
    "rooms": "SELECT r.room_id, r.room_version, r.creator, r.create_event_id, r.current_state_unresolved, "
    "r.visibility_unresolved FROM events_room r WHERE {r}",
    "events": f"WITH {_GROUPS} SELECT e.room_id, "
    "row_number() OVER (PARTITION BY e.room_id ORDER BY e.stream_ordering) - 1 AS number, e.stream_ordering, "
    f"e.stream_ordering < 0 AS backfilled, NULL::bigint AS source, NULL::bigint AS line, {_OF_EVENT}, "
    "g.number AS group_number FROM events_event e "
    "LEFT JOIN groups g ON g.room_id = e.room_id AND g.id = e.state_group WHERE {e}",
    "event_json": _by_event("x.event_id, x.room_version, x.json", "events_eventjson"),
    "edges": _by_event("x.event_id, x.prev_event_id", "events_eventedge"),
    "auth_edges": _by_event("x.event_id, x.auth_event_ids", "events_eventauth"),
    "forward_extremities": "SELECT f.room_id, f.event_id FROM events_forwardextremity f WHERE {f}",
    "backward_extremities": "SELECT b.room_id, b.event_id FROM events_backwardextremity b WHERE {b}",
    "timeline_gaps": f"WITH {_NUMBERED} SELECT t.room_id, n.number, t.stream_ordering FROM events_timelinegap t "
    "LEFT JOIN numbered n ON n.room_id = t.room_id AND n.stream_ordering = t.stream_ordering WHERE {t}",
    "state_groups": f"WITH {_GROUPS} SELECT g.room_id, own.number, prev.number AS prev_number, "
    "chain.number AS chain_number, g.hops, g.keys, g.rows_to_read FROM state_stategroup g "
    "JOIN groups own ON own.room_id = g.room_id AND own.id = g.id "
    "JOIN groups chain ON chain.room_id = g.room_id AND chain.id = g.chain "
    "LEFT JOIN groups prev ON prev.room_id = g.room_id AND prev.id = g.prev_group WHERE {g}",
    "state_group_deltas": f"WITH {_GROUPS} SELECT d.room_id, chain.number AS chain_number, own.number AS group_number, "
    "d.type, d.state_key, d.event_id FROM deltas d "
    "JOIN groups own ON own.room_id = d.room_id AND own.id = d.state_group "
    "JOIN groups chain ON chain.room_id = d.room_id AND chain.id = d.chain",
    "current_state": "SELECT c.room_id, c.type, c.state_key, c.event_id, c.membership FROM events_currentstate c WHERE {c}",
    "current_state_deltas": f"WITH {_NUMBERED} SELECT d.room_id, n.number, d.stream_ordering, d.type, d.state_key, "
    "d.event_id, d.prev_event_id FROM events_currentstatedelta d "
    "LEFT JOIN numbered n ON n.room_id = d.room_id AND n.stream_ordering = d.stream_ordering WHERE {d}",
    "visibility": f"WITH {_NUMBERED} SELECT v.room_id, v.user_id, v.kind, a.number AS first_number, "
    "b.number AS last_number, v.first, v.last FROM events_eventvisibility v "
    "LEFT JOIN numbered a ON a.room_id = v.room_id AND a.stream_ordering = v.first "
    "LEFT JOIN numbered b ON b.room_id = v.room_id AND b.stream_ordering = v.last WHERE {v}",
}
"""The query of each frame. A letter in braces is an alias, and is replaced by the condition for rows of its table."""
BY_EVENTS = frozenset({"event_json", "edges", "auth_edges"})
"""The frames for which several tasks may read one large room. In other frames, rows are numbered over the whole room."""


#: The columns from ``event_id`` on are those that ``events.integrity.stored_rows`` expects, in the same order.
_SOURCE = """
SELECT e.room_id, r.room_version, e.event_id, e.stream_ordering, e.outlier, e.rejected_reason, e.soft_failed, e.redacted_by,
    e.state_unresolved, e.censored_at IS NOT NULL AS censored, e.state_group, e.type, e.state_key, e.sender,
    e.topological_ordering, e.origin_server_ts, e.membership, e.redacts, e.relates_to, x.room_version AS stored_by, x.json
FROM (SELECT * FROM events_event e WHERE {e} OFFSET 0) e
CROSS JOIN LATERAL (SELECT * FROM events_room r WHERE r.room_id = e.room_id OFFSET 0) r
LEFT JOIN LATERAL (SELECT * FROM events_eventjson x WHERE x.event_id = e.event_id OFFSET 0) x ON true
"""
_LINKS = """
SELECT event_id, ARRAY(SELECT prev_event_id FROM events_eventedge x WHERE x.event_id = named.event_id ORDER BY 1) AS edges,
    (SELECT auth_event_ids FROM events_eventauth x WHERE x.event_id = named.event_id) AS auth
FROM unnest(ARRAY[{ids}]) AS named (event_id)
"""
ALL_SIZES = "SELECT e.room_id, count(*) FROM events_event e GROUP BY e.room_id ORDER BY e.room_id"
"""The query for (room ID, number of events) of all rooms that have events, by room ID."""
NAMED_SIZES = """
SELECT room_id, (SELECT count(*) FROM events_event e WHERE e.room_id = named.room_id)
FROM unnest(%(rooms)s::text[]) AS named (room_id) ORDER BY room_id
"""
"""The query for (room ID, number of events) of named rooms. Rooms without events are included."""
CUTS = """
SELECT min(stream_ordering), max(stream_ordering) FROM (
    SELECT e.stream_ordering, (row_number() OVER (ORDER BY e.stream_ordering) - 1) / %(size)s AS part
    FROM events_event e WHERE e.room_id = %(room)s
) AS numbered GROUP BY part ORDER BY part
"""
"""The query for (first, last) stream ordering of the parts of a large room."""


def frame_sql(name: str, part: RoomPart) -> str:
    """Returns the query for the rows of a frame. The query has the columns of the frame's schema, in the same order."""
    events = part.events("e") if name in BY_EVENTS else part.where("e")
    return _FRAMES[name].format(e=events, **{alias: part.where(alias) for alias in "bcdfgrtv"})


def rooms_sql(part: RoomPart) -> str:
    """Returns the query for the IDs of the rooms of a part, in ascending order."""
    return f"SELECT r.room_id FROM events_room r WHERE {part.where('r')} ORDER BY r.room_id"


def source_sql(part: RoomPart) -> str:
    """Returns the query for events with their JSON, in rooms that have a row in ``events_room``."""
    return _SOURCE.format(e=part.events("e"))


def links_sql(event_ids: Iterable[str]) -> str:
    """Returns the query for the stored (event ID, prev events, auth events or null) of the events ``event_ids``."""
    return _LINKS.format(ids=", ".join(map(literal, event_ids)))
