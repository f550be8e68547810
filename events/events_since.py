"""New events for a user, in the order in which they came: the plainest way to follow what a user may see.

Beside the visible events of joined rooms come the user's own memberships in any room: invites, kicks, bans, invites from
other servers. A room that the user has left is told up to the leave.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from events import hot
from events.feeds import Listed, listed_since
from events.questions import can_be_stored, checked_limit
from events.sync_answers import NewEvents
from events.sync_memberships import Memberships, read_memberships
from events.sync_positions import read_events_token
from events.sync_token import SyncToken
from events.sync_windows import Span, Window, Windows, looked_at
from streams.conf import stream_settings
from streams.one_view import one_view
from streams.tokens import VectorToken

__all__ = ["MOST_NEW_EVENTS", "events_since"]

MOST_NEW_EVENTS = 1_000
"""Events of one answer."""
ROOMS_WORTH_A_FEED = 50
"""With fewer rooms to look at each of them is asked."""


def events_since(
    user_id: str,
    since: str | SyncToken | VectorToken,
    limit: int = 100,
    now: VectorToken | None = None,
    using: str | None = None,
) -> NewEvents:
    """At most ``limit`` events that came after ``since``, oldest first, and the token to go on from.

    Without ``now`` this process's caches say whether there is anything new, from memory (``events.hot``). A ``since`` ahead
    of what is known here is taken back to that. Raises ``BadQuestion``, ``TokenError`` and ``EpochChanged``.
    """
    alias = using or stream_settings().database
    limit = checked_limit(limit, MOST_NEW_EVENTS)
    low = read_events_token(since, alias)
    if not can_be_stored(user_id):
        return NewEvents((), low, False)
    changed: frozenset[str] | None = None
    if now is None:
        look = hot.look(user_id, low, alias)
        now = look.now
        if look.nothing:
            return NewEvents((), now, False)
        changed = None if look.memberships_changed else look.changed
    return _read(user_id, Span(now, low.meet(now)), limit, changed, alias)


def _read(user_id: str, span: Span, limit: int, changed: frozenset[str] | None, using: str) -> NewEvents:
    """``changed``: joined rooms that may have something new, when the user's memberships are what they were.

    Many rooms are looked at by the user's feed, if there is one: what is found there is the same.
    """
    low = span.since or span.now
    with one_view(using) as cursor:
        if changed is None:
            memberships = read_memberships(user_id, span.now, low, using)
            rooms = _windows(memberships, span)
            changed = frozenset(room.room_id for room in memberships.of("join") if room.changed_at is None)
        else:
            rooms = [Window(room_id, low.base, span.now.highest) for room_id in sorted(changed)]
        positions: tuple[int, ...] = ()
        if len(changed) >= ROOMS_WORTH_A_FEED:
            listed = listed_since(cursor, user_id, changed, (low, span.now), looked_at(limit))
            if listed is not None:
                positions, rooms = listed.positions, list(_by_feed(rooms, changed, listed))
        events, upto = Windows(user_id, rooms, span, using).in_order(limit, positions)
    token = span.now if upto is None else low.after_partial_read(span.now, upto)
    return NewEvents(tuple(events), token, upto is not None)


def _by_feed(rooms: Iterable[Window], steady: Collection[str], listed: Listed) -> Iterator[Window]:
    """Rooms where the user was all the time are looked at only where the feed lists something."""
    for window in rooms:
        if window.room_id not in steady:
            yield window
        elif window.room_id in listed.rooms:
            yield replace(window, listed=True)


def _windows(memberships: Memberships, span: Span) -> list[Window]:
    """Where to look: joined rooms, and those whose membership changed."""
    low = (span.since or span.now).base
    found = []
    for room in memberships.rooms.values():
        if room.membership == "join":
            found.append(Window(room.room_id, low, span.now.highest))
        elif room.changed_at is not None:
            found.append(Window(room.room_id, low, room.changed_at, own_only=not room.was_in))
    return found
