"""Puts a computed room history into the tables, plainly: for tests that read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import chain, islice

from django.db import connection
from django.db.models import Model

from events.columns import EVENT_COLUMNS
from events.format.parsing import ParsedEvent
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
from events.visibility.ranges import BEFORE_LIVE
from state.models import StateGroup, StateGroupDelta
from state.store import reserve_group_ids
from streams.holds.maintenance import changing_facts
from tests.support.room_results import RoomResult, computed

WRITER = "test"


def insert(model: type[Model], columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Rows without their objects, which would take most of the time; all that has no default must be there."""
    head = f"INSERT INTO {model._meta.db_table} ({', '.join(columns)}) VALUES "
    place = f"({', '.join(['%s'] * len(columns))})"
    left = iter(rows)
    with changing_facts(connection), connection.cursor() as cursor:
        while chunk := list(islice(left, 5_000)):
            cursor.execute(head + ", ".join([place] * len(chunk)), list(chain.from_iterable(chunk)))


def store_groups(room_id: str, groups, deltas) -> list[int]:
    """Rows of a ``GroupBuilder``, under fresh IDs; returns the ID of each group number."""
    groups = list(groups)
    with connection.cursor() as cursor:
        ids = reserve_group_ids(cursor, len(groups))
    insert(
        StateGroup,
        ("id", "room_id", "prev_group", "chain", "hops", "keys", "rows_to_read"),
        (
            (ids[number], room_id, None if prev is None else ids[prev], ids[chain], hops, keys, rows)
            for number, prev, chain, hops, keys, rows in groups
        ),
    )
    insert(
        StateGroupDelta,
        ("chain", "state_group", "type", "state_key", "event_id"),
        ((ids[chain], ids[group], *entry) for chain, group, *entry in deltas),
    )
    return list(ids)


def store_room(events: Sequence[ParsedEvent], first_position: int | None = None) -> RoomResult:
    """Store a room; its events get consecutive stream orderings from ``first_position`` on, leaving out 0.

    Without it backfilled events get those below 0 and live ones those from 1 on, or from 2 on where there are live ones only.
    """
    result = computed(events)
    first = first_position if first_position is not None else -sum(event.backfilled for event in events) or 2
    positions = [n for n in range(first, first + len(events) + 1) if n != 0]
    moved = [event.event_id for event, at in zip(events, positions, strict=False) if event.backfilled and at > 0]
    if moved:
        raise ValueError(f"backfilled events come first, at positions below 0: not so {moved[0]}; {len(moved)} in all")
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
    Event.objects.writable().bulk_create(facts)
    EventJson.objects.bulk_create(
        EventJson(event_id=e.event_id, room_version=e.room_version, json=e.json) for e in events
    )
    insert(EventEdge, ("event_id", "prev_event_id"), result.edges)
    insert(EventAuth, ("event_id", "auth_event_ids"), ((event_id, list(auth)) for event_id, auth in result.auth))
    ForwardExtremity.objects.bulk_create(ForwardExtremity(event_id=e, room_id=room) for e in result.forward_extremities)
    BackwardExtremity.objects.bulk_create(
        BackwardExtremity(event_id=e, room_id=room) for e in result.backward_extremities
    )
    CurrentState.objects.bulk_create(
        CurrentState(room_id=room, type=kind, state_key=key, event_id=e, membership=m)
        for kind, key, e, m in result.current_state
    )
    insert(
        CurrentStateDelta,
        ("stream_ordering", "instance_name", "room_id", "type", "state_key", "event_id", "prev_event_id"),
        ((positions[n], WRITER, room, *entry) for n, *entry in result.state_deltas),
    )
    EventVisibility.objects.bulk_create(
        EventVisibility(
            room_id=room,
            user_id=row.user_id,
            kind=row.kind,
            first=0 if row.first == BEFORE_LIVE else positions[row.first],
            last=None if row.last is None else positions[row.last],
        )
        for row in result.visibility
    )
    return result


def damage(event_id: str, json: bytes) -> None:
    """Puts bytes in the place of an event's JSON that the table refuses by now, until the test's transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE events_eventjson DROP CONSTRAINT events_eventjson_utf8")
    EventJson.objects.filter(event_id=event_id).update(json=json)


def groups_of_events(event_ids: Collection[str]) -> dict[str, int]:
    """Event -> the group after it; events without one (outliers, unknown state) are left out."""
    found = Event.objects.filter(event_id__in=event_ids, state_group__isnull=False)
    return {event_id: group for event_id, group in found.values_list("event_id", "state_group") if group is not None}
