"""Rebuilds the ranges of a stored room: after a gap was filled, after an upgrade, or to check the stored ranges.

The ranges are computed from the stored rows, including states that other servers gave. Time and memory grow with the room's
events and state changes. Assumes the caller's transaction with the room's row locked.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connections
from msgspec.structs import replace

from events.format.parsing import ParsedEvent, Verdict, event_of_columns
from events.models import Room
from events.room.graph import is_accepted
from events.room.state_assignment import RoomStates, Stored
from events.rows import write
from events.stored_states import parsed_events
from events.visibility.open_ranges import check_open_ranges
from events.visibility.ranges import VisibilityRow, replaced_ranges
from events.visibility.recompute import GraphRanges
from state.groups.deltas import GroupBuilder, StateKey
from state.rules.room_versions import room_version

#: Selects a room's events with a place in the graph, in stream order: the fields of ``ParsedEvent`` but their JSON and
#: content, which ranges do not depend on, and their state groups.
_EVENTS = """
SELECT e.event_id, e.room_id, %(version)s, e.type, e.state_key, e.sender, e.topological_ordering, e.origin_server_ts,
  ARRAY(SELECT edge.prev_event_id FROM events_eventedge edge WHERE edge.event_id = e.event_id), ARRAY[]::text[], e.membership,
  e.redacts, NULL, e.outlier, e.rejected_reason, e.soft_failed, e.stream_ordering, e.state_group
FROM events_event e WHERE e.room_id = %(room)s AND NOT e.outlier ORDER BY e.stream_ordering
"""
_FIELDS = 13
_STATE_EVENTS = """
SELECT event_id, outlier, rejected_reason, soft_failed, stream_ordering FROM events_event
WHERE room_id = %(room)s AND state_key IS NOT NULL
"""
_TARGETS = """
SELECT e.event_id, e.type, e.sender FROM events_event redaction JOIN events_event e ON e.event_id = redaction.redacts
WHERE redaction.room_id = %(room)s AND e.room_id = %(room)s
"""
_GROUPS = """
SELECT g.id, g.prev_group, d.type, d.state_key, d.event_id FROM state_stategroup g
LEFT JOIN state_stategroupdelta d ON d.chain = g.chain AND d.state_group = g.id
WHERE g.room_id = %(room)s ORDER BY g.id
"""


def rebuild_visibility(room_id: str, using: str = "default") -> bool:
    """Replaces the room's ranges.

    If they cannot be computed yet, deletes the stored ones and returns false.

    ``Room.visibility_unresolved`` becomes true or false accordingly. Raises ``RangesDisagree``, and writes nothing, if
    the new ranges contradict the room's current state.
    """
    ranges = recomputed_ranges(room_id, using)
    with connections[using].cursor() as cursor:
        if ranges is not None:  # before the first write, so that an error leaves the stored ranges as they are
            check_open_ranges(cursor, room_id, ranges)
        rows = replaced_ranges(room_id, ranges or ())
        rows.change("events_room", room_id, visibility_unresolved=ranges is None)
        write(cursor, rows)
    return ranges is not None


def recomputed_ranges(room_id: str, using: str = "default") -> list[VisibilityRow] | None:
    """Computes the ranges, with stream positions as places. None if the state at a live event is not known."""
    room = Room.objects.using(using).get(pk=room_id)
    found = []
    # Four statements, and at READ COMMITTED each has a snapshot of its own. They fit together because the caller holds the
    # room's lock. Without it: A reads the groups, B stores an event with a new group, A reads this event without its group.
    with connections[using].cursor() as cursor:
        for query in (_GROUPS, _STATE_EVENTS, _TARGETS, _EVENTS):
            cursor.execute(query, {"room": room_id, "version": room.room_version})
            found.append(cursor.fetchall())
    group_rows, verdict_rows, target_rows, event_rows = found
    builder, numbers, below = _builder(group_rows)
    verdicts = {event_id: Verdict._make((*verdict, True, True)) for event_id, *verdict in verdict_rows}
    parsed = parsed_events(list(verdicts), using)
    state_events = {
        event_id: replace(event, json=b"", **verdicts[event_id]._asdict()) for event_id, event in parsed.items()
    }
    graph = [
        state_events.get(row[0]) or event_of_columns(row[:_FIELDS], (*row[_FIELDS:-1], True, True))
        for row in event_rows
    ]
    group_of: dict[str, int] = {row[0]: row[-1] for row in event_rows if row[-1] is not None}
    after = {event_id: numbers[group] for event_id, group in group_of.items()}
    events: dict[str, ParsedEvent] = {**state_events, **{event.event_id: event for event in graph}}
    create = state_events.get(room.create_event_id or "")
    stored = Stored(events, create, builder, after, lambda _states: None)
    states = RoomStates(room_version(room.room_version), [], stored)
    for event in graph:
        group = group_of.get(event.event_id)
        before = below.get(group or 0) if event.is_state and is_accepted(event) else group
        if before is not None:
            states.before[event.event_id] = numbers[before]
    targets = {event_id: (event_type, sender) for event_id, event_type, sender in target_rows}
    return GraphRanges(graph, states, targets).ranges()


def _builder(
    rows: Sequence[tuple[int, int | None, str | None, str, str | None]],
) -> tuple[GroupBuilder, dict[int, int], dict[int, int | None]]:
    # (builder with the stored groups, group -> its number there, group -> the group that it is a delta to)
    changes: dict[int, dict[StateKey, str | None]] = {}
    below: dict[int, int | None] = {}
    for group, prev, event_type, state_key, event_id in rows:
        below[group] = prev
        delta = changes.setdefault(group, {})
        if event_type is not None:
            delta[event_type, state_key] = event_id
    builder, numbers = GroupBuilder(), dict[int, int]()
    for group, delta in changes.items():
        prev = below[group]
        if prev is None:
            numbers[group] = builder.add_full(
                {key: event_id for key, event_id in delta.items() if event_id is not None}
            )
        else:
            numbers[group] = builder.add(numbers[prev], delta)
    return builder, numbers, below
