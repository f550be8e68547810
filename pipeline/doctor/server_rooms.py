"""Reads rooms of a Synapse server's database: their events, and what the server itself has worked out of them. Needs no Django.

Several small rooms are read with one query for each table. A large room is read alone.

The states of the server's state groups are not built one by one. A walk visits the groups of a room so that each group
comes right after the group that it is a difference to, and changes one state in place. The walk yields a digest of each
state (``state.groups.compaction.entry_digest``), so it takes time in proportion to the stored rows.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import attrgetter
from typing import Any

from events.errors import EventRefused
from events.format.parsing import LINE_LIMIT_BYTES, ParsedEvent, Verdict, announced_version, parse_stored
from pipeline.doctor.report import Finding, Reason, RoomResult
from pipeline.frames.event_columns import event_arrays
from pipeline.frames.parse_lines import LineRules, parse_lines
from pipeline.frames.room_events import Held, RoomEvents
from pipeline.frames.schemas import EVENTS
from pipeline.frames.sources.parts import BrokenLine, Line
from pipeline.frames.sources.synapse_db import ANNOUNCING, line_of_row
from state.errors import UnknownRoomVersion
from state.groups.compaction import entry_digest
from state.groups.deltas import StateKey
from state.rules.room_versions import room_version

__all__ = ["Context", "ServerRoom", "read_rooms", "state_of_group"]

_ROWS_PER_BATCH, _GROUPS_AT_ONCE, _ROWS_PER_FETCH, _EVENTS_PER_FETCH = 2_000, 5_000, 5_000, 500
_MASK = 2**64 - 1
#: The columns of ``line_of_row``, and what the server has beside the event. Rows are sorted before the JSON is joined to them.
_EVENTS = """
SELECT e.event_id, r.room_version, e.outlier, x.reason, j.internal_metadata, e.stream_ordering, j.json, e.room_id, g.state_group
FROM (
    SELECT e.event_id, e.room_id, e.outlier, e.stream_ordering FROM events e
    WHERE e.room_id = ANY (%s) {more} ORDER BY e.room_id, e.stream_ordering
) AS e LEFT JOIN event_json j ON j.event_id = e.event_id
LEFT JOIN rooms r ON r.room_id = e.room_id LEFT JOIN rejections x ON x.event_id = e.event_id
LEFT JOIN event_to_state_groups g ON g.event_id = e.event_id ORDER BY e.room_id, e.stream_ordering
"""
_HAS_OLD_ROOMS = "SELECT EXISTS (SELECT FROM rooms WHERE room_id = ANY (%s) AND room_version IS NULL)"
_EDGES = """
SELECT g.room_id, g.id, e.prev_state_group FROM state_groups g
LEFT JOIN state_group_edges e ON e.state_group = g.id WHERE g.room_id = ANY (%s)
"""
_ENTRIES = """
SELECT s.state_group, s.type, s.state_key, s.event_id
FROM unnest(%s::bigint[]) WITH ORDINALITY AS wanted (id, place) JOIN state_groups_state s ON s.state_group = wanted.id
ORDER BY wanted.place
"""
_CURRENT = "SELECT room_id, type, state_key, event_id, membership FROM current_state_events WHERE room_id = ANY (%s)"
_EXTREMITIES = "SELECT room_id, event_id FROM event_forward_extremities WHERE room_id = ANY (%s)"
_PARTIAL = "SELECT room_id FROM partial_state_rooms WHERE room_id = ANY (%s)"
_JOINED = """
SELECT DISTINCT room_id FROM local_current_membership WHERE room_id = ANY (%s) AND membership = 'join'
"""
#: The entries of a group's state, each with the group that has its row. Of several the nearest comes first. A group may have
#: the same edge twice: with UNION ALL the rows would double with each hop.
_STATE = """
WITH RECURSIVE chain (id, hops) AS (
    SELECT %s::bigint, 0 UNION
    SELECT e.prev_state_group, hops + 1 FROM chain JOIN state_group_edges e ON e.state_group = chain.id WHERE hops < 100000
)
SELECT DISTINCT ON (s.type, s.state_key) s.type, s.state_key, s.event_id, s.state_group
FROM chain JOIN state_groups_state s ON s.state_group = chain.id ORDER BY s.type, s.state_key, hops
"""


@dataclass(frozen=True, slots=True)
class _Row:
    """An event: its line, or what is wrong with it, and the server's state group after it."""

    event_id: str
    room_id: str
    line: Line | BrokenLine
    state_group: int | None


@dataclass(frozen=True, slots=True)
class Context:
    """What all rooms of a server have in common. ``server`` is its name, or empty. ``tables``: optional tables that are there."""

    server: str
    tables: frozenset[str]


@dataclass(slots=True)
class ServerRoom:
    """A room as the server has it. ``result`` collects what is found while it is read."""

    room_id: str
    result: RoomResult
    held: Held = field(default_factory=Held)
    state_groups: dict[str, int] = field(default_factory=dict)
    """Event -> the server's state group after it."""
    keys: dict[str, tuple[StateKey, int]] = field(default_factory=dict)
    """State event -> (its type and state key, its number among the events that could be read)."""
    unreadable: set[str] = field(default_factory=set)
    outliers: set[str] = field(default_factory=set)
    digests: dict[int, int] = field(default_factory=dict)
    """State group -> digest of its state, for the groups that events need."""
    current: dict[StateKey, tuple[str, str | None]] = field(default_factory=dict)
    """Entries of the current state: (event ID, membership)."""
    extremities: set[str] = field(default_factory=set)
    is_partial: bool = False
    """True if the server has not got the state of the room yet (a join that was faster than its state)."""
    is_joined: bool | None = None
    """True if a user of the server is joined. None: not known."""
    events: RoomEvents | None = None
    """None if no event could be read."""

    def add_events(self, events: Sequence[ParsedEvent], first: int) -> None:
        import pyarrow as pa  # noqa: PLC0415 - executors only

        if not events:
            return
        for number, event in enumerate(events, first):
            if event.state_key is not None:
                self.keys[event.event_id] = ((event.type, event.state_key), number)
            if event.outlier:
                self.outliers.add(event.event_id)
        arrays = event_arrays(events)
        arrays["json"] = pa.repeat(pa.scalar(b"", pa.binary()), len(events))  # no rule reads it
        none = pa.nulls(len(events), pa.int64())
        schema = EVENTS.arrow()
        self.held.add(pa.RecordBatch.from_arrays([arrays.get(column.name, none) for column in schema], schema=schema))


def read_rooms(connection: Any, room_ids: Sequence[str], context: Context) -> Generator[ServerRoom]:
    """Yields the rooms that have events. A room may be used until the next one is asked for. ``connection`` is in a snapshot."""
    current, extremities = _by_room(connection, _CURRENT, room_ids), _by_room(connection, _EXTREMITIES, room_ids)
    partial = _names(connection, _PARTIAL, room_ids) if "partial_state_rooms" in context.tables else set()
    joined = _names(connection, _JOINED, room_ids) if "local_current_membership" in context.tables else None
    edges = _by_room(connection, _EDGES, room_ids)
    for room in _with_events(connection, room_ids):
        try:
            room.current = {(row[0], row[1]): (row[2], row[3]) for row in current.pop(room.room_id, ())}
            room.extremities = {event_id for (event_id,) in extremities.pop(room.room_id, ())}
            room.is_partial = room.room_id in partial
            room.is_joined = None if joined is None else room.room_id in joined
            if not room.is_partial:
                _digest_groups(connection, room, edges.pop(room.room_id, ()))
            yield room
        finally:
            room.held.close()


def state_of_group(connection: Any, group: int) -> dict[StateKey, tuple[str, int]]:
    """Returns the state of one of the server's groups: key -> (event, the group that has the row)."""
    with closing(connection.cursor()) as cursor:
        cursor.execute(_STATE, [group])
        return {(kind, key): (event_id, row_of) for kind, key, event_id, row_of in cursor.fetchall()}


# --- events -----------------------------------------------------------------------------------------------------------


def _with_events(connection: Any, room_ids: Sequence[str]) -> Iterator[ServerRoom]:
    versions: dict[str, str] = {}
    with closing(connection.cursor()) as cursor:
        cursor.execute(_HAS_OLD_ROOMS, [list(room_ids)])
        ((has_old_rooms,),) = cursor.fetchall()
    for row in _rows(connection, room_ids, ANNOUNCING) if has_old_rooms else ():
        if isinstance(row.line, Line) and (announced := announced_version(row.line.content, row.line.given)):
            versions.setdefault(*announced)
    rules = LineRules(versions=versions)
    for room_id, rows in groupby(_rows(connection, room_ids), key=attrgetter("room_id")):
        room = ServerRoom(room_id, RoomResult(room_id))
        first = 0
        while some := list(islice(rows, _ROWS_PER_BATCH)):
            events = list(_parsed(room, some, rules))
            room.add_events(events, first)
            first += len(events)
            room.result.events += len(some)
        if room.held:
            room.events = RoomEvents(room.held.batches())
        yield room


def _rows(connection: Any, room_ids: Sequence[str], more: str = "") -> Iterator[_Row]:
    # Room after room, each by ascending stream ordering.
    with closing(connection.cursor("events")) as cursor:
        cursor.execute(_EVENTS.format(more=more), [list(room_ids)])
        while rows := cursor.fetchmany(_EVENTS_PER_FETCH):
            for *row, room_id, group in rows:
                yield _Row(row[0], room_id, line_of_row(0, row), group)


def _parsed(room: ServerRoom, rows: Sequence[_Row], rules: LineRules) -> Iterator[ParsedEvent]:
    kept: dict[Any, Any] = {}
    for row in rows:
        if row.state_group is not None:
            room.state_groups[row.event_id] = row.state_group
        if (event := _accepted_form(row.line, kept)) is not None:
            yield event
            continue
        (line,) = parse_lines([row.line], rules)
        if not isinstance(line, BrokenLine):
            yield line[1]
            continue
        room.unreadable.add(row.event_id)
        if line.reason == "no-json":
            room.result.add(
                Finding(
                    Reason.EVENT_WITHOUT_JSON,
                    room.room_id,
                    f"The event {row.event_id} has no row in event_json.",
                    "Restore the row from a backup; or delete the room, and join it again over federation.",
                    event_id=row.event_id,
                    rule="each row of events has one in event_json",
                )
            )
        else:
            room.result.remark(f"events that cannot be parsed here, {line.reason}")


def _accepted_form(line: Line | BrokenLine, kept: dict[Any, Any]) -> ParsedEvent | None:
    # The server has examined the form of its events. What their hashes prove is enough here. None: examine it.
    if isinstance(line, BrokenLine) or line.given is None or len(line.content) > LINE_LIMIT_BYTES:
        return None
    given = line.given
    verdict = Verdict(
        given["outlier"], given["rejected_reason"], given["soft_failed"], given["stream_ordering"] or None, True, True
    )
    try:
        return parse_stored(line.content, room_version(given["room_version"]), given["event_id"], verdict, kept)
    except (EventRefused, UnknownRoomVersion, ValueError, TypeError):
        return None


# --- state groups -----------------------------------------------------------------------------------------------------


def _digest_groups(connection: Any, room: ServerRoom, edges: Iterable[Sequence[Any]]) -> None:
    """Sets ``room.digests``, and reports what is wrong with the groups themselves."""
    prev: dict[int, int | None] = {}
    for group, below in edges:
        if prev.get(group) is None:
            prev[group] = below
    needed: set[int] = set()
    for start in set(room.state_groups.values()):
        found: int | None = start
        while found is not None and found in prev and found not in needed:
            needed.add(found)
            found = prev[found]
    order = _in_order(room, {group: prev[group] for group in needed})
    room.result.groups = len(needed)
    walk = _Walk(room)
    rows = _entries(connection, [group for group, _ in order])
    waiting = next(rows, None)
    for group, depth in order:
        changes: Sequence[tuple[StateKey, str]] = ()
        if waiting is not None and waiting[0] == group:
            changes = waiting[1]
            waiting = next(rows, None)
        room.digests[group] = walk.enter(group, depth, changes)
        room.result.rows += len(changes)


def _in_order(room: ServerRoom, prev: Mapping[int, int | None]) -> list[tuple[int, int]]:
    """Returns (group, number of groups below it), so that what a group builds on comes before it, and is still the state."""
    above: dict[int | None, list[int]] = {}
    for group, below in sorted(prev.items(), reverse=True):
        if below is not None and below not in prev:
            room.result.add(_broken(room, group, f"builds on the state group {below}, which is not stored"))
            below = None  # noqa: PLW2901 - as the server reads it
        above.setdefault(below, []).append(group)
    order, stack = [], [(group, 0) for group in above.get(None, ())]
    while stack:
        group, depth = stack.pop()
        order.append((group, depth))
        stack += [(other, depth + 1) for other in above.get(group, ())]
    if len(order) < len(prev):
        for group in sorted(prev.keys() - {group for group, _ in order})[:1]:
            room.result.add(_broken(room, group, "builds on itself"))
    return order


def _broken(room: ServerRoom, group: int, subject: str) -> Finding:
    return Finding(
        Reason.GROUP_BROKEN,
        room.room_id,
        f"The state group {group} {subject}.",
        "Restore state_groups, state_group_edges and state_groups_state from a backup; or delete the room, and join it again.",
        stored=str(group),
        rule="a state group is the group below it, plus its rows",
    )


def _entries(connection: Any, groups: Sequence[int]) -> Iterator[tuple[int, list[tuple[StateKey, str]]]]:
    for start in range(0, len(groups), _GROUPS_AT_ONCE):
        with closing(connection.cursor("entries")) as cursor:
            cursor.itersize = _ROWS_PER_FETCH
            cursor.execute(_ENTRIES, [list(groups[start : start + _GROUPS_AT_ONCE])])
            for group, rows in groupby(cursor, key=lambda row: row[0]):
                yield group, [((kind, key), event_id) for _, kind, key, event_id in rows]


class _Walk:
    """The state at the present place of the walk, and for each group on the way to it, how to undo its changes."""

    def __init__(self, room: ServerRoom) -> None:
        self._room = room
        self._state: dict[StateKey, str] = {}
        self._stack: list[tuple[int, list[tuple[StateKey, str | None]]]] = []

    def enter(self, group: int, depth: int, changes: Iterable[tuple[StateKey, str]]) -> int:
        state, stack = self._state, self._stack
        while len(stack) > depth:
            for key, event_id in reversed(stack.pop()[1]):
                if event_id is None:
                    del state[key]
                else:
                    state[key] = event_id
        digest, undo = stack[-1][0] if stack else 0, []
        for key, event_id in changes:
            old = state.get(key)
            if old != event_id:
                self._check_entry(group, key, event_id)
                digest += entry_digest(key, event_id) - entry_digest(key, old)
                undo.append((key, old))
                state[key] = event_id
        digest &= _MASK
        stack.append((digest, undo))
        return digest

    def _check_entry(self, group: int, key: StateKey, event_id: str) -> None:
        room = self._room
        found = room.keys.get(event_id)
        if found is None and event_id not in room.unreadable:
            reason, subject = Reason.ENTRY_UNKNOWN, "which is no state event of the room"
        elif found is not None and found[0] != key:
            reason, subject = Reason.ENTRY_MISPLACED, f"whose type and state key are {' '.join(found[0]).rstrip()}"
        else:
            return
        room.result.add(
            Finding(
                reason,
                room.room_id,
                f"The state group {group} has the event {event_id} at {' '.join(key).rstrip()}, {subject}.",
                "Restore the rows of the group in state_groups_state from a backup.",
                event_id=event_id,
                key=" ".join(key).rstrip(),
                stored=event_id,
                rule="an entry of a state is a state event of the room, at its type and state key",
            )
        )


# --- small queries ----------------------------------------------------------------------------------------------------


def _by_room(connection: Any, sql: str, room_ids: Sequence[str]) -> dict[str, list[Sequence[Any]]]:
    found: dict[str, list[Sequence[Any]]] = {}
    with closing(connection.cursor()) as cursor:
        cursor.execute(sql, [list(room_ids)])
        for room_id, *row in cursor:
            found.setdefault(room_id, []).append(row)
    return found


def _names(connection: Any, sql: str, room_ids: Sequence[str]) -> set[str]:
    return set(_by_room(connection, sql, room_ids))
