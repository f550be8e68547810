"""Rebuilds the ranges of a stored room: after a gap was filled, after an upgrade, or to check the stored ranges.

The ranges are computed from the stored rows, including states that other servers gave. Time and memory grow with the room's
events and state changes. Assumes the caller's transaction with the room's row locked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from django.db import connections
from msgspec.structs import replace

from events.format.parsing import ParsedEvent, Verdict, event_of_columns
from events.history.chunked_walk import EventsInMemory
from events.history.rows import RoomHistory
from events.models import Room
from events.room.state_assignment import RoomStates
from events.rows import write
from events.stored_states import parsed_events
from events.visibility.open_ranges import check_open_ranges
from events.visibility.ranges import VisibilityRow, replaced_ranges
from state.groups.deltas import StateKey
from state.rules.room_versions import room_version

#: Selects a room's events in stream order: the fields of ``ParsedEvent`` but their JSON and content, which ranges do not
#: depend on, and their state groups.
_EVENTS = """
SELECT e.event_id, e.room_id, %(version)s, e.type, e.state_key, e.sender, e.topological_ordering, e.origin_server_ts,
  ARRAY(SELECT edge.prev_event_id FROM events_eventedge edge WHERE edge.event_id = e.event_id), ARRAY[]::text[], e.membership,
  e.redacts, NULL, e.outlier, e.rejected_reason, e.soft_failed, e.stream_ordering, e.state_group
FROM events_event e WHERE e.room_id = %(room)s ORDER BY e.stream_ordering
"""
_FIELDS = 13
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
    # Two statements, and at READ COMMITTED each has a snapshot of its own. They fit together because the caller holds the
    # room's lock. Without it: A reads the groups, B stores an event with a new group, A reads this event without its group.
    with connections[using].cursor() as cursor:
        for query in (_GROUPS, _EVENTS):
            cursor.execute(query, {"room": room_id, "version": room.room_version})
            found.append(cursor.fetchall())
    group_rows, event_rows = found
    events = [event_of_columns(row[:_FIELDS], (*row[_FIELDS:-1], True, True)) for row in event_rows]
    parsed = parsed_events([event.event_id for event in events if event.state_key is not None], using)
    for number, event in enumerate(events):
        if (found_event := parsed.get(event.event_id)) is not None:
            verdict = {name: getattr(event, name) for name in Verdict._fields}
            events[number] = replace(found_event, json=b"", **verdict)
    create = next((event for event in events if event.event_id == room.create_event_id), None)
    source = EventsInMemory(room_id, room_version(room.room_version), events, create)
    make_states = partial(_StoredStates, group_rows, {row[0]: row[-1] for row in event_rows})
    history = RoomHistory(source, max(len(source), 1), make_states=make_states, stored=True)
    return history.ranges([row[-2] for row in event_rows])


class _StoredStates(RoomStates):
    """The states that are stored, taken as right."""

    def __init__(
        self,
        group_rows: Sequence[tuple[int, int | None, str | None, str, str | None]],
        group_of: Mapping[str, int | None],
        *arguments: Any,
    ) -> None:
        super().__init__(*arguments)
        self._group_of = group_of
        self._below: dict[int, int | None] = {}
        self._numbers: dict[int, int] = {}
        changes: dict[int, dict[StateKey, str | None]] = {}
        for group, prev, event_type, state_key, event_id in group_rows:
            self._below[group] = prev
            delta = changes.setdefault(group, {})
            if event_type is not None:
                delta[event_type, state_key] = event_id
        for group, delta in changes.items():
            prev = self._below[group]
            if prev is None:
                state = {key: event_id for key, event_id in delta.items() if event_id is not None}
                self._numbers[group] = self.builder.add_full(state)
            else:
                self._numbers[group] = self.builder.add(self._numbers[prev], delta)

    def _assign(self, event: ParsedEvent) -> None:
        group = self._group_of[event.event_id]
        if group is None or event.outlier:
            return
        self.after[event.event_id] = self._numbers[group]
        # The state after a soft-failed event has its change, too.
        before = self._below[group] if event.is_state and event.rejected_reason is None else group
        if before is not None:
            self.before[event.event_id] = self._numbers[before]
