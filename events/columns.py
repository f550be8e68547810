"""The columns of the room tables, in the order in which rows are written (pure).

Live events, the bulk import, restore and repair all write rows in this order. Tables with facts of a stream have two
more columns: the position and the writer.
"""

from __future__ import annotations

from operator import attrgetter

from events.format.parsing import ParsedEvent

_EVENT_FIELDS = (
    "event_id", "room_id", "type", "state_key", "sender", "topological_ordering", "origin_server_ts", "membership", "redacts",
    "relates_to", "outlier", "rejected_reason", "soft_failed",
)  # fmt: skip
EVENT_COLUMNS = (*_EVENT_FIELDS, "redacted_by", "state_unresolved", "state_group")
"""The columns of ``events_event``, except its position, writer and time of arrival."""
event_fields = attrgetter(*("depth" if name == "topological_ordering" else name for name in _EVENT_FIELDS))
"""Returns the values of the columns ``_EVENT_FIELDS``, which follow from the event itself."""
COLUMNS: dict[str, tuple[str, ...]] = {
    "events_backwardextremity": ("room_id", "event_id"),
    "events_currentstate": ("room_id", "type", "state_key", "event_id", "membership"),
    "events_currentstatedelta": (
        "stream_ordering", "instance_name", "room_id", "type", "state_key", "event_id", "prev_event_id",
    ),
    "events_event": ("stream_ordering", "instance_name", *EVENT_COLUMNS),
    "events_eventauth": ("event_id", "auth_event_ids"),
    "events_eventedge": ("event_id", "prev_event_id"),
    "events_eventjson": ("event_id", "room_version", "json"),
    "events_eventvisibility": ("room_id", "user_id", "kind", "first", "last"),
    "events_forwardextremity": ("event_id", "room_id"),
    "events_room": (
        "room_id", "room_version", "creator", "create_event_id", "current_state_unresolved", "visibility_unresolved",
    ),
    "events_timelinegap": ("room_id", "stream_ordering", "instance_name"),
    "state_stategroup": ("id", "room_id", "prev_group", "chain", "hops", "keys", "rows_to_read"),
    "state_stategroupdelta": ("chain", "state_group", "type", "state_key", "event_id"),
}  # fmt: skip
INSERT_INTO = {table: f"INSERT INTO {table} ({', '.join(columns)})" for table, columns in COLUMNS.items()}
"""Table -> the beginning of its INSERT statement, up to the column names."""


def event_row(event: ParsedEvent, redacted_by: str | None, state_group: int | None) -> tuple[object, ...]:
    """Returns the values of ``EVENT_COLUMNS`` for one event."""
    return (*event_fields(event), redacted_by, is_unresolved(event, state_group), state_group)


def is_unresolved(event: ParsedEvent, state_group: int | None) -> bool:
    return state_group is None and not event.outlier
