"""Reads rooms for users: a page of history, the events around an event, and which of some events a user sees.

    page = timeline("!room:a", "@ann:a")                        # the newest events that Ann sees
    page = timeline("!room:a", "@ann:a", before=page.end)       # older ones

Each answer comes from one snapshot, except for ``Around.state``. A single query reads both a page and the user's access
to the room. Events are redacted and pruned as the user may see them, and carry both orderings. Reads use the given
database alias.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from django.db import connections

from events.arguments import can_be_stored, checked_ids, checked_limit
from events.errors import InvalidQuery, NotReadable, UnknownEvent, UnknownRoom
from events.models import Event, Room
from events.reading.event_json import ServedEvent, served
from events.reading.page_sql import FOR_USER, FROM_LEAVE, LARGEST, ROWS_READ, SIDES, UNFILTERED
from events.reading.page_tokens import OLDEST, Start, start_of
from events.reading.served_sql import SERVED, SERVED_JSON, SERVED_TYPES
from events.reading.state_at import State, state_after, state_at
from events.visibility.access import Access, access_of, access_parameters, access_to_events, require_readable
from events.visibility.explain import Explanation, explain_visibility
from events.visibility.predicate_sql import ACCESS_ROWS, pruned, sees
from events.visibility.rule import Rule
from state.groups.filters import EVERYTHING, StateFilter
from streams.db.consistent_read import read_only_snapshot
from streams.db.driver import Statement, is_repeated, send_together

__all__ = ["OLDEST", "PAGE_LIMIT", "Around", "Page", "events_around", "timeline", "visible_to"]

PAGE_LIMIT = ROWS_READ
"""The most events of one page. If the requested limit is larger, this limit applies."""
IDS_LIMIT = 10_000
"""The most events of one call of ``visible_to``."""
_ACCESS_COLUMNS = 10
_IDS_PER_QUERY = 1_000
_IDS_OF_ONE_PLAN = 100
"""For more events the plan depends on their number, and is made each time. It must not compare each with each room."""

#: The events among some IDs that a user sees.
_VISIBLE = f"""
SELECT {SERVED}, e.pruned FROM (
  SELECT e.*, {pruned()} AS pruned FROM events_event e JOIN {ACCESS_ROWS} a ON a.room_id = e.room_id
  WHERE e.event_id = ANY(%(ids)s::text[]) AND {sees()}
) AS e {SERVED_JSON}
"""


@dataclass(frozen=True, slots=True)
class Page:
    """Some events of a room in the order of reading: newest first going back, oldest first going forward.

    ``end`` is the token at which the next page begins: the place of the last event that was *examined*. It is None on
    the last page. So a page may be empty and have an ``end``; then it is not the last page.
    """

    events: tuple[ServedEvent, ...]
    end: str | None


@dataclass(frozen=True)
class Around:
    """An event with the events before it (newest first) and after it (oldest first).

    ``start`` is the token from which to read further back, and ``end`` the token from which to read further forward.
    """

    event: ServedEvent
    before: tuple[ServedEvent, ...]
    after: tuple[ServedEvent, ...]
    start: str | None
    end: str | None
    _read_state: Callable[[], State] = field(repr=False, compare=False)

    @cached_property
    def state(self) -> State:
        """The room's state after the last event of this object, as event IDs.

        The state is read only when this property is first used, because many callers do not need it. If the user was
        not in the room at that event, and the room was not open to them, the state has only the entries that the user
        sees. Raises ``StateUnresolved``, and ``UnknownEvent`` if the event was purged meanwhile.
        """
        return self._read_state()


def timeline(
    room_id: str,
    user_id: str | None = None,
    limit: int = 100,
    *,
    before: str | None = None,
    after: str | None = None,
    using: str = "default",
) -> Page:
    """Returns a page of a room as the user sees it: the newest events, or the events ``before`` or ``after`` a token.

    Without ``user_id`` the page has all events except outliers, rejected events and soft-failed events. A user who left
    sees nothing after their leave. For such a user a page that goes back begins at the leave. It skips events on
    another branch of the graph that are deeper than the leave. ``after=OLDEST`` begins at the start of the room. Tokens
    of pages, events and syncs are accepted. Raises ``UnknownRoom``, ``NotReadable``, ``BadToken`` and ``InvalidQuery``.
    """
    if before is not None and after is not None:
        raise InvalidQuery("Give before (going back) or after (going on), not both.")
    start = start_of(before if after is None else after, back=after is None, using=using)
    query = FROM_LEAVE if start.back else FOR_USER[False]
    return _page(room_id, user_id, checked_limit(limit, PAGE_LIMIT), start, using, query)


def timeline_of(
    user_id: str, room_id: str, limit: int = 100, before: str | None = None, using: str = "default"
) -> Sequence[ServedEvent]:
    """Returns the last ``limit`` events of a room that the user sees, newest first, below the token ``before``.

    Reads pages until it has ``limit`` events or the room has no more. Meant for commands and tests; services read page
    by page. Raises the errors of ``timeline``.
    """
    found: list[ServedEvent] = []
    while len(found) < limit:
        page = timeline(room_id, user_id, min(limit - len(found), PAGE_LIMIT), before=before, using=using)
        found += page.events
        before = page.end
        if before is None:
            break
    return found


def events_around(
    event_id: str, user_id: str, limit: int = 10, using: str = "default", only: StateFilter = EVERYTHING
) -> Around:
    """Returns an event with visible events before and after it, and the state after the last returned event.

    Each side has at most half of ``limit`` events. The state is reduced to what ``only`` accepts, and read when it is
    first used. Raises ``UnknownEvent`` also for an event that the user does not see. So the error does not reveal that
    the event exists.
    """
    half = checked_limit(limit, PAGE_LIMIT) // 2
    with read_only_snapshot(using):
        event = visible_to(user_id, [event_id], using).get(event_id)
        if event is None:
            raise UnknownEvent(f"There is no event {event_id!r:.300} that {user_id:.300} sees.")
        before = after = Page((), event.token)
        if half:
            before, after = _sides(event, user_id, half, using)
    last = (event, *after.events)[-1]
    state = partial(_state_for, user_id, last.event_id, using, only)
    return Around(event, before.events, after.events, before.end, after.end, state)


def visible_to(user_id: str, event_ids: Iterable[str], using: str = "default") -> dict[str, ServedEvent]:
    """Returns, by ID and in the order given, the events among these that the user sees. They may be of any rooms.

    Unknown events, hidden events, and events in rooms that the user may not read are all left out in the same way.
    Raises ``InvalidQuery`` for more than ``IDS_LIMIT`` events.
    """
    wanted = checked_ids(event_ids, IDS_LIMIT)
    found: dict[str, ServedEvent] = {}
    if can_be_stored(user_id):
        with read_only_snapshot(using):
            found = _seen_of(user_id, wanted, using)
    return {event_id: found[event_id] for event_id in wanted if event_id in found}


def _state_for(user_id: str, event_id: str, using: str, only: StateFilter) -> State:
    with read_only_snapshot(using):
        state = state_after(event_id, using, only)
        if _knows_state(user_id, event_id, using):
            return state
        seen = _seen_of(user_id, list(state.values()), using)
        return {key: entry for key, entry in state.items() if entry in seen}


def _knows_state(user_id: str, event_id: str, using: str) -> bool:
    # Of an event that they see: they were joined at it, it is their own leave, or the room was open to them.
    (found,) = explain_visibility(user_id, [event_id], using)
    if not isinstance(found, Explanation):
        return False
    if found.rule is Rule.OWN_LEAVE:
        member = ("m.room.member", user_id)
        before = (state_at(event_id, using, StateFilter.at([member])).before or {}).get(member)
        return Event.objects.using(using).filter(event_id=before, membership="join").exists()
    open_to_user = found.history_visibility == "world_readable" or (
        found.history_visibility == "shared" and not found.peeking
    )
    return open_to_user or found.rule is Rule.JOINED


def _seen_of(user_id: str, event_ids: Sequence[str], using: str) -> dict[str, ServedEvent]:
    found: dict[str, ServedEvent] = {}
    for first in range(0, len(event_ids), _IDS_PER_QUERY):
        part = event_ids[first : first + _IDS_PER_QUERY]
        values = access_parameters(user_id, access_to_events(user_id, part, using).values()) | {"ids": list(part)}
        rows = _rows(_VISIBLE, values, using, again=len(part) <= _IDS_OF_ONE_PLAN)
        found.update((row[0], served(row, pruned=row[len(SERVED_TYPES)])) for row in rows)
    return found


# --- pages ------------------------------------------------------------------------------------------------------------


def _page(room_id: str, user_id: str | None, limit: int, start: Start, using: str, query: str | None = None) -> Page:
    where = _bounds(start) | {"room": room_id, "user_id": user_id, "wanted": limit, "kept_since": None}
    if not can_be_stored(room_id):
        raise UnknownRoom(f"There is no room {room_id!r:.300}.")
    if user_id is None:
        rows = _unfiltered_rows(room_id, where, start.back, using)
    elif can_be_stored(user_id):
        rows = _rows_for_user(room_id, user_id, where, query or FOR_USER[start.back], using)
    else:
        raise NotReadable(f"{user_id!r:.300} is no user, and may not read {room_id}.")
    return _page_of(rows, limit, start.back)


def _sides(event: ServedEvent, user_id: str, limit: int, using: str) -> tuple[Page, Page]:
    start = Start(event.topological_ordering, event.stream_ordering, back=True)
    where = _bounds(start) | {"room": event.room_id, "user_id": user_id, "wanted": limit}
    rows = _rows_for_user(event.room_id, user_id, where, SIDES, using)
    before, after = ([row[:-1] for row in rows if row[-1] is back] for back in (True, False))
    return _page_of(before, limit, back=True), _page_of(after, limit, back=False)


def _bounds(start: Start) -> dict[str, Any]:
    entries = start.covered.entries if start.covered is not None else {}
    base = start.covered.base if start.covered is not None else LARGEST if start.back else -LARGEST
    place = {"topological": start.topological, "stream": start.stream, "base": base}
    return place | {"writers": list(entries), "positions": list(entries.values())}


def _unfiltered_rows(room_id: str, where: Mapping[str, Any], back: bool, using: str) -> list[tuple[Any, ...]]:
    unused = dict.fromkeys(("peeking", "recorded", "cut", "cut_depth"))
    # Not planned once, because a plan for a room of average size would sort all events of a large room.
    rows = _rows(UNFILTERED[back], {**where, **unused}, using, again=False)
    if rows[0][0] is None and not Room.objects.using(using).filter(room_id=room_id).exists():
        raise UnknownRoom(f"There is no room {room_id!r:.300}.")
    return rows


def _rows_for_user(
    room_id: str, user_id: str, where: Mapping[str, Any], query: str, using: str
) -> list[tuple[Any, ...]]:
    now_ms = time.time_ns() // 1_000_000
    kept_since: int | None = None
    # The query reads the room's retention together with the page, so the first run does not know it yet. It runs again until
    # the retention that a run used is the retention that it read.
    while True:
        rows = _rows(query, {**where, "kept_since": kept_since}, using)
        access: Access | None = access_of(rows[0][:_ACCESS_COLUMNS], now_ms) if rows else None
        if require_readable(access, user_id, room_id).kept_since == kept_since:
            return [row[_ACCESS_COLUMNS:] for row in rows]
        kept_since = access.kept_since if access is not None else None


def _rows(query: str, values: Mapping[str, Any], using: str, *, again: bool = True) -> list[tuple[Any, ...]]:
    # ``again``: a session that repeats the query plans it once
    connection = connections[using]
    return send_together(connection, [Statement(query, values, again=again and is_repeated(connection, query))])


def _page_of(rows: Sequence[tuple[Any, ...]], limit: int, back: bool) -> Page:
    *_, topological, stream = rows[0]  # an empty page is one row of nulls
    events = [served(row, pruned=row[len(SERVED_TYPES)]) for row in rows if row[0] is not None]
    # The query adds JSON to the page without ORDER BY.
    events.sort(key=lambda event: (event.topological_ordering, event.stream_ordering), reverse=back)
    if len(events) == limit:
        return Page(tuple(events), events[-1].token)
    return Page(tuple(events), None if topological is None else f"t{topological}-{stream}")
