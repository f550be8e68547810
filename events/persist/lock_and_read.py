"""Locks the rooms of a batch and reads the rows to which the batch refers, in one message to the database server.

Rows that only few batches need are not read here, but later under the same lock (``events.persist.room_cache``).
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from django.db import connections

from events.format.parsing import ParsedEvent
from events.room.state_assignment import is_create
from events.room.verification import proves_version
from events.rows import CORRECT_VERSIONS, IN_ORDER_OF_INDEX, LOCK_ROOMS, MAKE_ROOMS, READ_COMMITTED
from streams.db.driver import Statement, send_together


class RoomFacts(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The columns of a room's row that the processing of a batch needs."""

    room_id: str
    room_version: str
    creator: str | None
    create_event_id: str | None
    current_state_unresolved: bool
    visibility_unresolved: bool
    content_generation: int


class EventFacts(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The columns of a stored event that the processing of a batch needs, without the event's content."""

    outlier: bool
    rejected_reason: str | None
    soft_failed: bool
    state_group: int | None
    room_id: str
    redacted: bool

    @property
    def state_unresolved(self) -> bool:
        return not self.outlier and self.state_group is None


class GroupFacts(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The columns of a stored state group. ``is_tip``: it is the last group of its chain."""

    chain: int
    hops: int
    keys: int
    rows_to_read: int
    is_tip: bool


def _by(key: str, *columns: str) -> str:
    return f"coalesce(json_object_agg({key}, json_build_array({', '.join(columns)})), '{{}}')"


def _list(*columns: str, order: str = "") -> str:
    return f"coalesce(json_agg(json_build_array({', '.join(columns)}) {order}), '[]')"


_IS_TIP = """%(building)s::boolean AND NOT EXISTS (
    SELECT FROM state_stategroupdelta d WHERE d.chain = g.chain AND d.state_group > g.id)"""
_READ = f"""
WITH leaf AS MATERIALIZED (
    SELECT room_id, event_id FROM events_forwardextremity WHERE room_id = ANY(%(rooms)s::text[])
), latest AS MATERIALIZED (
    -- Pairs are compared, so that no plan walks along the positions of all rooms.
    SELECT asked.room_id, last.event_id, last.stream_ordering FROM unnest(%(rooms)s::text[]) AS asked (room_id), LATERAL (
        SELECT event_id, stream_ordering FROM events_event e
        WHERE (e.room_id, stream_ordering) > (asked.room_id, 0) AND (e.room_id, stream_ordering) <= (asked.room_id, {2**63 - 1})
          AND NOT outlier AND NOT soft_failed AND rejected_reason IS NULL
        ORDER BY e.room_id DESC, stream_ordering DESC LIMIT 1
    ) AS last
), base AS MATERIALIZED (
    SELECT %(prevs)s::text[] || ARRAY(SELECT event_id FROM leaf) || ARRAY(SELECT event_id FROM latest) AS ids
), here AS MATERIALIZED (
    SELECT event_id, outlier, rejected_reason, soft_failed, state_group, room_id, redacted_by IS NOT NULL AS redacted
    FROM events_event
    WHERE event_id = ANY((SELECT ids FROM base) || %(own)s::text[] || %(auths)s::text[])
)
SELECT json_build_array(
    (SELECT {_by("room_id", *RoomFacts.__struct_fields__)} FROM events_room WHERE room_id = ANY(%(rooms)s::text[])),
    (SELECT coalesce(json_object_agg(room_id, ids), '{{}}')
     FROM (SELECT room_id, json_agg(event_id ORDER BY event_id) AS ids FROM leaf GROUP BY room_id) AS of_room),
    (SELECT {_by("room_id", "event_id", "stream_ordering")} FROM latest),
    (SELECT {_by("event_id", *EventFacts.__struct_fields__)} FROM here),
    (SELECT {_by("g.id", "g.chain", "g.hops", "g.keys", "g.rows_to_read", _IS_TIP)}
     FROM state_stategroup g
     WHERE g.id = ANY(ARRAY(SELECT state_group FROM here WHERE event_id = ANY((SELECT ids FROM base)::text[])))),
    (SELECT {_list("edge.prev_event_id", "edge.event_id")} FROM events_eventedge edge
     WHERE edge.prev_event_id = ANY(%(own)s::text[])),
    -- With ``+ 0`` no plan goes through all events in this order.
    (SELECT {_list("room_id", "event_id", "redacts", order="ORDER BY stream_ordering + 0")} FROM events_event
     WHERE redacts = ANY(%(own)s::text[])),
    (SELECT coalesce(json_agg(event_id), '[]') FROM events_backwardextremity
     WHERE room_id = ANY(%(rooms)s::text[]) AND event_id = ANY(%(own)s::text[]))
)::text
"""


class RoomReading(msgspec.Struct, array_like=True):
    """The rooms of a batch as they are under the lock.

    ``batch_ids`` has the IDs of the batch's events. ``queried`` has all IDs that were looked up: those, and prev and auth
    events, forward extremities and latest events. ``events`` has the stored ones among them. ``groups`` has the state
    groups after prev events, forward extremities and latest events.
    """

    rooms: dict[str, RoomFacts] = {}
    extremities: dict[str, list[str]] = {}
    latest: dict[str, tuple[str, int]] = {}
    """Room -> (its latest accepted live event, the position of that event)."""
    events: dict[str, EventFacts] = {}
    groups: dict[int, GroupFacts] = {}
    above: list[tuple[str, str]] = []
    """Pairs (event of the batch, stored event that has it as a prev event)."""
    redactions: list[tuple[str, str, str]] = []
    """Triples (room, stored redaction, event of the batch that it redacts), in the order of the redactions' positions."""
    gaps: frozenset[str] = frozenset()
    """Events of the batch that are backward extremities."""
    batch_ids: frozenset[str] = frozenset()
    queried: set[str] = set()


_DECODER = msgspec.json.Decoder(RoomReading)


def lock_and_read(
    events: Collection[ParsedEvent],
    using: str,
    rooms: Collection[str] = (),
    *,
    needs_groups: bool = True,
    by_index: bool = False,
) -> RoomReading:
    """Locks the rooms of the events and the rooms in ``rooms``, and reads the rows to which the batch refers.

    A create event or an outlier of an unknown room creates the room's row, unless the auth rules refuse the create
    event. If ``needs_groups`` is false, no state groups will be written, so the statement does not look up which groups are
    the last of their chains. ``by_index`` changes the planner's settings for the rest of the transaction: use it only in
    one that was begun for ``persist`` or ``resolve_room``.
    """
    creates = [event for event in events if event.type == "m.room.create" and is_create(event)]
    outliers = [event for event in events if event.outlier and event.type != "m.room.create"]
    new_rooms = {event.room_id: event.room_version for event in (*outliers, *creates)}
    proven = {event.room_id: event.room_version for event in creates if proves_version(event)}
    batch_ids = {event.event_id for event in events}
    prevs = {prev for event in events for prev in event.prev_event_ids} - batch_ids
    auths = {other for event in events for other in event.auth_event_ids} - batch_ids - prevs
    values = {
        "begun": list(new_rooms),
        "versions": list(new_rooms.values()),
        "own_rooms": list(proven),
        "own_versions": list(proven.values()),
        "rooms": sorted({*rooms, *(event.room_id for event in events)}),
        "own": sorted(batch_ids),
        "prevs": sorted(prevs),
        "auths": sorted(auths),
        "building": needs_groups,
    }
    setup = [
        Statement(text, values, again=False) for text in (READ_COMMITTED, *([IN_ORDER_OF_INDEX] if by_index else []))
    ]
    creation = [Statement(MAKE_ROOMS, values)] if new_rooms else []
    correction = [Statement(CORRECT_VERSIONS, values)] if proven else []
    lock = Statement(LOCK_ROOMS, values)
    # The lock and the reading are two statements, each with its own snapshot (READ COMMITTED). A holds the lock and commits, B
    # gets the lock and takes the snapshot of its reading after that. In one statement B would miss what A committed.
    found = send_together(connections[using], [*setup, *creation, lock, *correction, Statement(_READ, values)])
    reading = _DECODER.decode(found[0][0])
    reading.batch_ids, reading.queried = frozenset(batch_ids), {*batch_ids, *prevs, *auths, *reading.events}
    return reading
