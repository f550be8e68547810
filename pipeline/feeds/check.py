"""Checks per-user feeds against the stream and repairs them.

The check finds missing entries, entries with a wrong room, and feeds whose stored length is wrong. An entry is reported
as missing only under two conditions: the user is joined to the room now, and the event is not older than the last
change of the user's membership in the room. The row with the position of the feeds is locked during the check. Code
that writes feeds locks this row too, so it waits for the end of the check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db import connections, transaction

from events.sync.feeds import FEEDS

__all__ = ["FeedsChecked", "check_feeds"]

_LOCK = "SELECT position FROM events_feedposition WHERE name = %(name)s FOR UPDATE"
_MISSING = """
SELECT c.state_key, e.stream_ordering, e.room_id FROM events_currentstate c
JOIN events_feed f ON f.user_id = c.state_key
CROSS JOIN LATERAL (
  SELECT coalesce(
    (SELECT max(d.stream_ordering) FROM events_currentstatedelta d
     WHERE d.type = 'm.room.member' AND d.state_key = c.state_key AND d.room_id = c.room_id),
    (SELECT m.stream_ordering FROM events_event m WHERE m.event_id = c.event_id)
  ) AS position
) AS since
JOIN events_event e ON e.room_id = c.room_id AND e.stream_ordering > f.complete_from
  AND e.stream_ordering >= since.position AND e.stream_ordering <= %(position)s AND NOT e.outlier
WHERE c.type = 'm.room.member' AND c.membership = 'join' AND (%(rooms)s::text[] IS NULL OR c.room_id = ANY(%(rooms)s::text[]))
  AND NOT EXISTS (SELECT FROM events_feedentry l WHERE l.user_id = c.state_key AND l.stream_ordering = e.stream_ordering)
"""
_WRONG_ROOM = """
SELECT l.user_id, l.stream_ordering, e.room_id FROM events_feedentry l JOIN events_event e USING (stream_ordering)
WHERE l.room_id <> e.room_id AND (%(rooms)s::text[] IS NULL OR e.room_id = ANY(%(rooms)s::text[]))
"""
_PUT = """
INSERT INTO events_feedentry (user_id, stream_ordering, room_id)
SELECT * FROM unnest(%(users)s::text[], %(positions)s::bigint[], %(rooms)s::text[])
ON CONFLICT (user_id, stream_ordering) DO UPDATE SET room_id = excluded.room_id
"""
_COUNTS = """
SELECT f.user_id, counted.entries FROM events_feed f CROSS JOIN LATERAL (
  SELECT count(*) AS entries FROM events_feedentry l WHERE l.user_id = f.user_id
) AS counted WHERE counted.entries <> f.entries
"""
_COUNT = f"UPDATE events_feed f SET entries = wrong.entries FROM ({_COUNTS}) AS wrong WHERE f.user_id = wrong.user_id"


@dataclass(frozen=True, slots=True)
class FeedsChecked:
    """The numbers of missing entries, of entries with a wrong room, and of feeds whose stored length was wrong."""

    missing: int = 0
    wrong_room: int = 0
    wrong_length: int = 0

    @property
    def total(self) -> int:
        """The number of all differences together."""
        return self.missing + self.wrong_room + self.wrong_length


def check_feeds(rooms: Sequence[str] | None, using: str, *, dry_run: bool) -> FeedsChecked:
    """Compares the feeds with the stream, in one transaction, and repairs them unless ``dry_run``.

    ``rooms`` limits the comparison of entries; None means all rooms. Stored lengths are always compared for all feeds.
    """
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(_LOCK, {"name": FEEDS})
        row = cursor.fetchone()
        if row is None:
            return FeedsChecked()
        values = {"position": row[0], "rooms": None if rooms is None else list(rooms)}
        found = []
        for query in (_MISSING, _WRONG_ROOM):
            cursor.execute(query, values)
            found.append(cursor.fetchall())
        cursor.execute(_COUNTS)
        lengths = len(cursor.fetchall())
        if not dry_run:
            wrong = [*found[0], *found[1]]
            columns = list(zip(*wrong, strict=True)) or [(), (), ()]
            named = dict(zip(("users", "positions", "rooms"), map(list, columns), strict=True))
            cursor.execute(_PUT, named)
            cursor.execute(_COUNT)
        return FeedsChecked(len(found[0]), len(found[1]), lengths)
