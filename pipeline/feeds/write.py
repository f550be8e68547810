"""Writes per-user feeds from the stream ``events``: for each local user, a list of events that may be new to the user.

``write_feeds`` adds the events of one range of stream positions, in the caller's transaction. The caller is the named
reader ``feeds`` (``pipeline.handlers``, run by ``manage.py runhandlers feeds``). The position that the feeds have
reached is stored with the entries. So if the same range is given twice, its events are added once. ``write_feeds`` also
notices if events between two ranges were left out.

An event is added to the feed of each local user who is joined to its room now. It is also added to the feed of each
local user whose membership in the room changed at or after the first event of the range. So all users who were joined
when the event was sent get the event, however late the range is written. A change of a user's membership is always
added to that user's feed.

Feeds contain all events of a room, even those that the user is not allowed to see. Code that reads a feed must apply
the rules of visibility that hold at the time of reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from events.sync.feeds import FEEDS

__all__ = ["StreamRange", "Written", "drop_feeds", "write_feeds"]

#: A feed that is too long is shortened to this share of the limit. So it need not be shortened again at the next event.
_KEPT = 0.8

_POSITION = "SELECT position FROM events_feedposition WHERE name = %(name)s FOR UPDATE"
_MOVE = """
INSERT INTO events_feedposition (name, position) VALUES (%(name)s, %(upto)s)
ON CONFLICT (name) DO UPDATE SET position = excluded.position
"""
#: True if there are events between two positions. Then the reader was reset to a higher position, and skipped these
#: events.
_PASSED_OVER = (
    "SELECT EXISTS (SELECT FROM events_event WHERE stream_ordering > %(low)s AND stream_ordering <= %(high)s)"
)
_IN_STRETCH = "stream_ordering > %(low)s AND stream_ordering <= %(upto)s"
#: Users of this server: their IDs end with its name.
_LOCAL = "substr({user}, strpos({user}, ':') + 1) = %(server)s"
#: Inserts the entries of a range. Returns each user who got entries, the length of the feed, and the number of all new
#: entries.
_WRITE = f"""
WITH fresh AS MATERIALIZED (
  SELECT stream_ordering, room_id, type, state_key FROM events_event WHERE {_IN_STRETCH}
), member AS MATERIALIZED (
  SELECT c.room_id, c.state_key AS user_id FROM (SELECT DISTINCT room_id FROM fresh) AS room
  JOIN events_currentstate c USING (room_id)
  WHERE c.type = 'm.room.member' AND c.membership = 'join' AND {_LOCAL.format(user="c.state_key")}
  UNION
  SELECT d.room_id, d.state_key FROM (SELECT DISTINCT room_id FROM fresh) AS room
  JOIN events_currentstatedelta d USING (room_id)
  WHERE d.type = 'm.room.member' AND d.stream_ordering > %(low)s AND {_LOCAL.format(user="d.state_key")}
), entry AS (
  SELECT member.user_id, fresh.stream_ordering, room_id FROM fresh JOIN member USING (room_id)
  UNION
  SELECT state_key, stream_ordering, room_id FROM fresh
  WHERE type = 'm.room.member' AND state_key IS NOT NULL AND {_LOCAL.format(user="state_key")}
  UNION
  SELECT state_key, stream_ordering, room_id FROM events_currentstatedelta
  WHERE {_IN_STRETCH} AND type = 'm.room.member' AND {_LOCAL.format(user="state_key")}
), written AS (
  INSERT INTO events_feedentry (user_id, stream_ordering, room_id) SELECT * FROM entry
  ON CONFLICT (user_id, stream_ordering) DO NOTHING RETURNING user_id
)
INSERT INTO events_feed AS feed (user_id, complete_from, entries) SELECT user_id, %(low)s, count(*) FROM written GROUP BY user_id
ON CONFLICT (user_id) DO UPDATE SET entries = feed.entries + excluded.entries
RETURNING user_id, entries, (SELECT count(*) FROM written)
"""
#: The newest ``kept`` entries of a user stay. ``complete_from`` moves to the newest entry that is deleted. No entry is at or
#: below ``complete_from``. So the index is read from there on: below it, the entries of earlier cuts stay until a vacuum.
_CUT = """
WITH cut AS MATERIALIZED (
  SELECT user_id, complete_from, (
    SELECT stream_ordering FROM events_feedentry e WHERE e.user_id = feed.user_id AND e.stream_ordering > feed.complete_from
    ORDER BY stream_ordering DESC OFFSET %(kept)s LIMIT 1
  ) AS upto FROM events_feed feed WHERE user_id = ANY(%(users)s)
), gone AS (
  DELETE FROM events_feedentry e USING cut
  WHERE e.user_id = cut.user_id AND e.stream_ordering > cut.complete_from AND e.stream_ordering <= cut.upto
  RETURNING e.user_id
), counted AS (SELECT user_id, count(*) AS entries FROM gone GROUP BY user_id)
UPDATE events_feed feed SET complete_from = cut.upto, entries = feed.entries - counted.entries
FROM cut JOIN counted USING (user_id) WHERE feed.user_id = cut.user_id
"""
#: The position is deleted first. Code that writes feeds locks the row of the position. So this statement waits for
#: running writes, and new writes wait for this transaction.
_DROP = ("DELETE FROM events_feedposition", "DELETE FROM events_feed", "DELETE FROM events_feedentry")
_LOCK = "SELECT FROM events_feedposition WHERE name = %(name)s FOR UPDATE"
_DROP_ONE = (
    "DELETE FROM events_feed WHERE user_id = %(user)s",
    "DELETE FROM events_feedentry WHERE user_id = %(user)s",
)


@dataclass(frozen=True, slots=True)
class StreamRange:
    """A range of positions of the stream ``events``: ``low < position <= upto``. All positions in the range are complete."""

    low: int
    upto: int


@dataclass(frozen=True, slots=True)
class Written:
    """The result of ``write_feeds``: ``entries`` is the number of entries written, ``cut`` the number of feeds shortened.

    If ``began_anew`` is true, all feeds were deleted, and now have only entries from the range that was written.
    """

    entries: int = 0
    cut: int = 0
    began_anew: bool = False


def write_feeds(cursor: Any, stretch: StreamRange, server_name: str, limit: int) -> Written:
    """Adds the events of a range to the feeds. Afterwards every feed has at most ``limit`` entries.

    Call this function in the transaction that moves the caller's cursor on the stream. Events that are in the feeds
    already are ignored. If the stream has events between the range written last and this range, the feeds would lack
    these events. Then all feeds are deleted, and only the events of this range are added.
    """
    low, began_anew = _begin(cursor, stretch)
    if low >= stretch.upto:
        return Written()
    values = {"low": low, "upto": stretch.upto, "server": server_name}
    cursor.execute(_WRITE, values)
    rows = cursor.fetchall()
    long = [user_id for user_id, entries, _ in rows if entries > limit]
    if long:
        cursor.execute(_CUT, {"users": long, "kept": max(1, int(limit * _KEPT))})
    cursor.execute(_MOVE, {"name": FEEDS, "upto": stretch.upto})
    return Written(rows[0][2] if rows else 0, len(long), began_anew)


def drop_feeds(cursor: Any, user_id: str | None = None) -> None:
    """Deletes all feeds, or the feed of one user. Needs an open transaction.

    As long as a user has no feed, a sync of the user queries the user's rooms instead.
    """
    # Lock the row of the position first, as writers of feeds do. To delete all feeds, the first statement deletes that
    # row, which locks it too.
    if user_id is not None:
        cursor.execute(_LOCK, {"name": FEEDS})
    for statement in _DROP if user_id is None else _DROP_ONE:
        cursor.execute(statement, {"user": user_id})


def _begin(cursor: Any, stretch: StreamRange) -> tuple[int, bool]:
    """Returns (position up to which the feeds have all events, true if all feeds were deleted now).

    The caller adds the events of ``stretch`` that are above the position. All feeds are deleted if no position is
    stored, or if events between the last range and ``stretch`` were left out.
    """
    cursor.execute(_POSITION, {"name": FEEDS})
    row = cursor.fetchone()
    if row is None:
        drop_feeds(cursor)
        return stretch.low, True
    if stretch.low <= row[0]:  # repeated or overlapping: begin where the last range ended
        return row[0], False
    cursor.execute(_PASSED_OVER, {"low": row[0], "high": stretch.low})
    # Without such events, the positions between the ranges are empty, for example because transactions were rolled
    # back.
    if not cursor.fetchone()[0]:
        return row[0], False
    drop_feeds(cursor)
    return stretch.low, True
