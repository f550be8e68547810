"""Gaps that are filled: stored events whose state was not known, and is now that of events below them is.

A backfilled event may be stored before what it builds on; it has no state then and nobody is shown it. When that comes, or the
state is given from outside, everything above is judged again, with its state, in the same transaction: at most ``MOST_FILLED``
events at once, the rest by ``resolve_room``. Assumes the caller's transaction with the room's row locked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from django.db import connections
from msgspec.structs import replace

from events.graph import Leaves, is_accepted
from events.parsing import ParsedEvent
from events.room_states import RoomStates
from events.visibility_ranges import Step, VisibilityRanges, VisibilityRow

__all__ = [
    "MOST_FILLED",
    "Filled",
    "judge_again",
    "leaves_covered",
    "leaves_instead",
    "ranges_of_filled",
    "resolvable",
    "unresolved_above",
    "write_filled",
]

MOST_FILLED = 2_000

#: Events without state on top of these, nearest first. Found by the edges' index, so it costs what it finds.
_ABOVE = """
WITH RECURSIVE above AS (
    SELECT e.event_id, e.stream_ordering FROM events_eventedge edge JOIN events_event e USING (event_id)
    WHERE edge.prev_event_id = ANY(%(below)s) AND e.state_unresolved AND e.room_id = %(room)s
    UNION
    SELECT e.event_id, e.stream_ordering
    FROM above JOIN events_eventedge edge ON edge.prev_event_id = above.event_id
    JOIN events_event e ON e.event_id = edge.event_id
    WHERE e.state_unresolved AND e.room_id = %(room)s
) SELECT event_id, stream_ordering FROM above LIMIT %(most)s
"""
_PLACES = "SELECT event_id, stream_ordering FROM events_event WHERE event_id = ANY(%s) AND state_unresolved"
#: Events without state of which all prev events have one: where a room can be resolved from.
_RESOLVABLE = """
SELECT e.event_id FROM events_event e
WHERE e.room_id = %(room)s AND e.state_unresolved AND NOT EXISTS (
    SELECT FROM events_eventedge edge LEFT JOIN events_event prev ON prev.event_id = edge.prev_event_id
    WHERE edge.event_id = e.event_id AND prev.state_group IS NULL
) AND EXISTS (SELECT FROM events_eventedge edge WHERE edge.event_id = e.event_id)
LIMIT %(most)s
"""
_BETWEEN = """
SELECT stream_ordering FROM events_event WHERE room_id = %s AND stream_ordering BETWEEN %s AND %s ORDER BY stream_ordering
"""
_REFERRED_TO = """
SELECT prev_event_id FROM events_eventedge JOIN events_event e USING (event_id)
WHERE prev_event_id = ANY(%s) AND NOT e.soft_failed AND e.rejected_reason IS NULL AND NOT e.event_id = ANY(%s)
"""
#: Events above these, up to the first live ones.
_UP_TO_LIVE = """
WITH RECURSIVE above AS (
    SELECT edge.prev_event_id AS start, e.event_id,
        e.stream_ordering > 0 AND NOT e.soft_failed AND e.rejected_reason IS NULL AS live
    FROM events_eventedge edge JOIN events_event e USING (event_id) WHERE edge.prev_event_id = ANY(%s)
    UNION
    SELECT above.start, e.event_id, e.stream_ordering > 0 AND NOT e.soft_failed AND e.rejected_reason IS NULL
    FROM above JOIN events_eventedge edge ON edge.prev_event_id = above.event_id
    JOIN events_event e ON e.event_id = edge.event_id
    WHERE NOT above.live
) SELECT start, event_id, live FROM above
"""
_WRITE = """
UPDATE events_event e SET state_group = filled.state_group, state_unresolved = false, rejected_reason = filled.reason
FROM unnest(%s::text[], %s::bigint[], %s::text[]) AS filled (event_id, state_group, reason)
WHERE e.event_id = filled.event_id
"""


@dataclass(slots=True)
class Filled:
    """Stored events that have a state now, judged again, with their places in the stream.

    ``rejected`` are those that were accepted before; ``more`` says that there are events left.
    """

    events: list[ParsedEvent] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    rejected: list[str] = field(default_factory=list)
    more: bool = False

    @property
    def live(self) -> bool:
        """Whether some of them are live ones: then ranges of the room's line have to be made anew."""
        return any(place > 0 for place in self.places.values())


def unresolved_above(room_id: str, below: Collection[str], seeds: Collection[str], using: str) -> dict[str, int]:
    """Stored events without state that lead down to ``below``, and ``seeds`` if they have none: event -> place."""
    with connections[using].cursor() as cursor:
        cursor.execute(_ABOVE, {"below": [*below, *seeds], "room": room_id, "most": MOST_FILLED})
        found: dict[str, int] = dict(cursor.fetchall())
        if seeds:
            cursor.execute(_PLACES, [list(seeds)])
            found |= dict(cursor.fetchall())
    return found


def resolvable(room_id: str, using: str) -> list[str]:
    """Events of a room whose state can be worked out from that of their prev events."""
    with connections[using].cursor() as cursor:
        cursor.execute(_RESOLVABLE, {"room": room_id, "most": MOST_FILLED})
        return [event_id for (event_id,) in cursor.fetchall()]


def judge_again(states: RoomStates, found: Sequence[ParsedEvent], waiting: Sequence[ParsedEvent]) -> Filled:
    """Judge stored events, whose places are told, with the states of the events below, and new ones that wait for theirs."""
    again = [replace(event, rejection_given=event.rejected_reason is not None) for event in found]
    states.events.update((event.event_id, event) for event in again)
    states.assign([*again, *waiting])
    judged = [states.events[event.event_id] for event in again if event.event_id in states.after]
    return Filled(
        judged,
        {event.event_id: event.stream_ordering for event in judged if event.stream_ordering is not None},
        [e.event_id for e in found if e.rejected_reason is None and states.events[e.event_id].rejected_reason],
        more=len(found) >= MOST_FILLED,
    )


def ranges_of_filled(filled: Filled, states: RoomStates, room_id: str, using: str) -> list[VisibilityRow]:
    """Ranges by stream positions: of each run of filled events that no other event of the room lies between."""
    places = filled.places
    accepted = sorted((event for event in filled.events if is_accepted(event)), key=lambda e: places[e.event_id])
    if not accepted:
        return []
    with connections[using].cursor() as cursor:
        cursor.execute(_BETWEEN, [room_id, places[accepted[0].event_id], places[accepted[-1].event_id]])
        order = [place for (place,) in cursor.fetchall()]
    found: list[VisibilityRow] = []
    for run in _runs(accepted, places, order):
        ranges = VisibilityRanges(states.builder, states.events)
        for event in run:
            after = states.after[event.event_id]
            ranges.add(Step(places[event.event_id], event, states.before.get(event.event_id), after, after))
        found += ranges.ended()
    return found


def _runs(
    accepted: Sequence[ParsedEvent], places: Mapping[str, int], order: Sequence[int]
) -> Iterator[list[ParsedEvent]]:
    """Events next to each other in ``order``, which has the places of all events of the room, ascending."""
    run: list[ParsedEvent] = []
    last = -1
    for event in accepted:
        number = bisect_left(order, places[event.event_id])
        if run and number != last + 1:
            yield run
            run = []
        run.append(event)
        last = number
    yield run


def leaves_instead(
    leaves: Leaves[str], rejected: Collection[str], events: Mapping[str, ParsedEvent], using: str
) -> None:
    """Leaves that turn out to be rejected give way to what they stand on, unless an accepted event refers to that."""
    below = [event_id for event_id in rejected if event_id in leaves.current]
    for event_id in below:
        del leaves.current[event_id]
    seen = set(below)
    while below:
        prevs = {prev for event_id in below for prev in events[event_id].prev_event_ids} - seen
        seen |= prevs
        with connections[using].cursor() as cursor:
            cursor.execute(_REFERRED_TO, [sorted(prevs), list(rejected)])
            prevs -= {event_id for (event_id,) in cursor.fetchall()}
        here = [events[prev] for prev in sorted(prevs) if prev in events and not events[prev].outlier]
        leaves.current.update((event.event_id, None) for event in here if is_accepted(event))
        below = [event.event_id for event in here if not is_accepted(event)]


def leaves_covered(leaves: Collection[str], batch: Sequence[ParsedEvent], using: str) -> set[str]:
    """Leaves that old events connect with a live accepted event above, stored or in the judged batch: they are none any more."""
    children: dict[str, list[ParsedEvent]] = {}
    for event in batch:
        for prev in event.prev_event_ids:
            children.setdefault(prev, []).append(event)
    covered: set[str] = set()
    seen: dict[str, set[str]] = {}
    frontier = {leaf: {leaf} for leaf in leaves}
    """Where to look further up -> the leaves below."""
    while frontier:
        below = dict(frontier)
        for start, event_id, live in _stored_above(list(frontier), using):
            below[event_id] = below.get(event_id, set()) | frontier[start]
            covered |= frontier[start] if live else set()
        frontier = {}
        for event_id, under in below.items():
            for child in children.get(event_id, ()):
                if _is_live(child):
                    covered |= under
                elif new := under - seen.setdefault(child.event_id, set()):
                    seen[child.event_id] |= new
                    frontier[child.event_id] = frontier.get(child.event_id, set()) | new
    return covered


def _stored_above(event_ids: list[str], using: str) -> list[tuple[str, str, bool]]:
    """(start, event above it, whether that is live and accepted)."""
    with connections[using].cursor() as cursor:
        cursor.execute(_UP_TO_LIVE, [event_ids])
        return list(cursor.fetchall())


def _is_live(event: ParsedEvent) -> bool:
    return not event.backfilled and is_accepted(event)


def write_filled(filled: Filled, groups: Mapping[str, int], using: str) -> None:
    """The groups and verdicts of the filled events."""
    if not filled.events:
        return
    rows = [(event.event_id, groups[event.event_id], event.rejected_reason) for event in filled.events]
    with connections[using].cursor() as cursor:
        cursor.execute(_WRITE, [list(column) for column in zip(*rows, strict=True)])
