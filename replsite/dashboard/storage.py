"""Builds the tables of storage and of the biggest rooms for the live page (pure)."""

from __future__ import annotations

from datetime import datetime

from replsite.dashboard.cells import (
    NOTHING,
    Cell,
    Column,
    Group,
    Row,
    moment_cell,
    number_cell,
    quoted_key,
    row_of,
    text_cell,
)
from replsite.snapshot.storage import RoomSizeView, StorageView, TableView
from replsite.status.words import Severity, Verdict
from streams.runtime.amounts import byte_size, count, counted, duration

__all__ = ["ROOMS", "STORAGE", "room_groups", "storage_groups"]

STORAGE = (
    Column("Stored"),
    Column("Status"),
    Column("Rows", number=True),
    Column("Size", number=True),
    Column("Grown", number=True),
    Column("What it means"),
)
ROOMS = (
    Column("Room"),
    Column("Status"),
    Column("Events", number=True),
    Column("Members", number=True),
    Column("Newest event", number=True),
    Column("What it means"),
)
_NO_WORD = Verdict("", Severity.FINE, "")
_ORPHANS = "manage.py purge orphans"


def storage_groups(storage: StorageView | None) -> list[Group]:
    """Returns a group for the database with a row for each of its largest tables, then a group for the state groups.

    The list is empty if ``storage`` is None.
    """
    if storage is None:
        return []
    return [_database(storage), *_state(storage)]


def _state(storage: StorageView) -> list[Group]:
    if storage.state_groups is None:
        return []
    found = storage.unreferenced_groups
    sentence, command = "", ""
    if found:
        about = "" if storage.unreferenced_exact else "About "
        said = "state group is" if found == 1 else "state groups are"
        sentence = f"{about}{count(found)} {said} needed by nothing; {_ORPHANS} removes what is."
        command = _ORPHANS
    rows = storage.state_group_rows or 0
    each = f"{rows / storage.state_groups:.1f} rows each" if storage.state_groups else ""
    groups = text_cell(counted(storage.state_groups, "group"), f"{counted(rows, 'row')} · {each}" if each else "")
    unreferenced = "" if found is None else f"{count(found)} unreferenced"
    name = text_cell("State groups", " · ".join(part for part in ("as deltas", unreferenced) if part))
    cells = [name, groups, text_cell(byte_size(storage.state_bytes)), text_cell(NOTHING)]
    return [_group("state", _line("", cells, Verdict("", Severity.FINE, sentence, command)))]


def _database(storage: StorageView) -> Group:
    whole = storage.database
    sizes = sum(table.size_bytes for table in storage.tables)
    cells = [
        text_cell("Database", f"its {counted(len(storage.tables), 'largest table')} below"),
        text_cell(NOTHING),
        text_cell(byte_size(whole.size_bytes)),
        _grown(whole, storage.as_of),
    ]
    rows = [_table(table, storage.as_of, table.size_bytes / sizes if sizes else 0.0) for table in storage.tables]
    return {"key": "database", "head": _line("", cells), "rows": rows}


def _table(table: TableView, now: datetime, share: float) -> Row:
    size = text_cell(byte_size(table.size_bytes))
    size["share"] = round(share, 2)
    return _line(table.name, [text_cell(table.name), number_cell(table.rows), size, _grown(table, now)])


def _grown(table: TableView, now: datetime) -> Cell:
    """Returns a cell with the growth in bytes, and the time over which the table grew, rounded to minutes."""
    if table.grown_bytes is None or table.grown_since is None:
        return text_cell(NOTHING)
    sign = "-" if table.grown_bytes < 0 else "+"
    seconds = (now - table.grown_since).total_seconds()
    return text_cell(f"{sign}{byte_size(abs(table.grown_bytes))}", f"in {duration(round(seconds / 60) * 60)}")


def room_groups(rooms: tuple[RoomSizeView, ...]) -> list[Group]:
    """Returns a group for each of the biggest rooms: a head row without further rows.

    The group's key is the room ID.
    """
    return [_group(room.room_id, row_of("", _NO_WORD, _room_cells(room), quoted_key(room.room_id))) for room in rooms]


def _room_cells(room: RoomSizeView) -> list[Cell]:
    return [
        text_cell(room.room_id),
        number_cell(room.events),
        number_cell(room.members),
        moment_cell(room.active_at),
    ]


def _line(key: str, cells: list[Cell], status: Verdict = _NO_WORD) -> Row:
    return row_of(key, status, cells)


def _group(key: str, head: Row) -> Group:
    return {"key": key, "head": head, "rows": []}
