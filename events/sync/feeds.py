"""Reads the feed of a user: where something is new for the user, without a query for each of many rooms.

A feed lists positions (``events.models.feeds``), and ``pipeline.feeds.write`` writes it some time after the events.
Above the position up to which feeds are written, the stream itself is read (the *tail*). The result is only a list of
places (position, room). The caller reads the event that is stored now at each place, and decides whether the user may
see it. So the caller's answer is the same as if all rooms had been queried. There is no result if the feed does not
exist, begins above the token, or is too far behind.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from events.sync.prepared import rows as query_rows
from streams.core.tokens import VectorToken

__all__ = ["FEEDS", "LONGEST_TAIL", "FeedPlaces", "feed_places_since"]

FEEDS = "feeds"
"""The name of the reader that writes feeds, and of their stored position."""
LONGEST_TAIL = 2_000
"""The most events of the tail. If it is longer, the feed is not used: most events of the tail are of other rooms."""
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
class FeedPlaces:
    """The places (position, room) that the user's feed and its tail list for some rooms: the oldest ones, ascending."""

    places: tuple[tuple[int, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.places)

    @property
    def positions(self) -> list[int]:
        return [position for position, _ in self.places]

    @property
    def rooms(self) -> frozenset[str]:
        return frozenset(room_id for _, room_id in self.places)

    def first(self, count: int) -> FeedPlaces:
        return FeedPlaces(self.places[:count])


def feed_places_since(
    user_id: str, rooms: Collection[str], span: tuple[VectorToken, VectorToken], limit: int, using: str
) -> FeedPlaces | None:
    """Returns the oldest ``limit`` places, in these rooms and between two tokens, from the user's feed and the tail above it.

    Returns null when the feed cannot answer. Assumes that the user was joined to the rooms all the time in between.
    Assumes a snapshot that includes everything that the second token covers (``streams.db.consistent_read``).
    """
    since, now = span
    values = {"user_id": user_id, "name": FEEDS, "since": since.base, "upto": now.highest}
    asked, after, page = frozenset(rooms), since.base, limit
    places: list[tuple[int, str]] = []
    while True:
        found = query_rows(_ENTRIES, values | {"after": after, "limit": page}, using)
        if not found:  # no feed, or it begins above the token; a feed without entries gives one row of nulls
            return None
        written = found[0][0]
        entries = [(position, room_id) for _, position, room_id in found if position is not None]
        places += [place for place in entries if place[1] in asked]
        if len(places) >= limit:
            return FeedPlaces(tuple(places[:limit]))
        if len(entries) < page:
            break
        after, page = entries[-1][0], page * _PAGES_GROW  # some entries were of other rooms, so read on
    tail = query_rows(_TAIL, values | {"after": max(written, since.base), "limit": LONGEST_TAIL + 1}, using)
    if len(tail) > LONGEST_TAIL:
        return None
    places += [place for place in tail if place[1] in asked]
    return FeedPlaces(tuple(places[:limit]))
