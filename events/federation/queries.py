"""Reads rooms for other servers: history before given events, events between given events, and states.

Each event is returned as the asking server may see it (``events.federation.visibility``): pruned if the server may not
see the content. The caller checks first that the server may ask at all
(``events.federation.visibility.server_in_room``): a server that is not in a room gets nothing. Walks follow prev edges
through all events except outliers. They pass through rejected events, but do not return them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn

from django.db import connections

from events.arguments import can_be_stored, checked_ids, checked_limit
from events.errors import InvalidQuery, StateUnresolved, UnknownEvent, UnknownRoom
from events.federation.graph_walk import Place, Read, breadth_first, deepest_first
from events.federation.visibility import as_seen_by
from events.models import Event, EventAuth, Room
from events.reading.event_json import SERVED, SERVED_JSON, ServedEvent, load_events, served
from events.reading.timeline import state_at, timeline_place
from events.stored_states import parsed_events
from state.rules.room_versions import room_version
from streams.db.consistent_read import read_only_snapshot

__all__ = ["EVENTS_LIMIT", "StateIds", "auth_chain", "backfill", "missing_events", "state_ids", "topological_walk"]

EVENTS_LIMIT = 100
"""The most events that a server gets at once. If the requested limit is larger, this limit applies."""
_STARTS_LIMIT = 100
_LEVELS_AT_ONCE = 50
_PLACES_AT_ONCE = 2_000
_MET_PER_EVENT = 10
_PAGE = 500

#: Some events and the events that they build on, level by level, up to a limit.
_BELOW = """
WITH RECURSIVE below (event_id, level) AS (
    SELECT unnest(%(events)s::text[]) COLLATE "C", 0
    UNION
    SELECT edge.prev_event_id, below.level + 1
    FROM below JOIN events_eventedge AS edge ON edge.event_id = below.event_id
    WHERE below.level < %(levels)s
), piece AS (SELECT event_id FROM below LIMIT %(limit)s)
SELECT e.event_id, e.topological_ordering, e.stream_ordering,
    ARRAY(SELECT edge.prev_event_id FROM events_eventedge AS edge WHERE edge.event_id = e.event_id),
    e.rejected_reason IS NOT NULL
FROM (SELECT DISTINCT event_id FROM piece) AS found JOIN events_event AS e USING (event_id)
WHERE e.room_id = %(room)s AND NOT e.outlier
"""

#: A page of a room for servers, oldest first. It reads one range of the index ``events_event_timeline``.
_WALK = f"""
SELECT {SERVED} FROM (
    SELECT * FROM events_event
    WHERE room_id = %(room)s AND (topological_ordering, stream_ordering) > (%(topological)s, %(stream)s)
      AND NOT outlier AND rejected_reason IS NULL
    ORDER BY topological_ordering, stream_ordering LIMIT %(limit)s
) AS e {SERVED_JSON}
ORDER BY e.topological_ordering, e.stream_ordering
"""

#: Some state events and their auth chains, each event once. Senders may name events of other rooms; these are left out.
_AUTH_CHAIN = """
WITH RECURSIVE chain (event_id) AS (
    SELECT event_id FROM events_event WHERE event_id = ANY(%(events)s::text[]) AND room_id = %(room)s
    UNION
    SELECT e.event_id FROM chain JOIN events_eventauth AS auth ON auth.event_id = chain.event_id
    CROSS JOIN unnest(auth.auth_event_ids) AS named JOIN events_event AS e ON e.event_id = named AND e.room_id = %(room)s
)
SELECT event_id FROM chain
"""


@dataclass(frozen=True, slots=True)
class StateIds:
    """The state before an event, and the auth chain of that state, down to the create event."""

    state: tuple[str, ...]
    auth_chain: tuple[str, ...]


def backfill(
    server: str, room_id: str, from_event_ids: Collection[str], limit: int = EVENTS_LIMIT, using: str = "default"
) -> list[ServedEvent]:
    """Returns the given events of the room and events before them, as the server sees them.

    Their order is close to the timeline read backwards. Returns at most ``limit`` events, and never more than
    ``EVENTS_LIMIT``. Raises ``UnknownRoom`` and ``InvalidQuery``.
    """
    wanted = checked_limit(limit, EVENTS_LIMIT)
    starts = checked_ids(from_event_ids, _STARTS_LIMIT)
    with read_only_snapshot(using):
        walk = deepest_first(starts, _reader(room_id, using))
        return _given(server, _first(walk, wanted), using)


def missing_events(  # noqa: PLR0913 - the question of the federation API, as it is asked
    server: str,
    room_id: str,
    earliest: Collection[str],
    latest: Collection[str],
    *,
    limit: int = 10,
    min_depth: int = 0,
    using: str = "default",
) -> list[ServedEvent]:
    """Returns the events that prev edges lead to from ``latest``, on paths that do not pass through ``earliest``.

    The events ``latest`` and ``earliest`` themselves are left out. A path ends before an event with a depth below
    ``min_depth``. If there are more than ``limit`` such events, the ``limit`` events nearest to ``latest`` are
    returned. The result is sorted oldest first. Raises ``UnknownRoom`` and ``InvalidQuery``.
    """
    wanted = checked_limit(limit, EVENTS_LIMIT)
    starts, known = checked_ids(latest, _STARTS_LIMIT), checked_ids(earliest, _STARTS_LIMIT)
    if type(min_depth) is not int:
        raise InvalidQuery(f"A least depth of {min_depth!r:.100} is unusable; give a whole number.")
    with read_only_snapshot(using):
        walk = breadth_first(starts, _reader(room_id, using), known, min_depth)
        places = sorted(_first(walk, wanted), key=lambda place: place.order)
        return _given(server, places, using)


def topological_walk(
    room_id: str, server: str | None = None, after: str | None = None, using: str = "default"
) -> Iterator[ServedEvent]:
    """Returns an iterator over all events of a room by (topological, stream), oldest first, as ``server`` sees them.

    The iteration begins after the event of the token ``after``. Without ``server`` no event is pruned. Only one page of
    events is in memory. Each page begins where the page before ended, so events that arrive meanwhile above that point
    are included. Senders claim the topological ordering, so an event with a false depth may come before its prev
    events. Raises ``UnknownRoom`` and ``BadToken``.
    """
    place = timeline_place(after) if after is not None else (-1, 0)
    _check_room(room_id, using)
    return _walk(room_id, server, place, using)


def state_ids(event_id: str, using: str = "default") -> StateIds:
    """Returns the IDs of the state before an event, and of the auth chain of that state.

    Raises ``UnknownEvent`` and ``StateUnresolved``.
    """
    if not can_be_stored(event_id):
        _unknown(event_id)
    with read_only_snapshot(using):
        before = state_at(event_id, using).before
        if before is None:
            raise StateUnresolved(f"{event_id} is an outlier: its place in the graph is not known, nor is its state.")
        state = sorted(before.values())
        room_id = Event.objects.using(using).values_list("room_id", flat=True).get(event_id=event_id)
        return StateIds(tuple(state), tuple(_below_in_auth(state, room_id, using)))


def auth_chain(event_id: str, using: str = "default") -> list[str]:
    """Returns the auth chain of an event: its auth events, their auth events, and so on down to the create event.

    The IDs are sorted. The event itself is left out, and so are events that are not stored here or are of another room.
    Raises ``UnknownEvent``.
    """
    event = parsed_events([event_id], using).get(event_id) if can_be_stored(event_id) else None
    if event is None:
        _unknown(event_id)
    starts = list(event.auth_event_ids)
    if room_version(event.room_version).room_id_is_create_hash and event.type != "m.room.create":
        # From room version 12 on the create event is an implied auth event, and the room ID is its hash.
        starts.append("$" + event.room_id[1:])
    return [found for found in _chain(starts, event.room_id, using) if found != event_id]


def _unknown(event_id: str) -> NoReturn:
    raise UnknownEvent(f"There is no event {event_id!r:.300}.")


def _below_in_auth(event_ids: Sequence[str], room_id: str, using: str) -> list[str]:
    """Returns the IDs of the events in the auth chains of ``event_ids`` that are stored in the room.

    An event of ``event_ids`` is included only if it is in the auth chain of another event of ``event_ids``.
    """
    rows = EventAuth.objects.using(using).filter(event_id__in=event_ids).values_list("auth_event_ids", flat=True)
    return _chain([event_id for ids in rows for event_id in ids], room_id, using)


def _chain(starts: Collection[str], room_id: str, using: str) -> list[str]:
    with connections[using].cursor() as cursor:
        cursor.execute(_AUTH_CHAIN, {"events": list(dict.fromkeys(starts)), "room": room_id})
        return sorted(event_id for (event_id,) in cursor)


def _check_room(room_id: str, using: str) -> None:
    if not can_be_stored(room_id) or not Room.objects.using(using).filter(room_id=room_id).exists():
        raise UnknownRoom(f"There is no room {room_id!r:.300}.")


def _reader(room_id: str, using: str) -> Read:
    """Returns a function that reads events of the room by ID, with some earlier events that they build on.

    Raises ``UnknownRoom``.
    """
    _check_room(room_id, using)

    def read(event_ids: Collection[str]) -> list[Place]:
        where: dict[str, Any] = {"events": list(event_ids), "room": room_id}
        where |= {"levels": _LEVELS_AT_ONCE, "limit": _PLACES_AT_ONCE}
        with connections[using].cursor() as cursor:
            cursor.execute(_BELOW, where)
            return [Place(event, depth, stream, tuple(prev), bad) for event, depth, stream, prev, bad in cursor]

    return read


def _first(walk: Iterator[Place], wanted: int) -> list[Place]:
    """Returns the first ``wanted`` events of the walk that are not rejected.

    Returns fewer events if the walk ends earlier, or passes through very many rejected events.
    """
    met = islice(walk, wanted * _MET_PER_EVENT)  # ends a walk through very many rejected events
    return list(islice((place for place in met if not place.rejected), wanted))


def _given(server: str, places: Sequence[Place], using: str) -> list[ServedEvent]:
    events = load_events([place.event_id for place in places], using)
    return as_seen_by(server, [events[place.event_id] for place in places], using)


def _walk(room_id: str, server: str | None, place: tuple[int, int], using: str) -> Iterator[ServedEvent]:
    while True:
        where: dict[str, Any] = {"room": room_id, "topological": place[0], "stream": place[1], "limit": _PAGE}
        with read_only_snapshot(using) as cursor:
            cursor.execute(_WALK, where)
            page = [served(row) for row in cursor]
            page = page if server is None else as_seen_by(server, page, using)
        yield from page
        if len(page) < _PAGE:
            return
        place = page[-1].topological_ordering, page[-1].stream_ordering
