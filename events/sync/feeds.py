"""Reading per-user feeds: where to look for what is new to a user, without asking each of many rooms.

A feed lists positions (``events.models.feeds``; written behind the stream by ``pipeline.feeds.write``). Beyond its position the
tail of the stream itself is read. What is found there are places to look at and nothing more: the event that is there now, and
whether the user may see it, is for the reader to decide, so the answer is that of asking the rooms. A feed that is not there,
was cut above the token, or is too far behind gives no answer.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from events.sync.prepared import rows as query_rows
from streams.core.tokens import VectorToken

__all__ = ["FEEDS", "LONGEST_TAIL", "Listed", "listed_since"]

FEEDS = "feeds"
"""The reader that writes feeds, and the name of their position."""
LONGEST_TAIL = 2_000
"""A feed is no help when more events than these came after it was written: of all rooms, most are not the user's."""
_PAGES_GROW = 4

_ENTRIES = """
SELECT p.position, e.stream_ordering, e.room_id FROM events_feed f CROSS JOIN events_feedposition p
LEFT JOIN LATERAL (
  SELECT stream_ordering, room_id FROM events_feedentry e
  WHERE e.user_id = f.user_id AND e.stream_ordering > %(after)s AND e.stream_ordering <= least(p.position, %(upto)s)
  ORDER BY stream_ordering LIMIT %(limit)s
) AS e ON true
WHERE f.user_id = %(user_id)s AND f.complete_from <= %(since)s AND p.name = %(name)s ORDER BY e.stream_ordering
"""
_TAIL = """
SELECT stream_ordering, room_id FROM events_event WHERE stream_ordering > %(after)s AND stream_ordering <= %(upto)s
ORDER BY stream_ordering LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class Listed:
    """Where the oldest events of the asked rooms are: (position, room), ascending."""

    places: tuple[tuple[int, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.places)

    @property
    def positions(self) -> list[int]:
        """The positions alone."""
        return [position for position, _ in self.places]

    @property
    def rooms(self) -> frozenset[str]:
        """The rooms of all places."""
        return frozenset(room_id for _, room_id in self.places)

    def first(self, count: int) -> Listed:
        """The first of them."""
        return Listed(self.places[:count])


def listed_since(
    user_id: str, rooms: Collection[str], span: tuple[VectorToken, VectorToken], limit: int, using: str
) -> Listed | None:
    """What happened in these rooms between two tokens, by the user's feed and the tail beyond it; null when it cannot tell.

    The oldest ``limit`` places, or all there are. The user must have been joined to the rooms all the time in between. Called
    in a view that holds everything that the second token covers (``streams.db.consistent_read``).
    """
    since, now = span
    values = {"user_id": user_id, "name": FEEDS, "since": since.base, "upto": now.highest}
    asked, after, page = frozenset(rooms), since.base, limit
    places: list[tuple[int, str]] = []
    while True:
        found = query_rows(_ENTRIES, values | {"after": after, "limit": page}, using)
        if not found:
            return None
        written = found[0][0]
        entries = [(position, room_id) for _, position, room_id in found if position is not None]
        places += [place for place in entries if place[1] in asked]
        if len(places) >= limit:
            return Listed(tuple(places[:limit]))
        if len(entries) < page:
            break
        after, page = entries[-1][0], page * _PAGES_GROW  # entries of other rooms stand between
    tail = query_rows(_TAIL, values | {"after": max(written, since.base), "limit": LONGEST_TAIL + 1}, using)
    if len(tail) > LONGEST_TAIL:
        return None
    places += [place for place in tail if place[1] in asked]
    return Listed(tuple(places[:limit]))
