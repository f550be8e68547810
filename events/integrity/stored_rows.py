"""Reads all stored rows of a room once, for ``events.integrity.expected_rows``. Needs no Django.

Reads through the given cursor in the caller's transaction, which should be a single snapshot. Memory grows with the
room's events, edges and state changes. The text of the JSON is parsed some thousand events at a time, and dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from events.errors import EventRefused
from events.format.parsing import ParsedEvent, Verdict, parse_stored
from events.integrity.expected_rows import Columns, StoredEvent, StoredRows
from events.visibility.ranges import VisibilityRow, in_order
from state.rules.room_versions import RoomVersion, room_version

Mark = Sequence[tuple[int, int | None]]
"""Number and row versions of a room's rows, by table. Equal marks mean that no row was written in between."""

_ROOM_COLUMNS = (
    "room_id", "room_version", "creator", "create_event_id", "current_state_unresolved", "visibility_unresolved",
)  # fmt: skip
_ROOM = f"SELECT {', '.join(_ROOM_COLUMNS)} FROM events_room WHERE room_id = %(room)s"
#: The next events of a room by stream ordering. The columns after the first ``_ROW_COLUMNS`` are the first fields of
#: ``Columns``.
_EVENTS = """
SELECT event_id, stream_ordering, outlier, rejected_reason, soft_failed, redacted_by, state_unresolved,
  censored_at IS NOT NULL, state_group, type, state_key, sender, topological_ordering, origin_server_ts, membership, redacts,
  relates_to
FROM events_event WHERE room_id = %(room)s AND stream_ordering > %(after)s ORDER BY stream_ordering LIMIT %(most)s
"""
#: The same events as keys for other tables. Looking up an array of sorted keys costs half as much as a join.
_OF_EVENTS = """ANY(ARRAY(
    SELECT event_id FROM events_event WHERE room_id = %(room)s AND stream_ordering BETWEEN %(first)s AND %(last)s
))"""
_JSON = f"SELECT event_id, json, room_version FROM events_eventjson WHERE event_id = {_OF_EVENTS}"
_EDGES = f"SELECT event_id, prev_event_id FROM events_eventedge WHERE event_id = {_OF_EVENTS}"
_AUTH = f"SELECT event_id, auth_event_ids FROM events_eventauth WHERE event_id = {_OF_EVENTS}"
_ROW_COLUMNS = 9
_QUERIES = {
    "forward": "SELECT event_id FROM events_forwardextremity WHERE room_id = %(room)s",
    "backward": "SELECT event_id FROM events_backwardextremity WHERE room_id = %(room)s",
    "groups": "SELECT id, prev_group, chain, hops, keys, rows_to_read FROM state_stategroup WHERE room_id = %(room)s",
    "deltas": "SELECT chain, state_group, type, state_key, event_id FROM state_stategroupdelta "
    "WHERE chain IN (SELECT chain FROM state_stategroup WHERE room_id = %(room)s)",
    "current": "SELECT type, state_key, event_id, membership FROM events_currentstate WHERE room_id = %(room)s",
    "ranges": "SELECT user_id, kind, first, last FROM events_eventvisibility WHERE room_id = %(room)s",
}
#: Every write to a room changes one of these tables. A written row has a new version: another ``xmin`` or ``ctid``.
_MARKED = (
    "events_room", "events_event", "state_stategroup", "events_currentstate", "events_eventvisibility",
    "events_forwardextremity", "events_backwardextremity",
)  # fmt: skip
_MARK = " UNION ALL ".join(
    f"SELECT {number}, count(*), sum(hashtextextended(concat(xmin, ctid), 0)) FROM {table} WHERE room_id = %(room)s"
    for number, table in enumerate(_MARKED)
)
_EVENTS_PER_QUERY = 5_000
_BEFORE_ALL = -(2**63)


def read_room(cursor: Any, room_id: str) -> StoredRows | None:
    """Returns the rows of a room, or None if there is no such room. Raises ``UnknownRoomVersion``."""
    cursor.execute(_ROOM, {"room": room_id})
    room = cursor.fetchone()
    if room is None:
        return None
    read = EventParser(room_version(room[1])).event
    events = [read(*row) for row in _event_rows(cursor, room_id)]
    found: dict[str, list[Any]] = {}
    for name, query in _QUERIES.items():
        cursor.execute(query, {"room": room_id})
        found[name] = cursor.fetchall()
    columns: dict[str, Any] = dict(zip(_ROOM_COLUMNS, room, strict=True))
    return StoredRows(
        **columns,
        events=events,
        forward={event_id for (event_id,) in found["forward"]},
        backward={event_id for (event_id,) in found["backward"]},
        groups=found["groups"],
        deltas=found["deltas"],
        current={(kind, key): (event_id, membership) for kind, key, event_id, membership in found["current"]},
        ranges=in_order(VisibilityRow(*row) for row in found["ranges"]),
    )


def read_mark(cursor: Any, room_id: str) -> Mark:
    """Returns the mark of a room: for each table, the number of the room's rows and a sum over their row versions.

    PostgreSQL reads all of these rows, but sends only the sums.
    """
    cursor.execute(_MARK, {"room": room_id})
    return [(count, versions) for _, count, versions in sorted(cursor.fetchall())]


def _event_rows(cursor: Any, room_id: str) -> Iterator[tuple[tuple[Any, ...], Any, Columns]]:
    # In ranges of stream orderings, so that only a bounded part of the rows is in memory.
    after = _BEFORE_ALL
    while True:
        cursor.execute(_EVENTS, {"room": room_id, "after": after, "most": _EVENTS_PER_QUERY})
        rows = cursor.fetchall()
        if rows:
            yield from _whole_rows(cursor, rows, {"room": room_id, "first": rows[0][1], "last": rows[-1][1]})
        if len(rows) < _EVENTS_PER_QUERY:
            return
        after = rows[-1][1]


def _whole_rows(
    cursor: Any, rows: Sequence[tuple[Any, ...]], names: Mapping[str, Any]
) -> Iterator[tuple[tuple[Any, ...], Any, Columns]]:
    found = []
    for query in (_JSON, _AUTH, _EDGES):
        cursor.execute(query, names)
        found.append(cursor.fetchall())
    json = {event_id: (text, version) for event_id, text, version in found[0]}
    auth, prevs = dict(found[1]), dict[str, list[str]]()
    for event_id, prev in found[2]:
        prevs.setdefault(event_id, []).append(prev)
    for row in rows:
        event_id = row[0]
        edges = prevs.get(event_id, [])
        if len(edges) > 1:
            edges.sort()
        columns = Columns._make((*row[_ROW_COLUMNS:], edges, auth.get(event_id)))
        yield row[:_ROW_COLUMNS], json.pop(event_id, None), columns


class EventParser:
    """The parser of one room's event rows. Equal values are kept in memory once."""

    def __init__(self, version: RoomVersion) -> None:
        self._version = version
        self._kept: dict[Any, Any] = {}

    def event(self, row_columns: tuple[Any, ...], stored: tuple[Any, str] | None, columns: Columns) -> StoredEvent:
        """Returns the event of a row.

        ``row_columns`` are the columns that do not follow from the event's JSON, from ``event_id`` to ``state_group``.
        ``stored`` is the JSON with the room version by which it was stored, or None.
        """
        parsed, problem = None, None
        if stored is None:
            problem = "its JSON is not stored"
        else:
            try:
                parsed = self._parsed(row_columns, columns, bytes(stored[0]), stored[1])
            except (EventRefused, ValueError) as error:
                problem = f"its JSON cannot be read: {error}"
        same = parsed is not None and columns == Columns.of(parsed)
        values: tuple[Any, ...] = (*row_columns, None if same else columns, parsed, problem)
        return StoredEvent(*values)

    def _parsed(self, row_columns: tuple[Any, ...], columns: Columns, json: bytes, version_name: str) -> ParsedEvent:
        # The version by which an outlier was stored may differ from the room's, which was perhaps unknown then.
        event_id, place, outlier, reason, soft_failed, _, unresolved, censored, group = row_columns
        waits = unresolved and group is None and reason is None
        verdict = Verdict(outlier, reason, soft_failed, place, not waits, True)
        version = room_version(version_name) if outlier else self._version
        parsed = parse_stored(json, version, event_id, verdict, self._kept)
        if censored:  # the pruned JSON lacks these, so the columns count
            return replace(
                parsed, redacts=columns.redacts, relates_to=columns.relates_to, membership=columns.membership
            )
        return parsed
