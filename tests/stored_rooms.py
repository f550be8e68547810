"""Puts a computed room history into the tables, plainly: for tests that read."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connection

from events.models import (
    BackwardExtremity,
    CurrentState,
    CurrentStateDelta,
    Event,
    EventAuth,
    EventEdge,
    EventJson,
    EventVisibility,
    ForwardExtremity,
    Room,
)
from events.parsing import ParsedEvent
from events.room_history import EVENT_COLUMNS, RoomResult, room_history
from state.models import StateGroup, StateGroupDelta
from state.store import reserve_group_ids

WRITER = "test"


def store_groups(room_id: str, groups, deltas) -> list[int]:
    """Rows of a ``GroupBuilder``, under fresh IDs; returns the ID of each group number."""
    groups = list(groups)
    with connection.cursor() as cursor:
        ids = reserve_group_ids(cursor, len(groups))
    StateGroup.objects.bulk_create(
        StateGroup(
            id=ids[number],
            room_id=room_id,
            prev_group=None if prev is None else ids[prev],
            chain=ids[chain],
            hops=hops,
            keys=keys,
            rows_to_read=rows,
        )
        for number, prev, chain, hops, keys, rows in groups
    )
    StateGroupDelta.objects.bulk_create(
        StateGroupDelta(chain=ids[chain], state_group=ids[group], type=kind, state_key=key, event_id=event_id)
        for chain, group, kind, key, event_id in deltas
    )
    return list(ids)


def store_room(events: Sequence[ParsedEvent], first_position: int = 2) -> RoomResult:
    """Store a room; its events get consecutive stream orderings from ``first_position`` on, leaving out 0."""
    result = room_history(events)
    positions = [n for n in range(first_position, first_position + len(events) + 1) if n != 0]
    room = result.room_id
    Room.objects.create(
        room_id=room,
        room_version=result.room_version,
        creator=result.creator,
        create_event_id=result.create_event_id,
        current_state_unresolved=result.current_state_unresolved,
        visibility_unresolved=result.visibility_unresolved,
    )
    ids = store_groups(room, result.groups, result.group_deltas)
    facts = [Event(instance_name=WRITER, **dict(zip(EVENT_COLUMNS, row, strict=True))) for row in result.events]
    for fact, position in zip(facts, positions, strict=False):
        fact.stream_ordering = position
        fact.state_group = None if fact.state_group is None else ids[fact.state_group]
    Event.objects.bulk_create(facts)
    EventJson.objects.bulk_create(
        EventJson(event_id=e.event_id, room_version=e.room_version, json=e.json) for e in events
    )
    EventEdge.objects.bulk_create(EventEdge(event_id=e, prev_event_id=p) for e, p in result.edges)
    EventAuth.objects.bulk_create(EventAuth(event_id=e, auth_event_ids=ids) for e, ids in result.auth)
    ForwardExtremity.objects.bulk_create(ForwardExtremity(event_id=e, room_id=room) for e in result.forward_extremities)
    BackwardExtremity.objects.bulk_create(
        BackwardExtremity(event_id=e, room_id=room) for e in result.backward_extremities
    )
    CurrentState.objects.bulk_create(
        CurrentState(room_id=room, type=kind, state_key=key, event_id=e, membership=m)
        for kind, key, e, m in result.current_state
    )
    CurrentStateDelta.objects.bulk_create(
        CurrentStateDelta(
            stream_ordering=positions[n],
            instance_name=WRITER,
            room_id=room,
            type=kind,
            state_key=key,
            event_id=e,
            prev_event_id=before,
        )
        for n, kind, key, e, before in result.state_deltas
    )
    EventVisibility.objects.bulk_create(
        EventVisibility(
            room_id=room,
            user_id=row.user_id,
            kind=row.kind,
            first=positions[row.first],
            last=None if row.last is None else positions[row.last],
        )
        for row in result.visibility
    )
    return result
