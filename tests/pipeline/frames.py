"""Frames in tests: their rows as plain Python values."""

from __future__ import annotations

from django.db import connection

from pipeline.frames.sources.inputs import open_inputs, parts_of_inputs, read_part
from pipeline.frames.sources.parts import BrokenLine, Line
from tests.support.room_data import ROOMS


def rows_of(frame, *columns: str) -> list[tuple]:
    """The rows of a frame, sorted, null first; lists are tuples, and bytes are bytes."""
    return in_order(map(plain, frame.select(*columns or frame.columns).collect()))


def in_order(rows) -> list[tuple]:
    """Rows sorted, null first."""
    return sorted(rows, key=lambda row: [(value is not None, value) for value in row])


def plain(row) -> tuple:
    """A row of Spark as a tuple of values that compare."""
    return tuple(
        tuple(value) if isinstance(value, list) else bytes(value) if isinstance(value, bytearray) else value
        for value in row
    )


def lines_of(*names) -> list[tuple[int, Line | BrokenLine]]:
    """(source, line) of all lines of some sources, read here."""
    with parts_of_inputs(open_inputs([str(name) for name in names]), 1 << 40) as parts:
        return [(part.file, line) for part in parts for line in read_part(part, 1 << 20)]


def shipped(*rooms: str) -> list[str]:
    """The files of shipped rooms."""
    return [str(ROOMS / room / "events.jsonl.gz") for room in rooms]


#: The numbers that frames have in place of the site's IDs.
_NUMBERED = """
WITH event AS (
    SELECT *, row_number() OVER (PARTITION BY room_id ORDER BY stream_ordering) - 1 AS number FROM events_event
), groups AS (
    SELECT *, row_number() OVER (PARTITION BY room_id ORDER BY id) - 1 AS number FROM state_stategroup
), room_of AS (SELECT event_id, room_id FROM events_event)
"""
#: What is stored, by frame: its columns as the query gives them. Stream orderings and places in sources are the site's own.
STORED = {
    "rooms": ("*", "SELECT room_id, room_version, creator, create_event_id, current_state_unresolved, "
              "visibility_unresolved FROM events_room"),
    "events": (
        "room_id number backfilled event_id type state_key sender topological_ordering origin_server_ts membership redacts "
        "relates_to outlier rejected_reason soft_failed redacted_by state_unresolved group_number",
        "SELECT e.room_id, e.number, stream_ordering < 0, event_id, type, state_key, sender, topological_ordering, "
        "origin_server_ts, membership, redacts, relates_to, outlier, rejected_reason, soft_failed, redacted_by, "
        "state_unresolved, g.number FROM event e LEFT JOIN groups g ON g.id = e.state_group",
    ),
    "event_json": ("*", "SELECT room_id, event_id, room_version, json FROM events_eventjson JOIN room_of USING (event_id)"),
    "edges": ("*", "SELECT room_id, event_id, prev_event_id FROM events_eventedge JOIN room_of USING (event_id)"),
    "auth_edges": ("*", "SELECT room_id, event_id, auth_event_ids FROM events_eventauth JOIN room_of USING (event_id)"),
    "forward_extremities": ("*", "SELECT room_id, event_id FROM events_forwardextremity"),
    "backward_extremities": ("*", "SELECT room_id, event_id FROM events_backwardextremity"),
    "timeline_gaps": (
        "room_id number", "SELECT room_id, number FROM events_timelinegap JOIN event USING (room_id, stream_ordering)"
    ),
    "state_groups": (
        "*",
        "SELECT g.room_id, g.number, p.number, c.number, g.hops, g.keys, g.rows_to_read FROM groups g "
        "JOIN groups c ON c.id = g.chain LEFT JOIN groups p ON p.id = g.prev_group",
    ),
    "state_group_deltas": (
        "*",
        "SELECT g.room_id, c.number, g.number, type, state_key, event_id FROM state_stategroupdelta d "
        "JOIN groups g ON g.id = d.state_group JOIN groups c ON c.id = d.chain",
    ),
    "current_state": ("*", "SELECT room_id, type, state_key, event_id, membership FROM events_currentstate"),
    "current_state_deltas": (
        "room_id number type state_key event_id prev_event_id",
        "SELECT d.room_id, number, d.type, d.state_key, d.event_id, d.prev_event_id FROM events_currentstatedelta d "
        "JOIN event USING (stream_ordering)",
    ),
    "visibility": (
        "room_id user_id kind first_number last_number",
        "SELECT v.room_id, v.user_id, kind, f.number, l.number FROM events_eventvisibility v "
        "JOIN event f ON f.stream_ordering = first LEFT JOIN event l ON l.stream_ordering = last",
    ),
}  # fmt: skip


def stored(name):
    """The stored rows of a frame, with numbers."""
    with connection.cursor() as cursor:
        cursor.execute(_NUMBERED + STORED[name][1])
        found = cursor.fetchall()
    return in_order(tuple(_plain(value) for value in row) for row in found)


def _plain(value):
    if isinstance(value, list):
        return tuple(value)
    return bytes(value) if isinstance(value, memoryview) else value


def computed(worked_out, name):
    """The computed rows of a frame, in the same columns."""
    columns = STORED[name][0]
    return rows_of(getattr(worked_out, name), *(() if columns == "*" else columns.split()))
