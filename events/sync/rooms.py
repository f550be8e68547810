"""Reads the rooms of a sync: the first answer in pages, and then what is new since a token.

Each answer reads one snapshot of the database. The number of queries does not depend on the number of rooms. ``now`` is
the position at which the answer ends. The default is this process's position in the stream of events, taken before the
snapshot is opened.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from events.arguments import can_be_stored, checked_limit
from events.errors import InvalidQuery
from events.format.strict_json import decode_stored
from events.models import IgnoredUser
from events.reading.event_json import ServedEvent, load_events
from events.sync.answers import InitialSync, PendingRoom, RoomsSince, SyncRoom
from events.sync.memberships import Memberships, RoomMembership, read_memberships
from events.sync.sql import ACTIVITY, LAST_IN, PUT_OUT, rows, with_tokens
from events.sync.windows import LOWEST, Span, StateChanges, Timeline, Window, Windows
from events.tokens.positions import current_token, events_token, read_events_token, read_token, room_text, token_text
from events.tokens.sync_token import SyncToken
from events.visibility.access import read_access
from streams.conf import stream_settings
from streams.core.tokens import VectorToken
from streams.db.consistent_read import read_only_snapshot
from streams.runtime.gc_pause import collector_paused

__all__ = ["MOST_EVENTS", "MOST_ROOMS", "MOST_TOGETHER", "initial_sync", "rooms_since"]

MOST_ROOMS = 1_000
"""The most joined rooms on one page of an initial sync."""
MOST_EVENTS = 500
"""The most events of one timeline."""
MOST_TOGETHER = 20_000
"""The most events in all timelines of an answer together.

To stay below it, a page of a first answer has fewer rooms, and any other answer has fewer events for each room."""
_PAGE = re.compile(r"(-?[0-9]{1,19}):(.+)", re.DOTALL)
_STRIPPED = (
    *(
        "m.room.create",
        "m.room.join_rules",
        "m.room.canonical_alias",
        "m.room.avatar",
        "m.room.name",
        "m.room.encryption",
    ),
    "m.room.topic",
)
_MOST_STRIPPED = 100
_STRIPPED_STATE = """
SELECT room_id, event_id FROM events_currentstate
WHERE room_id = ANY(%(rooms)s) AND ((type = ANY(%(types)s) AND state_key = '')
  OR (type, state_key, room_id) IN (SELECT 'm.room.member', * FROM unnest(%(senders)s::text[], %(rooms)s::text[])))
"""


def initial_sync(
    user_id: str,
    rooms: int = 100,
    events: int = 20,
    after: str | None = None,
    using: str | None = None,
    now: SyncToken | None = None,
) -> InitialSync:
    """Returns a page of the user's joined rooms, those with the newest activity first, and the token of the next page.

    A page has at most ``rooms`` rooms (``MOST_ROOMS``), each with its last ``events`` visible events (``MOST_EVENTS``).
    ``after`` is ``next_page`` of the page before. All pages show the rooms as of the first page's token. This token is
    ``now``, or by default the present position. Later facts do not move rooms between pages, and come with the first
    incremental sync. Raises ``InvalidQuery``, ``TokenError`` and ``EpochChanged``.
    """
    alias = using or stream_settings().database
    rooms, events = checked_limit(rooms, MOST_ROOMS), checked_limit(events, MOST_EVENTS)
    rooms = min(rooms, MOST_TOGETHER // events)
    place = 2**63 - 1
    if after is not None:
        place, now = _page(after, alias)
    # ``now`` before the snapshot: a position is known after the commits that it covers, so the snapshot holds all of them.
    now = now or current_token(using=alias)
    upto = read_events_token(now)
    if not can_be_stored(user_id):
        return InitialSync((), (), (), now, None)
    with read_only_snapshot(alias), collector_paused():
        memberships = read_memberships(user_id, upto, None, alias)
        active = _by_activity([room.room_id for room in memberships.of("join")], upto, (place, rooms + 1), alias)
        page = [Window(room_id, LOWEST, upto.highest, whole=True) for room_id, _ in active[:rooms]]
        windows = Windows(user_id, page, Span(upto), alias)
        answers = _answers(windows, dict.fromkeys(windows.windows, "join"), events, topological=True)
        pending = memberships.of("invite", "knock") if after is None else []
        invited, knocked = _pending(user_id, pending, alias)
        left = _kicked_or_banned(user_id, memberships, Span(upto), events, alias) if after is None else ()
    next_page = f"{active[rooms - 1][1]}:{token_text(now, alias)}" if len(active) > rooms else None
    return InitialSync(tuple(answers), invited, knocked, now, next_page, left)


def rooms_since(  # noqa: PLR0913 - hints of the notifier
    user_id: str,
    since: str | SyncToken | VectorToken,
    now: VectorToken | None = None,
    limit: int = 20,
    changed_rooms: Collection[str] | None = None,
    using: str | None = None,
    *,
    memberships_changed: bool = False,
) -> RoomsSince:
    """Returns the news of the user's rooms after ``since``: at most ``limit`` events of each, and changes of state.

    A ``since`` ahead of ``now`` is reduced to ``now``. If ``changed_rooms`` is given, only these rooms are read: the
    caller knows that no other joined room has news (``events.notifier.notifier``). With ``memberships_changed`` the
    rooms in which the user's membership changed are read, too. Raises ``InvalidQuery``, ``TokenError`` and
    ``EpochChanged``.
    """
    alias = using or stream_settings().database
    limit = checked_limit(limit, MOST_EVENTS)
    now = now or events_token(alias)  # before the snapshot, which then has all facts that ``now`` covers
    span = Span(now, read_events_token(since, alias).intersect(now))
    if not can_be_stored(user_id):
        return RoomsSince(upto=now)
    with read_only_snapshot(alias), collector_paused():
        if changed_rooms is None or memberships_changed:
            memberships = read_memberships(user_id, now, span.since, alias, changed_rooms)
            windows = Windows(
                user_id, [*_joined_windows(memberships, span), *_left_windows(memberships, span)], span, alias
            )
            windows.drop_quiet()
        else:
            memberships = Memberships({room_id: RoomMembership(room_id, "join") for room_id in changed_rooms})
            windows = Windows(user_id, _joined_windows(memberships, span), span, alias)
        membership_of = {room_id: memberships.rooms[room_id].membership or "leave" for room_id in windows.windows}
        limit = min(limit, max(1, MOST_TOGETHER // max(1, len(windows.windows))))
        answers = _answers(windows, membership_of, limit)
        # If the event is the same as before, the client has it: only an older change, of another writer, came late.
        pending = [
            room
            for room in memberships.of("invite", "knock")
            if room.changed_at is not None and room.event_id != room.event_before
        ]
        invited, knocked = _pending(user_id, pending, alias)
    joined = tuple(room for room in answers if room.membership == "join" and _has_news(room))
    return RoomsSince(joined, tuple(room for room in answers if room.membership != "join"), invited, knocked, now)


def _has_news(room: SyncRoom) -> bool:
    return bool(room.timeline or room.limited or room.state or room.removed or room.whole)


# --- which rooms, and where to look -----------------------------------------------------------------------------------


def _page(after: object, using: str) -> tuple[int, SyncToken]:
    # (position below which the page begins, token of the first page)
    found = _PAGE.fullmatch(after) if isinstance(after, str) else None
    if found is None or abs(int(found[1])) >= 2**63:
        raise InvalidQuery(f"{after!r:.60} is no page of an initial sync; give next_page of the page before.")
    return int(found[1]), read_token(found[2], using)


def _by_activity(
    room_ids: Sequence[str], now: VectorToken, page: tuple[int, int], using: str
) -> Sequence[tuple[str, int]]:
    # (room, position of its last event), newest first. Positions are unique, so they divide rooms into pages.
    text, values = with_tokens(ACTIVITY, now)
    return rows(text, {**values, "rooms": list(room_ids), "place": page[0], "limit": page[1]}, using)


def _joined_windows(memberships: Memberships, span: Span) -> list[Window]:
    low, high = span.since.base if span.since is not None else LOWEST, span.now.highest
    return [
        Window(room.room_id, 0, high, whole=True) if room.joined_since else Window(room.room_id, low, high)
        for room in memberships.of("join")
    ]


def _left_windows(memberships: Memberships, span: Span) -> list[Window]:
    # Each ends with the leave or ban. If a user has left and was banned or invited later, the window has no state
    # changes from between.
    low = span.since.base if span.since is not None else LOWEST
    return [
        Window(
            *(room.room_id, low, room.changed_at),
            memberships_only=room.out_of_band,
            state_high=room.out_at,
            stateless=not room.was_joined,
        )
        for room in memberships.changed()
        if room.changed_at is not None and room.membership not in ("join", "invite", "knock")
    ]


def _kicked_or_banned(
    user_id: str, memberships: Memberships, span: Span, limit: int, using: str
) -> tuple[SyncRoom, ...]:
    # For a first answer, each up to the kick or ban, without forgotten rooms. The state is that at the position at
    # which the user was last joined; if this position is not stored, there is none.
    out = {room.event_id: room for room in memberships.of("leave", "ban") if room.event_id is not None}
    if not out:
        return ()
    placed = rows(PUT_OUT, {"user_id": user_id, "events": list(out)}, using)
    access = read_access(user_id, [room_id for room_id, *_ in placed], using)
    placed = [row for row in placed if not access[row[0]].forgotten]
    text, values = with_tokens(LAST_IN, span.now)
    last_in = dict(rows(text, {**values, "user_id": user_id, "rooms": [room_id for room_id, *_ in placed]}, using))
    windows = [
        Window(
            *(room_id, LOWEST, position),
            whole=True,
            memberships_only=out[event_id].out_of_band,
            state_high=last_in.get(room_id),
            stateless=room_id not in last_in,
        )
        for room_id, event_id, position in placed
    ]
    membership_of = {room_id: str(out[event_id].membership) for room_id, event_id, _ in placed}
    limit = min(limit, max(1, MOST_TOGETHER // max(1, len(windows))))
    return tuple(_answers(Windows(user_id, windows, span, using), membership_of, limit, topological=True))


# --- answers ----------------------------------------------------------------------------------------------------------


def _answers(
    windows: Windows, membership_of: Mapping[str, str], limit: int, *, topological: bool = False
) -> list[SyncRoom]:
    if not windows.windows:
        return []
    gaps = windows.after_gaps()  # first: it moves the windows that the next lines read
    timelines = windows.timelines(limit, topological=topological)
    changes = windows.changes()
    for room_id, before in windows.before(timelines).items():
        _put_before(changes[room_id], before, timelines[room_id], whole=windows.windows[room_id].whole)
    events = load_events([i for room in changes.values() for i in room.entries.values()], windows.using)
    found = []
    for room_id, window in windows.windows.items():
        timeline, change = timelines[room_id], changes[room_id]
        limited = timeline.more or room_id in gaps or (window.whole and not topological)
        is_stateless = window.memberships_only or window.stateless  # the user may not know the state
        found.append(
            SyncRoom(
                room_id,
                membership_of[room_id],
                tuple(timeline.events),
                limited,
                _prev_batch(windows, timeline, limited, topological=topological),
                () if is_stateless else tuple(events[i] for i in change.entries.values() if i in events),
                () if is_stateless else tuple(change.removed),
                window.whole,
            )
        )
    return found


def _put_before(
    change: StateChanges, before: Mapping[tuple[str, str], str | None], timeline: Timeline, *, whole: bool
) -> None:
    # At the keys that the timeline changes, the entries from before it, unless the client knows them or they are in it.
    shown = {event.event_id for event in timeline.events}
    for key, event_id in before.items():
        known = None if whole else change.known.get(key)
        change.entries.pop(key, None)
        if event_id is not None and event_id != known and event_id not in shown and (whole or key in change.known):
            change.entries[key] = event_id


def _prev_batch(windows: Windows, timeline: Timeline, limited: bool, *, topological: bool) -> str | None:
    # Right below the first event if the timeline is limited. Otherwise the client has all older events up to ``since``.
    since, now = windows.span.since, windows.span.now
    if timeline.events and topological:
        return timeline.events[0].token
    if timeline.events and (limited or since is None):
        return f"s{timeline.events[0].stream_ordering - 1}"
    return room_text(now if limited or since is None else since, windows.using)


# --- invites and knocks -----------------------------------------------------------------------------------------------


def _pending(
    user_id: str, pending: Sequence[RoomMembership], using: str
) -> tuple[tuple[PendingRoom, ...], tuple[PendingRoom, ...]]:
    # Invites of users whom the user ignores are left out.
    if not pending:
        return (), ()
    events = load_events([room.event_id for room in pending if room.event_id is not None], using)
    senders = {event.sender for event in events.values()} - {user_id}
    ignored = IgnoredUser.objects.using(using).filter(user_id=user_id, ignored_user_id__in=senders)
    without = set(ignored.values_list("ignored_user_id", flat=True)) if senders else ()
    known = [(room, events[room.event_id]) for room in pending if room.event_id in events]
    known = [(room, event) for room, event in known if event.sender not in without]
    stripped = _stripped_states([event for room, event in known if not room.out_of_band], using)
    found: dict[str, list[PendingRoom]] = {"invite": [], "knock": []}
    for room, event in known:
        membership = str(room.membership)
        state = (
            _stripped_state_of(event, membership) if room.out_of_band else [*stripped[room.room_id], _stripped(event)]
        )
        found[membership].append(PendingRoom(room.room_id, membership, event, tuple(state)))
    return tuple(found["invite"]), tuple(found["knock"])


def _stripped_states(memberships: Sequence[ServedEvent], using: str) -> dict[str, list[Mapping[str, Any]]]:
    # what an invited user may know, with the membership of the user who invites
    found: dict[str, list[Mapping[str, Any]]] = {event.room_id: [] for event in memberships}
    values = {"rooms": [e.room_id for e in memberships], "senders": [e.sender for e in memberships]}
    entries = rows(_STRIPPED_STATE, {**values, "types": list(_STRIPPED)}, using)
    events = load_events([event_id for _, event_id in entries], using)
    membership_ids = {event.event_id for event in memberships}
    for room_id, event_id in sorted(entries):
        if event_id in events and event_id not in membership_ids:
            found[room_id].append(_stripped(events[event_id]))
    return found


def _stripped(event: ServedEvent) -> Mapping[str, Any]:
    whole = event.client_event()
    return {name: whole.get(name) for name in ("type", "state_key", "content", "sender")}


def _stripped_state_of(event: ServedEvent, membership: str) -> Iterable[Mapping[str, Any]]:
    # as another server sent it with an invite or with the answer to a knock
    unsigned = (decode_stored(event.json) or {}).get("unsigned")
    sent = unsigned.get(f"{membership}_room_state") if isinstance(unsigned, dict) else None
    usable = [
        {name: entry.get(name) for name in ("type", "state_key", "content", "sender")}
        for entry in (sent if isinstance(sent, list) else [])[:_MOST_STRIPPED]
        if isinstance(entry, dict) and isinstance(entry.get("type"), str) and isinstance(entry.get("content"), dict)
    ]
    return [*usable, _stripped(event)]
