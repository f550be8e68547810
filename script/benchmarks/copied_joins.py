"""Puts joins on top of a stored room's last event into the tables by COPY: a room of 100,000 members is there in some seconds.

The rows are those that ``persist`` would write for them, one event after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connection

from events.columns import event_row
from events.declarations import EVENTS
from events.format.parsing import ParsedEvent
from events.models import ForwardExtremity
from events.room_lock import room_transaction
from events.rows import RoomRows, write
from state.group_ids import reserve_group_ids
from state.models import StateGroup
from streams import registry
from streams.writing.reservation import reserve_ids

__all__ = ["copy_joins"]

_MOST_AT_ONCE = 50_000
_TIP = "SELECT state_group FROM events_event WHERE event_id = %s"


def copy_joins(joins: Sequence[ParsedEvent]) -> None:
    """Stores joins of users who were never in the room, each on top of the one before. Tables are analysed afterwards."""
    for first in range(0, len(joins), _MOST_AT_ONCE):
        with room_transaction("default"):
            _copy(joins[first : first + _MOST_AT_ONCE])
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


def _copy(joins: Sequence[ParsedEvent]) -> None:
    room_id, (below,) = joins[0].room_id, joins[0].prev_event_ids
    writer, (positions,) = reserve_ids([(registry.get(EVENTS.name), len(joins))], "default")
    rows = RoomRows()
    with connection.cursor() as cursor:
        cursor.execute(_TIP, [below])
        base = StateGroup.objects.get(pk=cursor.fetchone()[0])
        groups = reserve_group_ids(cursor, len(joins))
        prev = base.pk
        for number, (event, position, group) in enumerate(zip(joins, positions, groups, strict=True), start=1):
            user = str(event.state_key)
            entry = ("m.room.member", user, event.event_id)
            rows.add("events_event", position, writer, *event_row(event, None, group))
            rows.add("events_eventjson", event.event_id, event.room_version, event.json)
            rows.add("events_eventauth", event.event_id, list(event.auth_event_ids))
            rows.add("events_eventedge", event.event_id, *event.prev_event_ids)
            rows.add("events_eventvisibility", room_id, user, "joined", position, None)
            rows.add("events_currentstate", room_id, *entry, "join")
            rows.add("events_currentstatedelta", position, writer, room_id, *entry, None)
            sizes = (base.hops, base.keys + number, base.rows_to_read + number)
            rows.add("state_stategroup", group, room_id, prev, base.chain, *sizes)
            rows.add("state_stategroupdelta", base.chain, group, *entry)
            prev = group
        write(cursor, rows)
    ForwardExtremity.objects.filter(room_id=room_id).update(event_id=joins[-1].event_id)
