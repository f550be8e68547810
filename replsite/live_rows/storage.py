"""The tables of storage: a row for the database with its largest tables, one for state groups, one for each big room (pure).

Here are the classes of these rows, the bounded queries that fill them, and the columns that show them. Row counts are
PostgreSQL's own estimates; no table is counted. Unreferenced state groups are found by index. If there are very many groups,
only a sample is checked.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from replsite.live_rows.cells import (
    HIDDEN,
    NOTHING,
    Cell,
    Column,
    Group,
    Table,
    joined,
    moment_cell,
    number_cell,
    quoted_key,
    text_cell,
)
from replsite.status.words import Severity, Verdict
from streams.runtime.amounts import byte_size, count, counted, duration

#: Storage is read again after this time at the earliest.
STORAGE_SECONDS = 60.0
MOST_TABLES = 12
MOST_ROOMS = 10
#: Up to this number, all groups are checked. If there are more, a sample of about this size is checked.
GROUPS_SAMPLED = 20_000
#: Name of the whole database among the samples of tables.
DATABASE = "(database)"
_ORPHANS = "manage.py purge orphans"
_STATE_TABLES = ("state_stategroup", "state_stategroupdelta")

_SERVER = """
SELECT pg_database_size(current_database()), array_agg(slot_name::text ORDER BY slot_name),
    array_agg(active ORDER BY slot_name)
FROM pg_replication_slots WHERE slot_type = 'physical' AND NOT temporary
"""
_SIZES = """
SELECT relname, CASE WHEN live > 0 OR reltuples < 0 THEN live ELSE reltuples::bigint END, bytes
FROM (
    SELECT relname, reltuples, pg_stat_get_live_tuples(oid) AS live, pg_total_relation_size(oid) AS bytes
    FROM pg_class WHERE relkind IN ('r', 'm')
      AND relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'streams_streamposition'::regclass)
) AS sized ORDER BY bytes DESC, relname
"""
_GROWN = """
SELECT DISTINCT ON (reader) reader, at, position, waiting FROM streams_sample
WHERE step_seconds = 120 AND stream = '' AND at > %(as_of)s::timestamptz - interval '1 day' ORDER BY reader, at
"""
_UNREFERENCED = """
SELECT count(*) FROM state_stategroup g {sample}
WHERE NOT EXISTS (SELECT FROM events_event e WHERE e.state_group = g.id)
  AND NOT EXISTS (SELECT FROM state_stategroup n WHERE n.prev_group = g.id)
"""
#: ``size`` has an index, and is coarse: rooms of equal size are sorted by the exact number.
_ROOMS = f"""
SELECT room_id, events, joined, nullif(active_at, to_timestamp(0)) FROM events_roomsummary
ORDER BY size DESC, events DESC, room_id LIMIT {MOST_ROOMS}
"""


@dataclass(frozen=True, slots=True)
class TableView:
    """A table with PostgreSQL's estimate of its rows (None: not known) and its bytes including indexes.

    ``grown_bytes`` and ``grown_rows`` are the growth since ``grown_since``: since a day ago, or since the history begins.
    """

    name: str
    rows: int | None
    size_bytes: int
    grown_bytes: int | None = None
    grown_rows: int | None = None
    grown_since: datetime | None = None
    about: str = field(default="", metadata=HIDDEN)
    as_of: datetime | None = field(default=None, metadata=HIDDEN)
    share: float | None = field(default=None, metadata=HIDDEN)
    """Its size divided by that of all listed tables."""


@dataclass(frozen=True, slots=True)
class RoomSizeView:
    """A big room, from its row of ``RoomSummary``."""

    room_id: str
    events: int
    members: int
    active_at: datetime | None


@dataclass(frozen=True, slots=True)
class StorageView:
    """The storage of the database, read once a minute at most. ``tables`` are the largest ones."""

    as_of: datetime
    database: TableView
    tables: tuple[TableView, ...] = ()
    state_groups: int | None = None
    state_group_rows: int | None = None
    """Rows of all state groups, stored as deltas."""
    state_bytes: int = 0
    unreferenced_groups: int | None = None
    """State groups that no event references, and that no other group is a delta to."""
    unreferenced_exact: bool = True
    """False: estimated from a sample, because there are many groups."""
    rooms: tuple[RoomSizeView, ...] = ()
    standbys: tuple[tuple[str, bool], ...] = ()
    """The replication slots for standbys of the database, and for each true if a standby reads from it."""


def read_storage(cursor: Any, as_of: datetime) -> StorageView:
    """Returns the figures of the database's storage. Figures of apps that are not installed stay empty."""
    cursor.execute(_SERVER)
    database_bytes, slots, connected = cursor.fetchone()
    cursor.execute(_SIZES)
    sizes = {name: (rows, size) for name, rows, size in cursor.fetchall()}
    cursor.execute(_GROWN, {"as_of": as_of})
    before = {name: (at, size, rows) for name, at, size, rows in cursor.fetchall()}

    def table(name: str, rows: int | None, size: int) -> TableView:
        at, old_size, old_rows = before.get(name, (None, size, rows))
        grown_rows = rows - old_rows if rows is not None and old_rows is not None else None
        return TableView(name, rows, size, size - old_size, grown_rows, at) if at else TableView(name, rows, size)

    (groups, group_bytes), (group_rows, row_bytes) = (sizes.get(name, (None, 0)) for name in _STATE_TABLES)
    has_rooms = "events_event" in sizes
    unreferenced, exact = _unreferenced(cursor, groups) if has_rooms and groups is not None else (None, True)
    return StorageView(
        as_of=as_of,
        database=table(DATABASE, None, database_bytes),
        tables=tuple(table(name, *size) for name, size in [*sizes.items()][:MOST_TABLES]),
        state_groups=groups,
        state_group_rows=group_rows,
        state_bytes=group_bytes + row_bytes,
        unreferenced_groups=unreferenced,
        unreferenced_exact=exact,
        standbys=tuple(zip(slots or (), connected or (), strict=True)),
        rooms=_rooms(cursor) if has_rooms else (),
    )


def _unreferenced(cursor: Any, groups: int) -> tuple[int, bool]:
    """Returns the number of unreferenced state groups, and true if the number is exact.

    ``groups`` is PostgreSQL's estimate of the number of all state groups.
    """
    if groups <= GROUPS_SAMPLED:
        cursor.execute(_UNREFERENCED.format(sample=""))
        return cursor.fetchone()[0], True
    percent = 100 * GROUPS_SAMPLED / groups
    cursor.execute(_UNREFERENCED.format(sample="TABLESAMPLE SYSTEM (%(percent)s) REPEATABLE (1)"), {"percent": percent})
    return round(cursor.fetchone()[0] * 100 / percent), False


def _rooms(cursor: Any) -> tuple[RoomSizeView, ...]:
    cursor.execute(_ROOMS)
    return tuple(RoomSizeView(*row) for row in cursor.fetchall())


def _state_status(storage: StorageView) -> Verdict:
    found = storage.unreferenced_groups
    if not found:
        return Verdict("", Severity.FINE, "")
    about = "" if storage.unreferenced_exact else "About "
    groups = "state group is" if found == 1 else "state groups are"
    sentence = f"{about}{count(found)} {groups} needed by nothing; {_ORPHANS} removes what is."
    return Verdict("", Severity.FINE, sentence, _ORPHANS)


def _state_name(storage: StorageView) -> Cell:
    found = storage.unreferenced_groups
    return text_cell("State groups", joined("as deltas", "" if found is None else f"{count(found)} unreferenced"))


def _state_groups(storage: StorageView) -> Cell:
    groups, rows = storage.state_groups or 0, storage.state_group_rows or 0
    return text_cell(
        counted(groups, "group"), f"{counted(rows, 'row')} · {rows / groups:.1f} rows each" if groups else ""
    )


def _name(table: TableView) -> Cell:
    return text_cell("Database" if table.name == DATABASE else table.name, table.about)


def _size(table: TableView) -> Cell:
    cell = text_cell(byte_size(table.size_bytes))
    if table.share is not None:
        cell["share"] = round(table.share, 2)
    return cell


def _grown(table: TableView) -> Cell | str:
    if table.grown_bytes is None or table.grown_since is None or table.as_of is None:
        return NOTHING
    sign = "-" if table.grown_bytes < 0 else "+"
    seconds = (table.as_of - table.grown_since).total_seconds()
    return text_cell(f"{sign}{byte_size(abs(table.grown_bytes))}", f"in {duration(round(seconds / 60) * 60)}")


STORAGE = Table(
    "Storage",
    "State groups, the database and its largest tables with their indexes. Rows are PostgreSQL's estimates.",
    "Nothing is known of storage.",
    (
        Column("Stored", {TableView: _name, StorageView: _state_name}, number=False),
        Column("Rows", {TableView: lambda table: number_cell(table.rows), StorageView: _state_groups}),
        Column("Size", {TableView: _size, StorageView: lambda storage: byte_size(storage.state_bytes)}),
        Column("Grown", {TableView: _grown}),
    ),
    has_words=False,
)
ROOMS = Table(
    "Biggest rooms",
    "By stored events.",
    "No room is stored.",
    (
        Column("Room", {RoomSizeView: lambda room: room.room_id}, number=False),
        Column("Events", {RoomSizeView: lambda room: number_cell(room.events)}),
        Column("Members", {RoomSizeView: lambda room: number_cell(room.members)}),
        Column("Newest event", {RoomSizeView: lambda room: moment_cell(room.active_at)}),
    ),
    has_words=False,
)


def storage_groups(storage: StorageView | None) -> list[Group]:
    """Returns a group for the database with a row for each of its largest tables, then a group for the state groups.

    The list is empty if ``storage`` is None.
    """
    if storage is None:
        return []
    sizes = sum(table.size_bytes for table in storage.tables) or 1
    tables = [replace(t, as_of=storage.as_of, share=t.size_bytes / sizes) for t in storage.tables]
    about = f"its {counted(len(tables), 'largest table')} below"
    head = STORAGE.row(replace(storage.database, as_of=storage.as_of, about=about))
    groups: list[Group] = [
        {"key": "database", "head": head, "rows": [STORAGE.row(table, table.name) for table in tables]},
    ]
    if storage.state_groups is not None:
        state = STORAGE.row(storage, status=_state_status(storage))
        groups.append({"key": "state", "head": state, "rows": []})
    return groups


def room_groups(rooms: tuple[RoomSizeView, ...]) -> list[Group]:
    """Returns a group for each of the biggest rooms: a row without further rows. The group's key is the room ID."""
    return [
        {"key": room.room_id, "head": ROOMS.row(room, admin_id=quoted_key(room.room_id)), "rows": []} for room in rooms
    ]
