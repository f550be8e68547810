"""The changes of rooms' rows in all their tables: one value, and the only SQL that writes it (pure, except ``write``).

A message on top of the only extremity, for example, is a change of a row of ``events_forwardextremity``, and added rows of
``events_eventjson`` and ``events_eventedge``. A repair of a room's ranges clears them and adds the right ones. Facts of
streams are not part of it, because they need positions: ``events.persist.write_rows`` sends them between ``before_facts``
and ``after_facts``.

Assumes the caller's transaction with the rooms' rows locked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from events.columns import COLUMNS, INSERT_INTO
from events.declarations import CACHE_NAME
from state.groups.deltas import GroupBuilder
from streams.core.invalidation import ROOM_STATE, room_state_keys
from streams.db.copy_in import copy_rows

SqlStatement = tuple[str, Sequence[Any], bool]
"""(text, values, true if the same text is executed many times)."""
Place = tuple[str, tuple[str, ...]]
"""(table, columns that its rows have besides those of ``COLUMNS``)."""
_MOST_ROWS = 1_000
FEWEST_COPIED = 100
"""``write`` adds at least so many rows of a table by COPY, and fewer rows by INSERT."""
_KEYS = {
    "events_backwardextremity": ("room_id", "event_id"),
    "events_currentstate": ("room_id", "type", "state_key"),
    "events_eventedge": ("event_id", "prev_event_id"),
    "events_eventvisibility": ("id",),
    "events_room": ("room_id",),
    "events_timelinegap": ("room_id", "stream_ordering"),
}
_TYPES = {
    **dict.fromkeys(
        (
            "id",
            "prev_group",
            "chain",
            "state_group",
            "topological_ordering",
            "origin_server_ts",
            "first",
            "last",
            "stream_ordering",
            "content_generation",
        ),
        "bigint",
    ),
    **dict.fromkeys(
        ("outlier", "soft_failed", "state_unresolved", "current_state_unresolved", "visibility_unresolved"), "boolean"
    ),
    "hops": "smallint",
    "keys": "integer",
    "rows_to_read": "integer",
    "received_at": "timestamptz",
    "censored_at": "timestamptz",
    "auth_event_ids": "varchar[]",
    "json": "bytea",
}
"""The types of columns. All others have the type text."""
#: Comes first in the lock's message. In a transaction at another level that has read something, the server refuses it.
READ_COMMITTED = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
#: Makes PostgreSQL use indexes for the rest of the transaction. It plans a prepared statement once, until the next ANALYZE. A
#: plan that was made for a small table would read the table whole each time, while the table grows.
BY_INDEX = "SET LOCAL enable_seqscan = off"
#: Has it use the order of an index as well. Such a plan would sort all events of a room each time, to find the last one.
IN_ORDER_OF_INDEX = f"{BY_INDEX}; SET LOCAL enable_bitmapscan = off"
#: Parameter: the room ID.
LOCK_ROOM = f"{READ_COMMITTED}; SELECT FROM events_room WHERE room_id = %s FOR UPDATE"
#: In the order of the IDs. Otherwise A could hold room 1 and wait for room 2, while B holds room 2 and waits for room 1.
LOCK_ROOMS = "SELECT FROM events_room WHERE room_id = ANY(%(rooms)s::text[]) ORDER BY room_id FOR UPDATE"
#: Locks the room, and has all processes drop what they cached of its content. Parameter: the room ID.
CHANGE_ROOM = f"{READ_COMMITTED}; UPDATE events_room SET content_generation = content_generation + 1 WHERE room_id = %s"
#: Two transactions may create the same room: A inserts the row, and B waits here for the end of A. The first content generation
#: is the present time. So a room that was deleted and is created again has another generation, and no process uses cached
#: values of the old room.
MAKE_ROOMS = """
INSERT INTO events_room (room_id, room_version, content_generation)
SELECT room_id, room_version, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
FROM unnest(%(begun)s::text[], %(versions)s::text[]) AS new (room_id, room_version)
ORDER BY room_id ON CONFLICT (room_id) DO NOTHING
"""
#: Inserts the rows of whole rooms, given as columns. Returns the IDs of those that were not there. The order of the IDs keeps two
#: transactions with the same rooms from a deadlock.
INSERT_ROOMS = f"""
{INSERT_INTO["events_room"]}
SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::boolean[], %s::boolean[]) AS given (room_id)
ORDER BY room_id COLLATE "C" ON CONFLICT (room_id) DO NOTHING RETURNING room_id
"""
#: As long as only outliers of a room are stored, its version is what any server has stated. The room's own create event
#: corrects it.
CORRECT_VERSIONS = """
UPDATE events_room r SET room_version = own.version, content_generation = content_generation + 1
FROM unnest(%(own_rooms)s::text[], %(own_versions)s::text[]) AS own (room_id, version)
WHERE r.room_id = own.room_id AND r.room_version <> own.version AND r.create_event_id IS NULL
  AND NOT EXISTS (SELECT FROM events_event e WHERE e.room_id = r.room_id AND NOT e.outlier)
"""
_DROP_EMPTY_ROOMS = """
DELETE FROM events_room r WHERE room_id = ANY(%s::text[]) AND NOT EXISTS (SELECT FROM events_event e WHERE e.room_id = r.room_id)
"""
_OPEN_GAPS = f"""
{INSERT_INTO["events_backwardextremity"]}
SELECT %(room)s, prev FROM unnest(%(prevs)s::text[]) AS prev
WHERE NOT EXISTS (SELECT FROM events_event e WHERE e.event_id = prev AND e.room_id = %(room)s AND NOT e.outlier)
ON CONFLICT (room_id, event_id) DO NOTHING RETURNING event_id
"""
#: Rows of this table are added last, because a trigger reads the events.
_STATE = "events_currentstate"
_IF_STORED = {
    _STATE: "(room_id, type, state_key) DO UPDATE SET event_id = excluded.event_id, membership = excluded.membership",
    "events_timelinegap": "(room_id, stream_ordering) DO NOTHING",
}
"""Table -> what to do if a row with the same key is stored."""
#: Ends ranges. ``greatest`` is needed because, after a purge, a range may begin above the last event that is left.
_END_RANGES = """
UPDATE events_eventvisibility v SET last = greatest(v.first, ended.last)
FROM unnest(%s::text[], %s::text[], %s::bigint[]) AS ended (user_id, kind, last)
WHERE v.room_id = %s::text AND v.user_id IS NOT DISTINCT FROM ended.user_id AND v.kind = ended.kind AND v.last IS NULL
"""
_UNCUT = "DELETE FROM events_eventvisibility WHERE room_id = %s AND user_id = ANY(%s::text[]) AND kind = 'cut' AND last IS NULL"
_SHOW = """
DELETE FROM events_eventvisibility v USING events_event e
WHERE e.event_id = ANY(%s::text[]) AND v.room_id = e.room_id AND v.user_id IS NULL AND v.kind = 'withheld'
  AND v.first = e.stream_ordering
"""
_UNFLAG_REDACTED = """
UPDATE events_event e SET redacted_by = NULL FROM events_event redaction
WHERE redaction.event_id = ANY(%s::text[]) AND e.event_id = redaction.redacts AND e.redacted_by = redaction.event_id
"""
_FLAG_REDACTED = """
UPDATE events_event SET redacted_by = applied.redaction
FROM unnest(%s::text[], %s::text[]) AS applied (target, redaction)
WHERE event_id = applied.target AND redacted_by IS NULL
"""
#: Columns that hold redacted content are emptied, too. The target of a redaction stays, because it still takes effect.
_MARK_CENSORED = (
    "UPDATE events_event SET censored_at = clock_timestamp(), relates_to = NULL WHERE event_id = ANY(%s::text[])"
)
_NEEDED_GROUPS = """
SELECT id FROM unnest(%(groups)s::bigint[]) AS given (id)
WHERE EXISTS (SELECT FROM events_event e WHERE e.state_group = given.id)
  OR EXISTS (SELECT FROM state_stategroup g WHERE g.prev_group = given.id AND NOT g.id = ANY(%(groups)s))
"""
_DROP_DELTAS = """
DELETE FROM state_stategroupdelta d USING state_stategroup g
WHERE g.id = ANY(%s) AND d.chain = g.chain AND d.state_group = g.id
"""
_DROP_GROUPS = "DELETE FROM state_stategroup WHERE id = ANY(%s)"


@dataclass(slots=True)
class RoomRows:
    """Changes of rows, in the order in which they are made: cleared, removed, changed, added."""

    cleared: dict[tuple[str, str], None] = field(default_factory=dict)
    """(table, room) whose rows are all removed."""
    removed: dict[str, list[Sequence[Any]]] = field(default_factory=dict)
    """Table -> keys."""
    changed: dict[tuple[str, tuple[str, ...]], list[Sequence[Any]]] = field(default_factory=dict)
    """(table, columns) -> rows of a key and the values of the columns."""
    added: dict[Place, list[Sequence[Any]]] = field(default_factory=dict)
    others: list[tuple[str, Sequence[Any]]] = field(default_factory=list)
    stale: list[tuple[str, list[str] | None]] = field(default_factory=list)
    """(cache name, keys of a value) that all processes drop, or (cache name, None) for all values of that name."""

    def clear(self, room_id: str, *tables: str) -> None:
        self.cleared.update(((table, room_id), None) for table in tables)

    def remove(self, table: str, *keys: Sequence[Any]) -> None:
        if keys:
            self.removed.setdefault(table, []).extend(keys)

    def change(self, table: str, *key: Any, **values: Any) -> None:
        self.changed.setdefault((table, tuple(values)), []).append((*key, *values.values()))

    def add(self, table: str, *values: Any, **more: Any) -> None:
        self.added.setdefault((table, tuple(more)), []).append((*values, *more.values()))

    def add_groups(
        self,
        room_id: str,
        builder: GroupBuilder,
        new: Collection[int],
        ids: Mapping[int, int],
        chains: Mapping[int, int],
    ) -> None:
        """Adds the groups ``new`` of a builder. ``ids`` and ``chains`` map its numbers to IDs."""
        for number, prev, chain, *sizes in builder.group_rows(new):
            below = None if prev is None else ids[prev]
            self.add("state_stategroup", ids[number], room_id, below, chains[chain], *sizes)
        for chain, group, *entry in builder.delta_rows(new):
            self.add("state_stategroupdelta", chains[chain], ids[group], *entry)

    def drop_state(self, room_id: str, users: Iterable[str]) -> None:
        """Drops what depends on the room's current state, or on the membership of these users."""
        self.stale += [(ROOM_STATE, keys) for keys in room_state_keys(room_id, users)]

    def end_ranges(self, room_id: str, ended: Iterable[tuple[str | None, str, int]]) -> None:
        """Ends open ranges, given as (user, kind, last place)."""
        self.others.append((_END_RANGES, [*map(list, zip(*ended, strict=True)), room_id]))

    def uncut(self, room_id: str, users: Sequence[str]) -> None:
        self.others.append((_UNCUT, [room_id, users]))

    def show(self, redactions: Sequence[str]) -> None:
        """Removes the ranges that withhold these redactions."""
        self.others.append((_SHOW, [redactions]))

    def flag_redacted(self, redactions: dict[str, str]) -> None:
        """Records target -> redaction, except for targets that are redacted already."""
        self.others.append((_FLAG_REDACTED, [list(redactions), list(redactions.values())]))

    def unflag_redacted(self, redactions: Sequence[str]) -> None:
        """Removes the effect of redactions that turned out to be rejected."""
        self.others.append((_UNFLAG_REDACTED, [redactions]))

    def censor(self, pruned: Mapping[str, bytes]) -> None:
        """Replaces the JSON of events by their pruned form, event ID -> JSON."""
        for event_id, json in pruned.items():
            self.change("events_eventjson", event_id, json=json)
        self.others.append((_MARK_CENSORED, [list(pruned)]))
        self.stale += [(CACHE_NAME, [event_id]) for event_id in pruned]

    def before_facts(self) -> Iterator[SqlStatement]:
        for table, room_id in self.cleared:
            yield f"DELETE FROM {table} WHERE room_id = %s", [room_id], True
        for table, keys in self.removed.items():
            yield _remove_sql(table), _columns(keys), True
        for (table, columns), rows in self.changed.items():
            yield _change_sql(table, columns), _columns(rows), True
        for text, values in self.others:
            yield text, values, True

    def after_facts(self) -> Iterator[SqlStatement]:
        for place, rows in self.in_order():
            yield from _inserts(place, rows)

    def in_order(self) -> Iterator[tuple[Place, Sequence[Sequence[Any]]]]:
        """Yields the added rows of each table."""
        return iter(sorted(self.added.items(), key=lambda item: item[0][0] == _STATE))


def write(cursor: Any, rows: RoomRows) -> None:
    for text, values, _ in rows.before_facts():
        cursor.execute(text, values)
    for place, some in rows.in_order():
        if len(some) >= FEWEST_COPIED and place[0] not in _IF_STORED:
            table, more = place
            copy_rows(cursor, table, {name: _type(name) for name in (*COLUMNS[table], *more)}, some)
        else:
            for text, values, _ in _inserts(place, some):
                cursor.execute(text, values)


def _inserts(place: Place, rows: Sequence[Sequence[Any]]) -> Iterator[SqlStatement]:
    into, arrays, if_stored = _insert_sql(place)
    for first in range(0, len(rows), _MOST_ROWS):
        part = rows[first : first + _MOST_ROWS]
        if arrays and len(part) > 1:
            yield f"{into} {arrays}{if_stored}", _columns(part), True
        else:
            row = f"({', '.join(['%s'] * len(part[0]))})"
            values = [value for row in part for value in row]
            yield f"{into} VALUES {', '.join([row] * len(part))}{if_stored}", values, len(part) == 1


@cache
def _insert_sql(place: Place) -> tuple[str, str, str]:
    # As arrays, rows are the same statement whatever their number, and it is planned once. Arrays of arrays have one length.
    table, more = place
    types = [_type(name) for name in (*COLUMNS[table], *more)]
    into = f"INSERT INTO {table} ({', '.join((*COLUMNS[table], *more))})"
    arrays = f"SELECT * FROM unnest({', '.join(f'%s::{kind}[]' for kind in types)})"
    if_stored = f" ON CONFLICT {_IF_STORED[table]}" if table in _IF_STORED else ""
    return into, "" if any(kind.endswith("[]") for kind in types) else arrays, if_stored


def open_gaps(cursor: Any, room_id: str, prevs: Iterable[str]) -> set[str]:
    """Inserts those of the prev events that are not in the graph as backward extremities. Returns the new ones.

    Call it after the events of a batch are inserted, so that none of them becomes one.
    """
    cursor.execute(_OPEN_GAPS, {"room": room_id, "prevs": sorted(prevs)})
    return {event_id for (event_id,) in cursor.fetchall()}


def drop_empty_rooms(cursor: Any, room_ids: Sequence[str]) -> None:
    """Deletes the rows of those rooms of which no event is stored."""
    cursor.execute(_DROP_EMPTY_ROOMS, [room_ids])


def drop_unused_groups(cursor: Any, groups: Collection[int]) -> tuple[int, int, int]:
    """Deletes groups, except those that an event has, or on which a group that stays is built.

    Returns the numbers of groups that stay, of deleted groups, and of deleted rows of deltas.
    """
    unused = set(groups)
    # A group that stays needs the groups below it. So each round may find more that have to stay.
    while True:
        cursor.execute(_NEEDED_GROUPS, {"groups": sorted(unused)})
        needed = {group for (group,) in cursor.fetchall()}
        if not needed:
            break
        unused -= needed
    cursor.execute(_DROP_DELTAS, [sorted(unused)])
    rows = cursor.rowcount
    drop_groups(cursor, unused)
    return len(groups) - len(unused), cursor.rowcount, rows


def drop_groups(cursor: Any, groups: Collection[int]) -> None:
    cursor.execute(_DROP_GROUPS, [sorted(groups)])


def _columns(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def key_of(table: str) -> Sequence[str]:
    return _KEYS.get(table, ("event_id",))


@cache
def _remove_sql(table: str) -> str:
    key = key_of(table)
    if len(key) == 1:
        return f"DELETE FROM {table} WHERE {key[0]} = ANY(%s::{_type(key[0])}[])"
    return f"DELETE FROM {table} stored USING {_given(key, key)} WHERE {_same_key(key)}"


@cache
def _change_sql(table: str, columns: tuple[str, ...]) -> str:
    key = key_of(table)
    if not {*columns} <= {*COLUMNS[table], "content_generation"}:  # names become part of the text
        raise AssertionError(f"{table} has no columns {columns!r} that change")
    new = [f"new_{name}" for name in columns]
    values = ", ".join(f"{name} = given.{value}" for name, value in zip(columns, new, strict=True))
    return f"UPDATE {table} stored SET {values} FROM {_given((*key, *columns), (*key, *new))} WHERE {_same_key(key)}"


def _given(columns: Sequence[str], names: Sequence[str]) -> str:
    return f"unnest({', '.join(f'%s::{_type(name)}[]' for name in columns)}) AS given ({', '.join(names)})"


def _same_key(key: Sequence[str]) -> str:
    return " AND ".join(f"stored.{name} = given.{name}" for name in key)


def _type(column: str) -> str:
    return _TYPES.get(column, "text")
