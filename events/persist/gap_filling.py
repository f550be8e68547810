"""Gaps that are filled: stored events whose state was not known, and is now that of events below them is.

A backfilled event may be stored before what it builds on; it has no state then and nobody is shown it. When that comes, or the
state is given from outside, everything above is judged again, with its state, in the same transaction: at most ``MOST_FILLED``
events at once, the rest by ``resolve_room``. Assumes the caller's transaction with the room's row locked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from django.db import connections
from msgspec.structs import replace

from events.format.parsing import ParsedEvent
from events.room.state_assignment import RoomStates

__all__ = [
    "MOST_FILLED",
    "Filled",
    "judge_again",
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
    SELECT FROM events_eventedge edge
    LEFT JOIN events_event prev ON prev.event_id = edge.prev_event_id AND prev.room_id = %(room)s
    WHERE edge.event_id = e.event_id AND prev.state_group IS NULL
) AND EXISTS (SELECT FROM events_eventedge edge WHERE edge.event_id = e.event_id)
LIMIT %(most)s
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
    for event in found:  # auth events that have come since may tell more, but what has no state yet keeps its verdict
        if event.event_id not in states.after:
            states.events[event.event_id] = event
    return Filled(
        judged,
        {event.event_id: event.stream_ordering for event in judged if event.stream_ordering is not None},
        [e.event_id for e in found if e.rejected_reason is None and states.events[e.event_id].rejected_reason],
        more=len(found) >= MOST_FILLED,
    )


def write_filled(filled: Filled, groups: Mapping[str, int], using: str) -> None:
    """The groups and verdicts of the filled events."""
    rows = [(event.event_id, groups[event.event_id], event.rejected_reason) for event in filled.events]
    with connections[using].cursor() as cursor:
        cursor.execute(_WRITE, [list(column) for column in zip(*rows, strict=True)])
