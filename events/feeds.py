"""Reading per-user feeds: where to look for what is new to a user, without asking each of many rooms.

A feed lists positions (``events.feed_models``; written behind the stream by ``pipeline.feeds``). Beyond its position the tail of
the stream itself is read. What is found there are places to look at and nothing more: the event that is there now, and whether
the user may see it, is for the reader to decide, so the answer is that of asking the rooms. A feed that is
not there, was cut above the token, or is too far behind gives no answer.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from streams.tokens import VectorToken

__all__ = ["FEEDS", "LONGEST_TAIL", "Listed", "listed_since"]

FEEDS = "feeds"
"""The reader that writes feeds, and the name of their position."""
LONGEST_TAIL = 2_000
"""A feed is no help when more events than these came after it was written: of all rooms, most are not the user's."""

_FEED = """
SELECT p.position FROM events_feed f CROSS JOIN events_feedposition p
WHERE f.user_id = %(user_id)s AND f.complete_from <= %(since)s AND p.name = %(name)s
"""
_LISTED = """
(SELECT room_id, stream_ordering, false FROM events_feedentry
 WHERE user_id = %(user_id)s AND stream_ordering > %(since)s AND stream_ordering <= least(%(position)s, %(upto)s)
   AND room_id = ANY(%(rooms)s)
 ORDER BY stream_ordering LIMIT %(limit)s)
UNION ALL
(SELECT room_id, stream_ordering, true FROM events_event
 WHERE stream_ordering > greatest(%(position)s, %(since)s) AND stream_ordering <= %(upto)s
 ORDER BY stream_ordering LIMIT %(tail)s)
"""


@dataclass(frozen=True, slots=True)
class Listed:
    """Where the oldest events of the asked rooms are, at least ``limit`` of all together, or all there are."""

    positions: tuple[int, ...]
    rooms: frozenset[str]


def listed_since(
    cursor: Any, user_id: str, rooms: Collection[str], span: tuple[VectorToken, VectorToken], limit: int
) -> Listed | None:
    """What happened in these rooms between two tokens, by the user's feed and the tail beyond it; null when it cannot tell.

    The user must have been joined to the rooms all the time in between. ``cursor`` is one that sees everything that the
    second token covers (``streams.one_view``).
    """
    since, now = span
    values: dict[str, Any] = {"user_id": user_id, "name": FEEDS, "since": since.base, "upto": now.highest}
    cursor.execute(_FEED, values)
    row = cursor.fetchone()
    if row is None:
        return None
    cursor.execute(
        _LISTED, values | {"position": row[0], "limit": limit, "tail": LONGEST_TAIL + 1, "rooms": list(rooms)}
    )
    found = cursor.fetchall()
    places = [(position, room_id) for room_id, position, is_tail in found if not is_tail]
    if len(places) < limit:
        if len(found) - len(places) > LONGEST_TAIL:
            return None
        asked = frozenset(rooms)
        places += [(position, room_id) for room_id, position, is_tail in found if is_tail and room_id in asked]
    return Listed(tuple(sorted(position for position, _ in places)), frozenset(room_id for _, room_id in places))
