"""Updates the statistics of rooms and server with a micro-batch: adds counts of facts, and recounts changed rooms.

Counts are sums over the batch's facts. The caller ensures that a batch is added only once (``pipeline.live.ledger``).
Members and state entries are not added up. They are recounted from the current state of each room whose state the batch
changed. When a room is recounted, all facts of the batch are in the database. If the room's state changes after that, a
later batch has this change, and recounts the room again.

The caller has a transaction open that holds the ledger's row. So only one process at a time updates the statistics. The
work is bounded by the size of the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

__all__ = ["COUNTED", "DAY_SECONDS", "HOUR_SECONDS", "READER", "Figures", "add_figures", "count_again", "forget_rooms"]

READER = "pipeline statistics"
"""The name of the reader whose cursors say which facts the statistics include."""
HOUR_SECONDS, DAY_SECONDS = 3_600, 86_400
COUNTED = ("events", "messages", "state_events", "rejected", "history")
"""Names of the counts of facts."""
#: Events of older days still count, but their senders and rooms do not count as active. The rows that show whether a sender or
#: room was counted before may be deleted already.
_LATEST_DAYS = 2

_GIVEN = """
SELECT * FROM unnest(%(hour_ms)s::bigint[], %(room_id)s::text[], %(events)s::bigint[], %(messages)s::bigint[],
    %(state_events)s::bigint[], %(rejected)s::bigint[], %(history)s::bigint[], %(last_position)s::bigint[], %(last_ms)s::bigint[])
    AS given (hour_ms, room_id, events, messages, state_events, rejected, history, last_position, last_ms)
"""
_SUMS = ", ".join(f"sum({name})::bigint" for name in COUNTED)
_NAMES = ", ".join(COUNTED)


def _added(table: str) -> str:
    return ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in COUNTED)


#: Rows are locked in the order of the room ID, so that two transactions cannot deadlock.
_ROOMS = f"""
INSERT INTO pipeline_roomstatistics AS room (room_id, {_NAMES}, last_position, last_event_at)
SELECT room_id, {_SUMS}, max(last_position), to_timestamp(nullif(max(last_ms), 0) / 1000.0)
FROM ({_GIVEN}) AS given GROUP BY room_id ORDER BY room_id
ON CONFLICT (room_id) DO UPDATE SET {_added("room")},
    last_position = greatest(room.last_position, excluded.last_position),
    last_event_at = greatest(room.last_event_at, excluded.last_event_at)
"""
_SERVER = f"""
INSERT INTO pipeline_serverstatistics AS server (step_seconds, at, {_NAMES})
SELECT step, to_timestamp(hour_ms / 1000 / step * step), {_SUMS}
FROM ({_GIVEN}) AS given CROSS JOIN unnest(ARRAY[{HOUR_SECONDS}, {DAY_SECONDS}]) AS step GROUP BY 1, 2 ORDER BY 1, 2
ON CONFLICT (step_seconds, at) DO UPDATE SET {_added("server")}
"""
_DAY = "(to_timestamp({ms} / 1000) AT TIME ZONE 'UTC')::date"
#: The newest day that has statistics. Days in the future come from a wrong clock and do not count.
_NEWEST_DAY = f"""
SELECT max((at AT TIME ZONE 'UTC')::date) FROM pipeline_serverstatistics
WHERE step_seconds = {DAY_SECONDS} AND at <= clock_timestamp()
"""
#: Both parts see the table as it was before the statement. So a row is either inserted or increased, never both.
_ROOM_DAYS = f"""
WITH given AS MATERIALIZED (
  SELECT {_DAY.format(ms="hour_ms")} AS day, room_id, sum(events)::bigint AS events, sum(history)::bigint AS history
  FROM ({_GIVEN}) AS given GROUP BY 1, 2
), fresh AS (
  INSERT INTO pipeline_roomday (day, room_id, events, history)
  SELECT day, room_id, events, history FROM given WHERE day >= (({_NEWEST_DAY})) - {_LATEST_DAYS}
  ON CONFLICT (day, room_id) DO NOTHING RETURNING day, events
), more AS (
  UPDATE pipeline_roomday kept SET events = kept.events + given.events, history = kept.history + given.history
  FROM given WHERE kept.day = given.day AND kept.room_id = given.room_id
  RETURNING kept.day, given.events, kept.events AS total
)
SELECT day, count(*) FROM (
  SELECT day FROM fresh WHERE events > 0 UNION ALL SELECT day FROM more WHERE events > 0 AND total = events
) AS active GROUP BY day
"""
_USER_DAYS = f"""
WITH given AS (
  SELECT DISTINCT {_DAY.format(ms="day_ms")} AS day, user_id
  FROM unnest(%(day_ms)s::bigint[], %(user_id)s::text[]) AS given (day_ms, user_id)
), fresh AS (
  INSERT INTO pipeline_userday (day, user_id, is_local)
  SELECT day, user_id, substr(user_id, strpos(user_id, ':') + 1) = %(server)s FROM given
  WHERE day >= (({_NEWEST_DAY})) - {_LATEST_DAYS}
  ON CONFLICT (day, user_id) DO NOTHING RETURNING day, is_local
)
SELECT day, count(*), count(*) FILTER (WHERE is_local) FROM fresh GROUP BY day
"""
_ACTIVE = f"""
UPDATE pipeline_serverstatistics SET active_rooms = active_rooms + %(rooms)s, active_users = active_users + %(users)s,
    active_local_users = active_local_users + %(local)s
WHERE step_seconds = {DAY_SECONDS} AND at = %(day)s::date::timestamp AT TIME ZONE 'UTC'
"""
#: Recounts members and state of ``%(rooms)s``. If ``%(changed)s`` is given, recounts only those of the rooms that are
#: in it or were never counted.
_FIGURES = """
WITH asked AS MATERIALIZED (
  SELECT room_id FROM pipeline_roomstatistics
  WHERE room_id = ANY(%(rooms)s) AND (%(changed)s::text[] IS NULL OR room_id = ANY(%(changed)s) OR figures_at IS NULL)
  ORDER BY room_id FOR UPDATE
), counted AS (
  SELECT room_id, count(*) AS entries,
    count(*) FILTER (WHERE membership = 'join') AS joined,
    count(*) FILTER (WHERE membership = 'join' AND substr(state_key, strpos(state_key, ':') + 1) = %(server)s) AS local,
    count(*) FILTER (WHERE membership = 'invite') AS invited, count(*) FILTER (WHERE membership = 'knock') AS knocking,
    count(*) FILTER (WHERE membership = 'leave') AS gone, count(*) FILTER (WHERE membership = 'ban') AS banned
  FROM events_currentstate JOIN asked USING (room_id) GROUP BY room_id
)
UPDATE pipeline_roomstatistics room SET state_entries = coalesce(entries, 0), joined = coalesce(counted.joined, 0),
  joined_local = coalesce(local, 0), invited = coalesce(counted.invited, 0), knocking = coalesce(counted.knocking, 0),
  "left" = coalesce(gone, 0), banned = coalesce(counted.banned, 0), figures_at = clock_timestamp()
FROM asked LEFT JOIN counted USING (room_id) WHERE room.room_id = asked.room_id
"""
_FORGET = (
    "DELETE FROM pipeline_roomstatistics WHERE room_id = ANY(%(rooms)s)",
    "DELETE FROM pipeline_roomday WHERE room_id = ANY(%(rooms)s)",
)


@dataclass(frozen=True, slots=True)
class Figures:
    """The sums of a batch, as the columns of a table with one row for each (hour, room).

    ``day_ms`` and ``user_id`` are the columns of a second table: one row for each (day, sender of an accepted event).
    """

    hour_ms: Sequence[int] = ()
    room_id: Sequence[str] = ()
    events: Sequence[int] = ()
    messages: Sequence[int] = ()
    state_events: Sequence[int] = ()
    rejected: Sequence[int] = ()
    history: Sequence[int] = ()
    changes: Sequence[int] = ()
    """The number of changes of the room's current state. A backfilled event counts as a change, too."""
    last_position: Sequence[int] = ()
    """The highest position in the stream ``events``. 0 if the batch has only backfilled events of the room."""
    last_ms: Sequence[int] = ()
    day_ms: Sequence[int] = ()
    user_id: Sequence[str] = ()

    def columns(self) -> dict[str, list[Any]]:
        """Returns the columns as parameters for SQL: name -> list of values."""
        return {field.name: list(getattr(self, field.name)) for field in fields(self)}


def add_figures(cursor: Any, figures: Figures, server_name: str) -> None:
    """Adds the sums of a batch to the statistics, and recounts the rooms whose state the batch changed."""
    given = {**figures.columns(), "server": server_name}
    if figures.room_id:
        cursor.execute(_ROOMS, given)
        cursor.execute(_SERVER, given)
        cursor.execute(_ROOM_DAYS, given)
        rooms = dict(cursor.fetchall())
        cursor.execute(_USER_DAYS, given)
        users = {day: counts for day, *counts in cursor.fetchall()}
        for day in sorted({*rooms, *users}):
            everybody, local = users.get(day, (0, 0))
            cursor.execute(_ACTIVE, {"day": day, "rooms": rooms.get(day, 0), "users": everybody, "local": local})
        changed = {room for room, changes in zip(figures.room_id, figures.changes, strict=True) if changes}
        count_again(cursor, set(figures.room_id), server_name, changed)


def count_again(cursor: Any, rooms: Iterable[str], server_name: str, changed: Iterable[str] | None = None) -> None:
    """Recounts members and state entries of ``rooms``. Rooms without a row of statistics are skipped.

    If ``changed`` is given, recounts only rooms that are in ``changed`` or were never counted.
    """
    given = {"rooms": list(rooms), "changed": None if changed is None else list(changed), "server": server_name}
    cursor.execute(_FIGURES, given)


def forget_rooms(cursor: Any, rooms: Iterable[str]) -> None:
    """Deletes the statistics of ``rooms``, which no longer exist. Does not change the server's statistics."""
    for statement in _FORGET:
        cursor.execute(statement, {"rooms": list(rooms)})
