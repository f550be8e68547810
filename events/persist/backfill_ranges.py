"""Writes the visibility ranges of backfilled events, in whatever batches they arrive.

The result is the same as that of a rebuild of the room. Backfilled events have ranges of their own, which follow the
state after each event. A *run* is a sequence of neighbouring events with known states. A range does not extend beyond
its run. Example, with the events at -5 and -3 stored, each a run of its own:

    -5 joined   -4 arrives now   -3 joined      two rows ``joined`` (-5 to -5, -3 to -3) become one, -5 to -3

Where a new run touches a stored run, the stored ranges are extended. The rows of the stored run's first event were
computed without the event before, so they are computed again. The time is in proportion to the batch, not to the room.
Assumes the caller's transaction with the room's row locked, and that the events are written.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from django.db import connections
from msgspec.structs import replace

from events.errors import EventUnreadable
from events.persist.room_cache import StoredRoom
from events.room.state_assignment import RoomStates
from events.rows import RoomRows, write
from events.visibility.ranges import Step, VisibilityRanges, VisibilityRow

_RANGES = frozenset({"joined", "invited", "shared", "world"})
"""The kinds of rows that cover several events. Rows of other kinds are for single events."""
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
SELECT id, user_id, kind, first, last FROM events_eventvisibility
WHERE room_id = %(room)s AND first <= %(last)s AND last >= %(first)s
"""


class _Placed(NamedTuple):
    event_id: str
    place: int
    known: bool
    """True if the event's state is known."""


def write_backfill_ranges(room: StoredRoom, states: RoomStates, places: Collection[int]) -> None:
    """Writes the changes of ranges around the positions in ``places``, which must not be empty.

    The event at each of these positions is new, or now has a state, or now has another verdict.
    """
    changed = sorted(places)
    with connections[room.using].cursor() as cursor:
        cursor.execute(_AROUND, {"room": room.room_id, "first": changed[0], "last": changed[-1]})
        events = [_Placed(*row) for row in cursor.fetchall()]
        for part in _parts(events, changed):
            with suppress(EventUnreadable):  # then nobody is shown these events, until the event is restored
                _Part(room, states, part, set(changed), cursor).write()


def _parts(events: Iterable[_Placed], changed: Sequence[int]) -> Iterator[list[_Placed]]:
    """Divides the events into sequences of neighbours with known states, whose ranges are computed together.

    Two neighbours are in one sequence if a position in ``changed`` (ascending) is theirs or lies between them. So a
    sequence also includes the unchanged events next to the changed ones.
    """
    part: list[_Placed] = []
    for event in events:
        # The two events became neighbours if a changed position lies at or between them. Others are in one stored run.
        if part and event.known and bisect_left(changed, part[-1].place) < bisect_right(changed, event.place):
            part.append(event)
            continue
        if _is_new(part, changed):
            yield part
        part = [event] if event.known else []
    if _is_new(part, changed):
        yield part


def _is_new(part: Sequence[_Placed], changed: Sequence[int]) -> bool:
    return len(part) > 1 or any(event.place in changed for event in part)


class _Part:
    # Neighbours whose ranges are computed together. The first may be the last of a stored run, the last the first of
    # another.
    def __init__(
        self, room: StoredRoom, states: RoomStates, events: Sequence[_Placed], changed: Collection[int], cursor: Any
    ) -> None:
        self._room, self._states, self._events, self._cursor = room, states, events, cursor
        self._kept = [event for event in events if event.place not in changed]
        self._below = events[0].place if events[0] in self._kept else None
        self._above = events[-1].place if events[-1] in self._kept else None
        cursor.execute(_STORED, {"room": room.room_id, "first": events[0].place, "last": events[-1].place})
        self._stored = {VisibilityRow(*row): number for number, *row in cursor.fetchall()}
        self._new: set[VisibilityRow] = set()
        self._outdated: set[VisibilityRow] = set()

    def write(self) -> None:
        room = self._room
        room.adopt_after([event.event_id for event in self._events])
        # Each event is computed with the one before it, so the order of positions counts here and not that of arrival. This is
        # why the result is the same in whatever batches the events came.
        below, above = self._stored_at(self._below, above=False), self._stored_at(self._above, above=True)
        for row in self._computed(self._events).ended():
            lower, upper = below.get((row.user_id, row.kind)), above.get((row.user_id, row.kind))
            # Rows for the lower neighbour alone are stored already, and so are ranges that begin at the upper one.
            first, last = row.first, row.last
            if last == self._below or (upper is not None and first == self._above):
                continue
            if upper is not None and last == self._above:
                self._outdated.add(upper)
                last = upper.last
            if lower is not None and first == self._below:
                self._outdated.add(lower)
                first = lower.first
            self._new.add(replace(row, first=first, last=last))
        # If a stored event was the first of its run, some of its rows were computed without an event before it. These
        # are deleted. A stored event between the two ends was a run of its own, so its ranges are deleted as well.
        for event in self._kept:
            if event.place != self._below:
                alone = self._computed([event])
                self._outdated |= set(alone.rows if event.place == self._above else alone.ended())
        self._write()

    def _computed(self, events: Sequence[_Placed]) -> VisibilityRanges:
        stored = self._room.events
        ranges = VisibilityRanges(self._states.builder, self._states.events, memberships=stored.memberships)
        for event in events:
            after = self._room.after[event.event_id]
            ranges.add(Step(event.place, self._states.events[event.event_id], self._before(event), after, after))
        return ranges

    def _before(self, event: _Placed) -> int | None:
        before = self._states.before
        if event.event_id not in before and event in self._kept:
            group = self._room.adopt_before(event.event_id)
            if group is not None:
                before[event.event_id] = group
        return before.get(event.event_id)

    def _stored_at(self, place: int | None, *, above: bool) -> dict[tuple[str | None, str], VisibilityRow]:
        # Stored ranges that cover the event at ``place``, but not its neighbour in the part. If events were purged, a
        # range may begin or end between two events that are still stored.
        if place is None:
            return {}
        next_place = self._events[-2 if above else 1].place
        found = {}
        for row in self._stored:
            if row.kind not in _RANGES or row.last is None or not row.first <= place <= row.last:
                continue
            if row.first > next_place if above else row.last < next_place:
                found[row.user_id, row.kind] = row
        return found

    def _write(self) -> None:
        # Only rows that differ from the stored ones. A row with the same user, kind, and beginning or end is updated.
        outdated = self._outdated & self._stored.keys() - self._new
        new = self._new - self._stored.keys()
        waiting = {
            (row.user_id, row.kind, end): row for row in outdated for end in (("first", row.first), ("last", row.last))
        }
        rows = RoomRows()
        for row in sorted(new, key=lambda row: (row.user_id or "", row.kind, row.first)):
            for end in (("first", row.first), ("last", row.last)):
                old = waiting.get((row.user_id, row.kind, end))
                if old in outdated:
                    outdated.discard(old)
                    rows.change("events_eventvisibility", self._stored[old], first=row.first, last=row.last)
                    break
            else:
                rows.add("events_eventvisibility", self._room.room_id, row.user_id, row.kind, row.first, row.last)
        rows.remove("events_eventvisibility", *((self._stored[row],) for row in outdated))
        write(self._cursor, rows)
