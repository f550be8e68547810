"""The declarations of the streams ``events`` and ``backfill`` (pure).

``events`` is a union of two tables: new events (``["ev", …]``) and changes of rooms' current state (``["state", …]``).
If one position has rows of both tables, the new event is sent first. ``backfill`` has the rows of the event table with
a negative stream ordering. Tokens of ``backfill`` are positive: the event at -5 has the token 5.
"""

from __future__ import annotations

from streams.core.declaration import Column, ColumnKind, FactTable, StreamDeclaration
from streams.core.row_format import IsSet, Literal, RowFormat

EVENTS_SEQUENCE = "events_event_stream_seq"
BACKFILL_SEQUENCE = "events_event_backfill_seq"

_EVENT_COLUMNS = (
    Column("event_id", ColumnKind.TEXT),
    Column("room_id", ColumnKind.TEXT),
    Column("type", ColumnKind.TEXT),
    Column("state_key", ColumnKind.TEXT, nullable=True),
    Column("redacts", ColumnKind.TEXT, nullable=True),
    Column("relates_to", ColumnKind.TEXT, nullable=True),
)


_NEW_EVENT_COLUMNS = (
    *_EVENT_COLUMNS,
    Column("membership", ColumnKind.TEXT, nullable=True),
    Column("rejected_reason", ColumnKind.TEXT, nullable=True),
)
_STATE_COLUMNS = (
    Column("room_id", ColumnKind.TEXT),
    Column("type", ColumnKind.TEXT),
    Column("state_key", ColumnKind.TEXT),
    Column("event_id", ColumnKind.TEXT, nullable=True),
)
_SENDER = (Column("sender", ColumnKind.TEXT),)
_NEW_EVENT = (
    *("event_id", "room_id", "type", "state_key", "redacts", "relates_to", "membership"),
    IsSet("rejected_reason"),
)
#: A NULL event ID says that the entry was removed.
_STATE = ("room_id", "type", "state_key", "event_id")

EVENTS = StreamDeclaration(
    name="events",
    sequence=EVENTS_SEQUENCE,
    trimmable=False,
    tables=(
        FactTable(
            name="events_event",
            columns=_NEW_EVENT_COLUMNS,
            row=RowFormat(_NEW_EVENT_COLUMNS, Literal("ev"), _NEW_EVENT),
            id_column="stream_ordering",
            where="stream_ordering > 0",
            then_by="",
            more=_SENDER,
        ),
        FactTable(
            name="events_currentstatedelta",
            columns=_STATE_COLUMNS,
            row=RowFormat(_STATE_COLUMNS, Literal("state"), _STATE),
            id_column="stream_ordering",
        ),
    ),
)

BACKFILL = StreamDeclaration(
    name="backfill",
    sequence=BACKFILL_SEQUENCE,
    backward=True,
    trimmable=False,
    tables=(
        FactTable(
            name="events_event",
            columns=_EVENT_COLUMNS,
            id_column="stream_ordering",
            where="stream_ordering < 0",
            then_by="",
            more=_SENDER,
        ),
    ),
)


CACHE_NAME = "stored_event"
"""The cache name of functions that depend on the content of one event. Their key is the event ID."""
RESYNC_USER = "resync_user"
"""The cache name of rows of ``caches`` that make the next sync answer to a user a full one."""


def declarations() -> tuple[StreamDeclaration, ...]:
    """Returns the declarations of both streams, in the order of the protocol's stream table."""
    return (EVENTS, BACKFILL)
