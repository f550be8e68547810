"""The schemas of all frames: names, columns, types and meanings (pure but for pyspark and pyarrow types).

A *frame* is a DataFrame with one of these schemas. ``EVENTS`` and ``BROKEN_LINES`` come from sources. The frames of
``ROOM_FRAMES`` hold the rows of rooms, whether computed from events or read from the database. Each schema is given to
Spark (``FrameSchema.spark``) and to Arrow (``FrameSchema.arrow``), and holds the same columns in both.

Rules that all frames of rooms follow:

* Every frame has ``room_id``. So rows can be grouped by room, and a difference names its room.
* A column with the name of a column of the table holds the same value. Stream orderings are null in computed rows if the
  source gave none.
* A column whose name is or ends with ``number`` counts within the room, from 0. Events are numbered in ascending order
  of stream ordering; events without one come last, in the order of the source. A state group has a higher number than the
  group that it is a delta to. State groups in the database are numbered by ID. So rows that are computed from the same
  events are always the same, whatever IDs the database assigns when the rows are loaded.
* The order of rows has no meaning.

Text is compared by code point. Integers have 64 bits. Times are milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = [
    "BROKEN_LINES",
    "EVENTS",
    "FRAMES",
    "ROOM_FRAMES",
    "SET_ASIDE",
    "Column",
    "FrameSchema",
]

_TEXT, _NUMBER, _FLAG, _BYTES, _TEXTS = "string", "bigint", "boolean", "binary", "array<string>"


class Column(NamedTuple):
    """A column of a frame: its Spark type, whether it may be null, and a text about its meaning."""

    type: str
    nullable: bool
    about: str


@dataclass(frozen=True, slots=True)
class FrameSchema:
    """The schema of a frame.

    ``table`` is the database table whose rows the frame holds, or None if there is no such table. ``key`` names the
    columns that identify a row among all rows of the frame.
    """

    name: str
    about: str
    columns: Mapping[str, Column]
    key: Sequence[str]
    table: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def spark(self) -> StructType:
        """Returns the schema of the DataFrame.

        All columns of the result are nullable in Spark, because Spark's files and filters lose the property that a
        column is not null.
        """
        from pyspark.sql import types  # noqa: PLC0415 - executors and plain readers of this module need no Spark

        kinds = {
            _TEXT: types.StringType(),
            _NUMBER: types.LongType(),
            _FLAG: types.BooleanType(),
            _BYTES: types.BinaryType(),
            _TEXTS: types.ArrayType(types.StringType()),
        }
        return types.StructType([types.StructField(name, kinds[column.type]) for name, column in self.columns.items()])

    def arrow(self) -> pa.Schema:
        import pyarrow as pa  # noqa: PLC0415 - only where batches are made or read

        kinds = {
            _TEXT: pa.string(),
            _NUMBER: pa.int64(),
            _FLAG: pa.bool_(),
            _BYTES: pa.binary(),
            _TEXTS: pa.list_(pa.string()),
        }
        return pa.schema([(name, kinds[column.type]) for name, column in self.columns.items()])


def _text(about: str, *, nullable: bool = False) -> Column:
    return Column(_TEXT, nullable, about)


def _number(about: str, *, nullable: bool = False) -> Column:
    return Column(_NUMBER, nullable, about)


def _flag(about: str) -> Column:
    return Column(_FLAG, False, about)


_ROOM_ID = _text("the room")
_EVENT_ID = _text("the event")
_TYPE = _text("event type")
_STATE_KEY = _text("state key")
_PLACE = {
    "source": _number("number of the file or database, from 0; null: not read from a source", nullable=True),
    "line": _number("line or row within the source, from 1; null: not read from a source", nullable=True),
}
_OF_CONTENT = {
    "membership": _text("content.membership of an m.room.member state event", nullable=True),
    "redacts": _text("event that this m.room.redaction is about", nullable=True),
    "relates_to": _text("target of content.m.relates_to", nullable=True),
}
_STREAM_ORDERING = "negative on the backward stream; null: the source gave none"

EVENTS = FrameSchema(
    "events",
    "Events as a source gives them: a row for each line or row that is a valid event, also for further copies of one. "
    "The fields are those of `events.format.parsing.ParsedEvent`.",
    {
        **_PLACE,
        "room_id": _ROOM_ID,
        "room_version": _text('"1" to "12"'),
        "event_id": _EVENT_ID,
        "type": _TYPE,
        "state_key": _text("null: not a state event", nullable=True),
        "sender": _text("user who sent it"),
        "depth": _number("as claimed by the sender"),
        "origin_server_ts": _number("time as claimed by the sender"),
        "prev_event_ids": Column(_TEXTS, False, "prev events in the event's order, each once"),
        "auth_event_ids": Column(_TEXTS, False, "auth events in the event's order, each once"),
        **_OF_CONTENT,
        "content_hash_matches": _flag("false: the content did not match its hash, so `json` is the redacted form"),
        "stream_ordering": _number(f"position that the source gives; {_STREAM_ORDERING}", nullable=True),
        "outlier": _flag("no place in the graph"),
        "rejected_reason": _text(
            "why the source rejected it; null: accepted, or the source does not say", nullable=True
        ),
        "soft_failed": _flag("the source soft-failed it"),
        "rejection_given": _flag("the source says whether it rejected the event, so event auth is not applied"),
        "soft_failure_given": _flag("the source says whether it soft-failed the event"),
        "content": _text("JSON object with the part of the content that rules read; null: none", nullable=True),
        "json": Column(_BYTES, False, "exact bytes of the event"),
    },
    ("source", "line"),
)
"""Events of sources. One row is one ``ParsedEvent`` and its place."""

BROKEN_LINES = FrameSchema(
    "broken_lines",
    "Lines and rows of sources that are no valid events, with the reason. Nothing in a source is silently left out.",
    {
        "source": _number("number of the file or database, from 0"),
        "name": _text("path of the file, or URL of the database without password"),
        "line": _number("line or row within the source, from 1"),
        "reason": _text("a word, such as not-json"),
        "detail": _text("what is wrong, in words"),
        "head": Column(_BYTES, False, "first 300 bytes of the line"),
    },
    ("source", "line"),
)
"""Lines from which no event could be read."""

SET_ASIDE = FrameSchema(
    "set_aside",
    "Valid events that are not among the rows of rooms, with the reason. Further copies of an event are not listed.",
    {
        **_PLACE,
        "room_id": _ROOM_ID,
        "event_id": _EVENT_ID,
        "reason": _text("room-version-differs, wrong-event-id, event-known or room-known"),
        "detail": _text("what is wrong, in words"),
    },
    ("source", "line"),
)
"""Events that are set aside, for one of four reasons: the event contradicts the rest of its room, another room has an event
with its ID, the event is stored already, or its room is."""


def _of_rooms(*frames: FrameSchema) -> Mapping[str, FrameSchema]:
    return {frame.name: frame for frame in frames}


ROOM_FRAMES: Mapping[str, FrameSchema] = _of_rooms(
    FrameSchema(
        "rooms",
        "Rooms.",
        {
            "room_id": _ROOM_ID,
            "room_version": _text('"1" to "12"'),
            "creator": _text("sender of the create event; null: that is not here", nullable=True),
            "create_event_id": _text("null: it is not here", nullable=True),
            "current_state_unresolved": _flag("the state at a forward extremity is not known"),
            "visibility_unresolved": _flag("the state at an accepted event is not known, so there are no ranges"),
        },
        ("room_id",),
        "events_room",
    ),
    FrameSchema(
        "events",
        "Events with their verdicts and state groups.",
        {
            "room_id": _ROOM_ID,
            "number": _number("place of the event in the room"),
            "stream_ordering": _number(f"position of the event; {_STREAM_ORDERING}", nullable=True),
            "backfilled": _flag("the event belongs to the backward stream"),
            **_PLACE,
            "event_id": _EVENT_ID,
            "type": _TYPE,
            "state_key": _text("null: not a state event", nullable=True),
            "sender": _text("user who sent it"),
            "topological_ordering": _number("depth as claimed by the sender"),
            "origin_server_ts": _number("time as claimed by the sender"),
            **_OF_CONTENT,
            "outlier": _flag("no place in the graph"),
            "rejected_reason": _text("why event auth rejected it; null: accepted", nullable=True),
            "soft_failed": _flag("fails against the state of the room on arrival"),
            "redacted_by": _text("redaction that applies to this event", nullable=True),
            "state_unresolved": _flag("the state at this event is not known"),
            "group_number": _number(
                "state group after it (rejected: before it); null: an outlier, or the state is not known", nullable=True
            ),
        },
        ("event_id",),
        "events_event",
    ),
    FrameSchema(
        "event_json",
        "The exact bytes of events.",
        {
            "room_id": _ROOM_ID,
            "event_id": _EVENT_ID,
            "room_version": _text("tells the event's format"),
            "json": Column(_BYTES, False, "UTF-8 JSON text"),
        },
        ("event_id",),
        "events_eventjson",
    ),
    FrameSchema(
        "edges",
        "Edges of the graph, from an event to a prev event. Outliers have none. The prev event may be missing.",
        {"room_id": _ROOM_ID, "event_id": _EVENT_ID, "prev_event_id": _text("a prev event")},
        ("event_id", "prev_event_id"),
        "events_eventedge",
    ),
    FrameSchema(
        "auth_edges",
        "Auth events of state events, in the order in which the event lists them.",
        {"room_id": _ROOM_ID, "event_id": _EVENT_ID, "auth_event_ids": Column(_TEXTS, False, "its auth events")},
        ("event_id",),
        "events_eventauth",
    ),
    FrameSchema(
        "forward_extremities",
        "Forward extremities: accepted events that no accepted event refers to.",
        {"room_id": _ROOM_ID, "event_id": _EVENT_ID},
        ("event_id",),
        "events_forwardextremity",
    ),
    FrameSchema(
        "backward_extremities",
        "Backward extremities: missing events, or outliers, that an event refers to.",
        {"room_id": _ROOM_ID, "event_id": _text("the missing event")},
        ("room_id", "event_id"),
        "events_backwardextremity",
    ),
    FrameSchema(
        "timeline_gaps",
        "First live events above backward extremities. A timeline is cut there.",
        {
            "room_id": _ROOM_ID,
            "number": _number("the live event above the gap; null: it is not among the room's events", nullable=True),
            "stream_ordering": _number("its position; null: the source gave none", nullable=True),
        },
        ("room_id", "number", "stream_ordering"),
        "events_timelinegap",
    ),
    FrameSchema(
        "state_groups",
        "State groups: full states of the room, each stored as a difference to another.",
        {
            "room_id": _ROOM_ID,
            "number": _number("number of the group"),
            "prev_number": _number("group this one is a difference to; null: stored in full", nullable=True),
            "chain_number": _number("first group of its chain"),
            "hops": _number("other chains that reading the state needs"),
            "keys": _number("entries of the full state"),
            "rows_to_read": _number("rows of differences that reading the state needs"),
        },
        ("room_id", "number"),
        "state_stategroup",
    ),
    FrameSchema(
        "state_group_deltas",
        "Entries in which a state group differs from the group below it.",
        {
            "room_id": _ROOM_ID,
            "chain_number": _number("first group of the group's chain"),
            "group_number": _number("the group"),
            "type": _TYPE,
            "state_key": _STATE_KEY,
            "event_id": _text("the new entry; null: the entry is removed", nullable=True),
        },
        ("room_id", "group_number", "type", "state_key"),
        "state_stategroupdelta",
    ),
    FrameSchema(
        "current_state",
        "Entries of the current state.",
        {
            "room_id": _ROOM_ID,
            "type": _TYPE,
            "state_key": _STATE_KEY,
            "event_id": _EVENT_ID,
            "membership": _text("membership of an m.room.member entry", nullable=True),
        },
        ("room_id", "type", "state_key"),
        "events_currentstate",
    ),
    FrameSchema(
        "current_state_deltas",
        "Changes of the current state, each with the event with which it came.",
        {
            "room_id": _ROOM_ID,
            "number": _number("the event; null: the position is not that of an event of the room", nullable=True),
            "stream_ordering": _number("position of the change; null: the source gave none", nullable=True),
            "type": _TYPE,
            "state_key": _STATE_KEY,
            "event_id": _text("the new entry; null: the entry was removed", nullable=True),
            "prev_event_id": _text("the entry before; null: there was none", nullable=True),
        },
        ("room_id", "number", "stream_ordering", "type", "state_key"),
        "events_currentstatedelta",
    ),
    FrameSchema(
        "visibility",
        "Ranges of events that a user, or everyone, may see. Both ends are included.",
        {
            "room_id": _ROOM_ID,
            "user_id": _text("null: room-wide", nullable=True),
            "kind": _text("reason for which the range shows or hides events"),
            "first_number": _number(
                "first event; null: not among the room's events, or before all live events", nullable=True
            ),
            "last_number": _number("last event; null: still open, or not among the room's events", nullable=True),
            "first": _number("position of the first event; null: the source gave none", nullable=True),
            "last": _number("position of the last event; null: still open, or the source gave none", nullable=True),
        },
        ("room_id", "user_id", "kind", "first_number", "first"),
        "events_eventvisibility",
    ),
)
"""The rows of rooms by the name of their frame: a frame for each table."""

FRAMES: Mapping[str, FrameSchema] = {
    "sources: events": EVENTS,
    "sources: broken_lines": BROKEN_LINES,
    **{f"rooms: {name}": frame for name, frame in ROOM_FRAMES.items()},
    "rooms: set_aside": SET_ASIDE,
}
"""All frames, for the reference page."""
