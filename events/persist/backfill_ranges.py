"""Writes the visibility ranges of backfilled events, in whatever batches they arrive.

The result is the same as that of a rebuild of the room. What ranges say of a backfilled event does not depend on the events
around it (``events.visibility.ranges.visibility_rows``). So the ranges of the new events and of their neighbours are
computed, and those that share an event with stored ones are joined. Example, with the events at -5 and -3 stored:

    -5 joined   -4 arrives now   -3 joined      computed: joined, -5 to -3. The two stored rows become this one.

The time is in proportion to the batch, not to the room. Assumes the caller's transaction with the room's row locked, and
that the events are written.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import starmap
from typing import Any, NamedTuple

from django.db import connections
from msgspec.structs import replace

from events.errors import EventUnreadable
from events.persist.room_cache import StoredRoom
from events.room.state_assignment import RoomStates
from events.rows import RoomRows, write
from events.visibility.ranges import Step, visibility_rows

#: Selects the accepted backfilled events around some positions, ascending: from the nearest event below all of them to the
#: nearest event above all of them.
_AROUND = """
SELECT e.event_id, e.stream_ordering, e.state_group IS NOT NULL FROM events_event e
WHERE e.room_id = %(room)s AND NOT e.outlier AND NOT e.soft_failed AND e.rejected_reason IS NULL AND e.stream_ordering < 0
  AND e.stream_ordering BETWEEN coalesce((
    SELECT max(below.stream_ordering) FROM events_event below
    WHERE below.room_id = %(room)s AND NOT below.outlier AND NOT below.soft_failed AND below.rejected_reason IS NULL
      AND below.stream_ordering < %(first)s), %(first)s)
  AND coalesce((
    SELECT min(above.stream_ordering) FROM events_event above
    WHERE above.room_id = %(room)s AND NOT above.outlier AND NOT above.soft_failed AND above.rejected_reason IS NULL
      AND above.stream_ordering > %(last)s AND above.stream_ordering < 0), %(last)s)
ORDER BY e.stream_ordering
"""
_STORED = """
SELECT user_id, kind, first, last, id FROM events_eventvisibility
WHERE room_id = %(room)s AND first <= %(last)s AND last >= %(first)s
"""


class _Placed(NamedTuple):
    event_id: str
    place: int
    known: bool
    """True if the event's state is known."""


class _Range(NamedTuple):
    user_id: str | None
    kind: str
    first: int
    last: int
    row_id: int | None
    """None if the range is not stored."""


def write_backfill_ranges(room: StoredRoom, states: RoomStates, places: Collection[int]) -> None:
    """Writes the changes of ranges around the positions in ``places``, which must not be empty.

    The event at each of these positions is new, or now has a state, or now has another verdict.
    """
    changed = sorted(places)
    with connections[room.using].cursor() as cursor:
        cursor.execute(_AROUND, {"room": room.room_id, "first": changed[0], "last": changed[-1]})
        events = list(_near([_Placed(*row) for row in cursor.fetchall()], changed))
        room.adopt_after([event.event_id for event in events if event is not None])
        steps = (None if event is None else _step(room, states, event) for event in events)
        try:
            rows = list(visibility_rows(steps, states.builder, states.events, room.events.memberships))
        except EventUnreadable:  # then nobody is shown these events, until the event is restored
            return
        computed = [_Range(row.user_id, row.kind, row.first, row.last, None) for row in rows if row.last is not None]
        if computed:
            ends = {"first": min(found.first for found in computed), "last": max(found.last for found in computed)}
            cursor.execute(_STORED, {"room": room.room_id, **ends})
            write(cursor, _joined(room.room_id, [*starmap(_Range, cursor.fetchall()), *computed]))


def _near(events: Sequence[_Placed], changed: Sequence[int]) -> Iterator[_Placed | None]:
    # The events with a known state at a place in ``changed`` (ascending), or next to one. None for each other event.
    for number, event in enumerate(events):
        below, above = events[max(number - 1, 0)].place, events[min(number + 1, len(events) - 1)].place
        is_near = bisect_left(changed, below) < bisect_right(changed, above)
        yield event if event.known and is_near else None


def _step(room: StoredRoom, states: RoomStates, placed: _Placed) -> Step:
    event_id, after = placed.event_id, room.after[placed.event_id]
    before = states.before[event_id] if event_id in states.before else room.adopt_before(event_id)
    event = replace(states.events[event_id], stream_ordering=placed.place)
    return Step(placed.place, event, before, after, after)


def _joined(room_id: str, ranges: Iterable[_Range]) -> RoomRows:
    # The changes after which ranges that share a position are one: the first stored row among them, or else a new row.
    rows, table = RoomRows(), "events_eventvisibility"
    whole: list[tuple[list[Any], list[_Range]]] = []
    for found in sorted(ranges, key=lambda found: (found.user_id or "", found.kind, found.first)):
        if not whole or whole[-1][0][:2] != [*found[:2]] or whole[-1][0][3] < found.first:
            whole.append(([*found[:4]], []))
        values, stored = whole[-1]
        values[3] = max(values[3], found.last)
        if found.row_id is not None:
            stored.append(found)
    for (*values, first, last), stored in whole:
        if not stored:
            rows.add(table, room_id, *values, first, last)
        elif (stored[0].first, stored[0].last) != (first, last):
            rows.change(table, stored[0].row_id, first=first, last=last)
        rows.remove(table, *((found.row_id,) for found in stored[1:]))
    return rows
