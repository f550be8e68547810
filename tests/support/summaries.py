"""What the rows of the list of rooms should be, computed from the other tables without SQL functions."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from events.models import CurrentState, Event, EventJson, Room, RoomSummary

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def text_in(room_id, event_type, key):
    """A text of the current state, read without SQL functions."""
    entry = CurrentState.objects.filter(room_id=room_id, type=event_type, state_key="").first()
    if entry is None or Event.read.filter(event_id=entry.event_id, redacted_by__isnull=False).exists():
        return None
    found = json.loads(bytes(EventJson.objects.get(event_id=entry.event_id).json))["content"].get(key)
    return found.strip() or None if isinstance(found, str) else None


def moment(event):
    claimed = datetime.fromtimestamp(min(max(event.origin_server_ts, 0), 99_999_999_999_000) / 1000, UTC)
    return min(event.received_at, claimed)


def expected(room_id):
    events = list(Event.read.in_room(room_id))
    shown = [event for event in events if not event.outlier and not event.soft_failed and event.rejected_reason is None]
    members = CurrentState.objects.filter(room_id=room_id, type="m.room.member").values_list("membership", flat=True)
    active_at = max((moment(event) for event in shown), default=_EPOCH)
    return {
        "name": text_in(room_id, "m.room.name", "name"),
        "alias": text_in(room_id, "m.room.canonical_alias", "alias"),
        "events": len(events),
        "joined": list(members).count("join"),
        "invited": list(members).count("invite"),
        "active_at": active_at,
        "active_on": active_at.date(),
    }


def assert_right():
    """Every room has a row, no other row is there, and each is what the tables say."""
    rooms = sorted(Room.objects.values_list("room_id", flat=True))
    assert sorted(RoomSummary.objects.values_list("room_id", flat=True)) == rooms
    for row in RoomSummary.objects.all():
        wanted = expected(row.room_id)
        assert {name: getattr(row, name) for name in wanted} == wanted, row.room_id
        assert row.words == " ".join(filter(None, [row.name, row.alias, row.room_id])).lower()
