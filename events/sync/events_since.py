"""Reads new events for a user in stream order: the simplest way to follow what a user may see.

The result has the visible events of joined rooms, and the user's own memberships in any room: invites, kicks, bans, and
invites from other servers. Of a room that the user has left, the result has the events up to the leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from events.arguments import can_be_stored, checked_limit
from events.notifier import notifier
from events.reading.event_json import ServedEvent
from events.sync.answers import NewEvents
from events.sync.feeds import FeedPlaces, feed_places_since
from events.sync.memberships import Memberships, read_memberships
from events.sync.windows import Span, Window, Windows, examined_events
from events.tokens.positions import read_events_token
from events.tokens.sync_token import SyncToken
from streams.conf import stream_settings
from streams.core.tokens import VectorToken
from streams.db.consistent_read import read_only_snapshot

__all__ = ["MOST_NEW_EVENTS", "events_since"]

MOST_NEW_EVENTS = 1_000
"""The most events of one answer."""
ROOMS_WORTH_A_FEED = 50
"""The number of rooms from which on the feed is used. With fewer rooms, each room is queried."""
Found = tuple[list[ServedEvent], int | None]


def events_since(
    user_id: str,
    since: str | SyncToken | VectorToken,
    limit: int = 100,
    now: VectorToken | None = None,
    using: str | None = None,
) -> NewEvents:
    """Returns at most ``limit`` events after ``since``, oldest first, and the token to continue from.

    Without ``now``, the notifier (``events.notifier.notifier``) decides from memory whether anything is new. If
    ``since`` is ahead of this process's position, the process's position is used instead. Raises ``InvalidQuery``,
    ``TokenError`` and ``EpochChanged``.
    """
    alias = using or stream_settings().database
    limit = checked_limit(limit, MOST_NEW_EVENTS)
    low = read_events_token(since, alias)
    if not can_be_stored(user_id):
        return NewEvents((), low, False)
    changed: frozenset[str] | None = None
    if now is None:
        look = notifier.look(user_id, low, alias)
        now = look.now
        if look.nothing:
            return NewEvents((), now, False)
        changed = None if look.memberships_changed else look.changed
    return _read(user_id, Span(now, low.meet(now)), limit, changed, alias)


def _read(user_id: str, span: Span, limit: int, changed: frozenset[str] | None, using: str) -> NewEvents:
    """Returns the events of a span. ``changed`` are the joined rooms that may have new events.

    If ``changed`` is None, the user's memberships may have changed, and are read first. For many rooms, the user's feed
    (if it exists) lists the events to read. The result is the same without a feed.
    """
    low = span.since or span.now
    with read_only_snapshot(using):
        if changed is None:
            memberships = read_memberships(user_id, span.now, low, using)
            rooms = _windows(memberships, span)
            # Only rooms that the user was in throughout: a room joined meanwhile also shows events that its feed entries lack.
            changed = frozenset(room.room_id for room in memberships.of("join") if room.changed_at is None)
        else:
            rooms = [Window(room_id, low.base, span.now.highest) for room_id in sorted(changed)]
        listed = None
        if len(changed) >= ROOMS_WORTH_A_FEED:
            listed = feed_places_since(user_id, changed, (low, span.now), examined_events(limit), using)
        reader = _Reader(user_id, span, using)
        if listed is None:
            events, upto = reader.read(rooms, limit)
        else:
            events, upto = reader.read_listed([w for w in rooms if w.room_id not in changed], listed, limit)
    token = span.now if upto is None else low.after_partial_read(span.now, upto)
    return NewEvents(tuple(events), token, upto is not None)


@dataclass(frozen=True, slots=True)
class _Reader:
    """A reader of the oldest events that a user may see in some rooms.

    Each method returns (events, position up to which the rooms were examined). The position is null if all rooms were
    examined to their ends.
    """

    user_id: str
    span: Span
    using: str

    def read(self, rooms: Sequence[Window], limit: int, listed: FeedPlaces | None = None) -> Found:
        places = listed.places if listed is not None else ()
        return Windows(self.user_id, rooms, self.span, self.using).in_order(limit, places)

    def read_listed(self, rooms: Sequence[Window], listed: FeedPlaces, limit: int) -> Found:
        """Reads the windows, together with the events at the places (position, room) that a feed lists.

        Reads only a few of these places at first, the oldest, because these nearly always have enough events.
        """
        few = limit + 1 + max(10, limit // 4)
        if len(listed.places) > few:
            part = listed.first(few)
            end = part.places[-1][0]  # unlisted windows are read only this far, so that the order of both is kept
            events, upto = self._at(part, [replace(w, high=min(w.high, end)) for w in rooms if w.low < end], limit)
            if len(events) == limit and upto == events[-1].stream_ordering:  # the limit ended the reading
                return events, upto
        return self._at(listed, rooms, limit)

    def _at(self, listed: FeedPlaces, rooms: Sequence[Window], limit: int) -> Found:
        low, high = (self.span.since or self.span.now).base, self.span.now.highest
        places = [Window(room_id, low, high, listed=True) for room_id in sorted(listed.rooms)]
        return self.read([*rooms, *places], limit, listed)


def _windows(memberships: Memberships, span: Span) -> list[Window]:
    """Returns windows of joined rooms, and windows of rooms in which the user's membership changed."""
    low = (span.since or span.now).base
    found = []
    for room in memberships.rooms.values():
        if room.membership == "join":
            found.append(Window(room.room_id, low, span.now.highest))
        elif room.changed_at is not None:
            out = room.membership in ("leave", "ban") and not room.out_of_band
            found.append(Window(room.room_id, low, room.changed_at, own_only=not (room.was_in or out)))
    return found
