"""Maintains the history of statistics: writes the server's figures by hour and day, and deletes old rows.

``take_figures`` reads the statistics of all rooms, but no events or state. The sizes of tables are those that
PostgreSQL reports. ``go_through`` recounts the rooms that were counted longest ago, and deletes the statistics of rooms
that no longer exist. So the statistics also include changes that append no fact, but later. ``bound_history`` deletes
old rows.

Call each function in a short transaction of its own.
"""

from __future__ import annotations

from typing import Any

from pipeline.statistics.update import DAY_SECONDS, HOUR_SECONDS, count_again, forget_rooms

__all__ = [
    "DAYS_KEPT",
    "HOURS_KEPT",
    "ROOMS_OF_A_DAY",
    "USER_DAYS_KEPT",
    "bound_history",
    "go_through",
    "take_figures",
]

HOURS_KEPT = 8 * 24
DAYS_KEPT = 3 * 366
ROOMS_OF_A_DAY = 20
"""The number of rooms whose figures are kept for each day before yesterday. These are the busiest rooms of the day."""
USER_DAYS_KEPT = 30
"""Days for which active users of this server are stored. Active users of other servers are stored for three days."""
_OTHER_USER_DAYS_KEPT = 3

_FIGURES = f"""
WITH room AS (
  SELECT count(*) AS rooms, coalesce(sum(joined), 0) AS joined, coalesce(sum(joined_local), 0) AS joined_local,
    coalesce(sum(state_entries), 0) AS state_entries
  FROM pipeline_roomstatistics
), size AS (
  SELECT sum(reltuples) FILTER (WHERE relname = 'state_stategroup' AND reltuples >= 0)::bigint AS state_groups,
    sum(reltuples) FILTER (WHERE relname = 'state_stategroupdelta' AND reltuples >= 0)::bigint AS state_deltas,
    sum(pg_total_relation_size(oid)) FILTER (WHERE starts_with(relname, 'state_')) AS state_bytes,
    sum(pg_total_relation_size(oid)) FILTER (WHERE starts_with(relname, 'events_')) AS event_bytes,
    pg_database_size(current_database()) AS database_bytes
  FROM pg_class WHERE relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'events_event'::regclass) AND relkind = 'r'
    AND (starts_with(relname, 'state_') OR starts_with(relname, 'events_'))
), active AS (
  SELECT count(DISTINCT user_id) AS monthly_local_users FROM pipeline_userday
  WHERE is_local AND day > (clock_timestamp() AT TIME ZONE 'UTC')::date - {USER_DAYS_KEPT}
)
INSERT INTO pipeline_serverstatistics AS server (step_seconds, at, rooms, joined, joined_local, state_entries, state_groups,
  state_deltas, state_bytes, event_bytes, database_bytes, monthly_local_users)
SELECT step, to_timestamp(floor(extract(epoch FROM clock_timestamp()) / step) * step), room.*, size.*, active.*
FROM room, size, active, unnest(ARRAY[{HOUR_SECONDS}, {DAY_SECONDS}]) AS step ORDER BY 1, 2
ON CONFLICT (step_seconds, at) DO UPDATE SET rooms = excluded.rooms, joined = excluded.joined,
  joined_local = excluded.joined_local, state_entries = excluded.state_entries, state_groups = excluded.state_groups,
  state_deltas = excluded.state_deltas, state_bytes = excluded.state_bytes, event_bytes = excluded.event_bytes,
  database_bytes = excluded.database_bytes, monthly_local_users = excluded.monthly_local_users
"""
_LONGEST_AGO = "SELECT room_id FROM pipeline_roomstatistics ORDER BY figures_at NULLS FIRST LIMIT %(limit)s"
_GONE = """
SELECT room_id FROM unnest(%(rooms)s::text[]) AS given (room_id)
WHERE NOT EXISTS (SELECT FROM events_room r WHERE r.room_id = given.room_id)
  AND NOT EXISTS (SELECT FROM events_event e WHERE e.room_id = given.room_id)
"""
_TODAY = "(clock_timestamp() AT TIME ZONE 'UTC')::date"
_BOUNDS = (
    f"""
    DELETE FROM pipeline_serverstatistics WHERE step_seconds = {HOUR_SECONDS}
      AND at < clock_timestamp() - interval '{HOURS_KEPT} hours'
    """,
    f"""
    DELETE FROM pipeline_serverstatistics WHERE step_seconds = {DAY_SECONDS}
      AND at < clock_timestamp() - interval '{DAYS_KEPT} days'
    """,
    f"DELETE FROM pipeline_userday WHERE day <= {_TODAY} - {USER_DAYS_KEPT}",
    f"DELETE FROM pipeline_userday WHERE day <= {_TODAY} - {_OTHER_USER_DAYS_KEPT} AND NOT is_local",
    f"DELETE FROM pipeline_roomday WHERE day <= {_TODAY} - {DAYS_KEPT}",
    f"""
    DELETE FROM pipeline_roomday room USING (
      SELECT day, room_id, row_number() OVER (PARTITION BY day ORDER BY events DESC, room_id) AS place
      FROM pipeline_roomday WHERE day IN (
        SELECT day FROM pipeline_roomday WHERE day < {_TODAY} - 1 GROUP BY day HAVING count(*) > {ROOMS_OF_A_DAY}
      )
    ) AS ranked WHERE ranked.day = room.day AND ranked.room_id = room.room_id AND ranked.place > {ROOMS_OF_A_DAY}
    """,
)


def take_figures(cursor: Any) -> None:
    """Writes the server's figures into the rows of the present hour and the present day. Replaces earlier figures."""
    cursor.execute(_FIGURES)


def go_through(cursor: Any, server_name: str, limit: int = 500) -> int:
    """Recounts members and state of the ``limit`` rooms that were counted longest ago.

    Deletes the statistics of those rooms that no longer exist. Returns the number of these rooms.
    """
    cursor.execute(_LONGEST_AGO, {"limit": limit})
    rooms = [room_id for (room_id,) in cursor.fetchall()]
    cursor.execute(_GONE, {"rooms": rooms})
    gone = [room_id for (room_id,) in cursor.fetchall()]
    forget_rooms(cursor, gone)
    count_again(cursor, rooms, server_name)
    return len(gone)


def bound_history(cursor: Any) -> None:
    """Deletes rows that are too old. For each day before yesterday, keeps only the rows of the busiest rooms."""
    for statement in _BOUNDS:
        cursor.execute(statement)
