"""What takes the space in a Synapse server's database: tables, rooms, state groups, and what each remedy would free.

Sizes of tables are exact. Rows are counted, but of a table with more than ``_PAGES`` pages only a sample of its pages is
read, and the numbers are projected. A table's size on the disk, with its indexes, is divided among rooms by their rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import quote

from pipeline.doctor.report import Finding, Groups, PiledUp, Reason, Remedy, RoomSize, TableSize
from pipeline.doctor.server_database import ServerDatabase

__all__ = ["COMPRESS", "HOW_TO_COMPRESS", "Sizes", "measure"]

COMPRESS = "compress state groups"
HOW_TO_COMPRESS = "synapse-auto-compressor, beside the running server"

#: Pages of a table that are read, 200 MB: with more pages, a sample of as many.
_PAGES = 25_000
_MOST_ROOMS, _MOST_PILED_UP, _MANY_EXTREMITIES = 30, 100, 10
#: Of so many groups or fewer each is followed to an event. Of more, a sample.
_GROUPS_FOLLOWED, _GROUPS_SAMPLED, _GENERATIONS = 2_000_000, 2_000, 20
#: A healthy server leaves a state group behind for each event that it composed and then refused. These are the limits
#: above which unreferenced groups are a trouble: a part of the stored state, and a number.
_TROUBLE_PART, _TROUBLE_GROUPS = 0.3, 100
_OLD_DAYS = 365
_PER_EVENT = (
    "events", "event_edges", "event_auth", "event_auth_chains", "event_auth_chain_links", "event_search",
    "event_relations", "event_to_state_groups", "state_events", "room_memberships", "redactions", "event_txn_id",
    "event_push_actions",
)  # fmt: skip
_PER_STATE = ("state_groups", "state_group_edges", "state_groups_state")

_TABLES = """
SELECT c.relname::text, pg_total_relation_size(c.oid), greatest(c.reltuples, 0)::bigint, coalesce(s.n_dead_tup, 0),
       pg_relation_size(c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
WHERE c.relkind IN ('r', 'm') AND pg_table_is_visible(c.oid) AND n.nspname NOT IN ('pg_catalog', 'information_schema')
ORDER BY 2 DESC, 1
"""
_VERSION = "SELECT current_setting('server_version')"
_EVENTS_BY_ROOM = """
SELECT room_id, count(*), count(*) FILTER (
    WHERE type IN ('m.room.message', 'm.room.encrypted', 'm.reaction', 'm.sticker')
    AND origin_server_ts < extract(epoch FROM now() - interval '%d days') * 1000)
FROM events {sample} GROUP BY room_id
""".replace("%d", str(_OLD_DAYS))
_JSON_BY_ROOM = "SELECT room_id, sum(pg_column_size(json)) FROM event_json {sample} GROUP BY room_id"
_STATE_BY_ROOM = "SELECT room_id, count(*) FROM state_groups_state {sample} GROUP BY room_id"
_ROOMS = "SELECT count(*) FROM rooms"
_WITHOUT_LOCAL_USERS = """
SELECT room_id FROM rooms r WHERE NOT EXISTS (
    SELECT FROM local_current_membership m WHERE m.room_id = r.room_id AND m.membership IN ('join', 'invite', 'knock'))
"""
_NAMES = "SELECT room_id, coalesce(canonical_alias, name) FROM room_stats_state WHERE room_id = ANY (%s)"
_MEMBERS = "SELECT room_id, joined_members FROM room_stats_current WHERE room_id = ANY (%s)"
_PILED_UP = f"""
SELECT room_id, count(*) FROM event_forward_extremities GROUP BY room_id HAVING count(*) > {_MANY_EXTREMITIES}
ORDER BY 2 DESC, 1
"""
#: Rooms that were joined before their state was here, the last local user long ago.
_OVERDUE = """
SELECT p.room_id, to_timestamp(max(e.origin_server_ts) / 1000) AT TIME ZONE 'UTC' FROM partial_state_rooms p
JOIN local_current_membership m ON m.room_id = p.room_id AND m.membership = 'join'
JOIN events e ON e.room_id = p.room_id AND e.sender = m.user_id AND e.type = 'm.room.member' AND NOT e.outlier
GROUP BY p.room_id HAVING max(e.origin_server_ts) < extract(epoch FROM now() - interval '1 day') * 1000 ORDER BY 2, 1
"""
_UPDATES = "SELECT update_name FROM background_updates ORDER BY 1"
_DELETED_ROOMS = """
SELECT g.room_id, count(*) FROM state_groups g
WHERE NOT EXISTS (SELECT FROM rooms r WHERE r.room_id = g.room_id)
AND NOT EXISTS (SELECT FROM events e WHERE e.room_id = g.room_id) GROUP BY g.room_id ORDER BY 2 DESC
"""
#: Groups that events name, and all that these are differences to. The others are needed by nothing.
_UNREFERENCED = """
WITH RECURSIVE needed (id) AS (
    SELECT state_group FROM event_to_state_groups
    UNION SELECT e.prev_state_group FROM needed n JOIN state_group_edges e ON e.state_group = n.id
), unreferenced AS (
    SELECT g.id FROM state_groups g WHERE NOT EXISTS (SELECT FROM needed n WHERE n.id = g.id)
)
SELECT (SELECT count(*) FROM state_groups), (SELECT count(*) FROM unreferenced),
       (SELECT count(*) FROM unreferenced u JOIN state_groups_state s ON s.state_group = u.id)
"""
_SOME_GROUPS = "SELECT id FROM state_groups {sample} LIMIT %s"
_ROWS_OF = "SELECT count(*) FROM state_groups_state WHERE state_group = ANY (%s)"
_NAMED = "SELECT DISTINCT state_group FROM event_to_state_groups WHERE state_group = ANY (%s)"
_BUILT_ON = "SELECT prev_state_group, state_group FROM state_group_edges WHERE prev_state_group = ANY (%s)"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The results, and the findings."""

    version: str
    tables: Sequence[TableSize]
    rooms_total: int
    rooms: Sequence[RoomSize]
    empty_rooms: int | None
    sampled: Mapping[str, float]
    groups: Groups | None
    piled_up: Sequence[PiledUp]
    remedies: Sequence[Remedy]
    background_updates: Sequence[str]
    findings: Sequence[Finding]


def measure(database: ServerDatabase) -> Sizes:
    """Runs the queries of this module."""
    return _Measuring(database).result()


class _Measuring:
    def __init__(self, database: ServerDatabase) -> None:
        self._database = database
        rows = database.rows("sizes of tables", (), _TABLES) or []
        self._tables = {name: TableSize(name, *map(int, numbers)) for name, *numbers in rows}
        self._sampled: dict[str, float] = {}
        self._rooms: dict[str, RoomSize] = {}
        self._events = self._old_messages = 0.0
        self._findings: list[Finding] = []

    def result(self) -> Sizes:
        self._measure_rooms()
        state_rows = sum(room.state_rows for room in self._rooms.values())
        empty = self._empty_rooms()
        groups = self._measure_groups(state_rows)
        piled_up = [
            PiledUp(*row)
            for row in self._database.rows("forward extremities", ("event_forward_extremities",), _PILED_UP) or ()
        ]
        self._findings += [_piled_up(found) for found in piled_up]
        self._find_deleted_rooms(groups)
        self._find_overdue_states()
        count = self._database.rows("number of rooms", ("rooms",), _ROOMS) or [(len(self._rooms),)]
        updates = self._database.rows("background updates", ("background_updates",), _UPDATES) or ()
        version = self._database.rows("version of PostgreSQL", (), _VERSION) or [("",)]
        remedies = self._remedies(empty, groups)  # before the rooms that are not shown are dropped
        return Sizes(
            f"PostgreSQL {version[0][0].split()[0]}" if version[0][0] else "",
            list(self._tables.values()),
            int(count[0][0]),
            self._largest_rooms(empty),
            None if empty is None else len(empty),
            self._sampled,
            groups,
            piled_up[:_MOST_PILED_UP],
            remedies,
            [name for (name,) in updates],
            self._findings,
        )

    # --- rooms --------------------------------------------------------------------------------------------------
    def _measure_rooms(self) -> None:
        for room_id, events, old in self._by_room("events by room", "events", _EVENTS_BY_ROOM):
            self._room(room_id).events = round(events)
            self._events += events
            self._old_messages += old
        for room_id, size in self._by_room("bytes of JSON by room", "event_json", _JSON_BY_ROOM):
            self._room(room_id).json_bytes = round(size)
        for room_id, rows in self._by_room("state by room", "state_groups_state", _STATE_BY_ROOM):
            self._room(room_id).state_rows = round(rows)
        rooms = self._rooms.values()
        per_event = self._bytes_of(_PER_EVENT) / max(sum(room.events for room in rooms), 1)
        per_json = self._bytes_of(("event_json",)) / max(sum(room.json_bytes for room in rooms), 1)
        per_row = self._bytes_of(_PER_STATE) / max(sum(room.state_rows for room in rooms), 1)
        for room in rooms:
            room.event_bytes = round(room.events * per_event)
            room.json_bytes = round(room.json_bytes * per_json)
            room.state_bytes = round(room.state_rows * per_row)

    def _by_room(self, subject: str, table: str, sql: str) -> list[Any]:
        # (room ID, numbers of the whole table)
        clause, part = self._sample(table)
        found = self._database.rows(subject, (table,), sql.format(sample=clause)) or ()
        return [(room_id, *(float(number or 0) / part for number in numbers)) for room_id, *numbers in found]

    def _sample(self, table: str) -> tuple[str, float]:
        # (clause of SQL, part of the table that it reads)
        pages = self._tables[table].row_bytes / 8192 if table in self._tables else 0
        if pages <= _PAGES:
            return "", 1.0
        part = _PAGES / pages
        self._sampled[table] = round(part, 6)
        return f"TABLESAMPLE SYSTEM ({100 * part:.6f}) REPEATABLE (1)", part

    def _room(self, room_id: str) -> RoomSize:
        return self._rooms.setdefault(room_id, RoomSize(room_id))

    def _bytes_of(self, tables: Sequence[str]) -> int:
        return sum(self._tables[table].bytes for table in tables if table in self._tables)

    def _empty_rooms(self) -> set[str] | None:
        rows = self._database.rows("rooms nobody is in", ("rooms", "local_current_membership"), _WITHOUT_LOCAL_USERS)
        return None if rows is None else {room_id for (room_id,) in rows}

    def _largest_rooms(self, empty: set[str] | None) -> list[RoomSize]:
        largest = sorted(self._rooms.values(), key=lambda room: (-room.bytes, room.room_id))
        shown = list(islice(largest, _MOST_ROOMS))
        ids = [room.room_id for room in shown]
        names = dict(self._database.rows("names of rooms", ("room_stats_state",), _NAMES, [ids]) or ())
        members = dict(self._database.rows("members of rooms", ("room_stats_current",), _MEMBERS, [ids]) or ())
        for room in shown:
            room.name, room.members = names.get(room.room_id) or "", members.get(room.room_id)
            room.has_local_users = None if empty is None else room.room_id not in empty
        return shown

    # --- state groups -------------------------------------------------------------------------------------------
    def _measure_groups(self, state_rows: int) -> Groups | None:
        tables = ("state_groups", "state_group_edges", "state_groups_state", "event_to_state_groups")
        subject = "unreferenced state groups"
        row_bytes = self._bytes_of(_PER_STATE) / max(state_rows, 1)
        total = self._tables["state_groups"].rows if "state_groups" in self._tables else 0
        if total <= _GROUPS_FOLLOWED:
            rows = self._database.rows(subject, tables, _UNREFERENCED)
            if rows is None:
                return None
            count, unreferenced, of_them = map(int, rows[0])
            return Groups(count, state_rows, round(self._events), unreferenced, of_them, row_bytes, bool(self._sampled))
        clause, _ = self._sample("state_groups")
        found = self._database.rows(subject, tables, _SOME_GROUPS.format(sample=clause), [_GROUPS_SAMPLED])
        sample = [group for (group,) in found or ()]
        unneeded = self._unneeded(subject, sample) if sample else None
        if unneeded is None:
            return None
        rows = self._database.rows(subject, tables, _ROWS_OF, [unneeded]) or [(0,)]
        scale = total / len(sample)
        return Groups(
            total, state_rows, round(self._events), round(len(unneeded) * scale), round(int(rows[0][0]) * scale), row_bytes,
            is_estimated=True,
        )  # fmt: skip

    def _unneeded(self, subject: str, sample: Sequence[int]) -> list[int] | None:
        # A group is needed if an event names it, or a group that builds on it, and so on. One that is not decided after
        # some generations counts as needed.
        undecided = {group: {group} for group in sample}
        unneeded = []
        for _ in range(_GENERATIONS):
            asked = sorted(set().union(*undecided.values()))
            named = self._database.rows(subject, ("event_to_state_groups",), _NAMED, [asked])
            edges = self._database.rows(subject, ("state_group_edges",), _BUILT_ON, [asked])
            if named is None or edges is None:
                return None
            needed = {group for (group,) in named}
            above: dict[int, set[int]] = {}
            for prev, group in edges:
                above.setdefault(prev, set()).add(group)
            undecided = {
                group: set[int]().union(*(above.get(other, ()) for other in others))
                for group, others in undecided.items()
                if not others & needed
            }
            unneeded += [group for group, others in undecided.items() if not others]
            undecided = {group: others for group, others in undecided.items() if others}
            if not undecided:
                break
        return unneeded

    def _find_deleted_rooms(self, groups: Groups | None) -> None:
        rows = self._database.rows(
            "state groups of rooms that are gone", ("state_groups", "rooms", "events"), _DELETED_ROOMS
        )
        for room_id, count in rows or ():
            self._findings.append(
                Finding(
                    Reason.GROUPS_OF_DELETED_ROOMS,
                    room_id,
                    f"{count:,} state groups are left of the room {room_id}, which is not there any more.",
                    "Delete the room once more with the admin API, with purge, or delete the groups as below.",
                    rule="a state group belongs to a room",
                )
            )
        if groups is None or groups.unreferenced < _TROUBLE_GROUPS:
            return
        parts = groups.unreferenced / groups.groups, groups.unreferenced_rows / max(groups.rows, 1)
        if max(parts) > _TROUBLE_PART:
            self._findings.append(
                Finding(
                    Reason.GROUPS_UNREFERENCED,
                    "state_groups",
                    f"No event needs {groups.unreferenced:,} of {groups.groups:,} state groups; they have "
                    f"{groups.unreferenced_rows:,} of {groups.rows:,} rows of state_groups_state.",
                    "See the remedies.",
                    rule="each state group is that of an event, or one of these builds on it",
                )
            )

    def _find_overdue_states(self) -> None:
        if not self._database.exists("partial_state_rooms", "room_id"):  # an older version
            return
        tables = ("partial_state_rooms", "local_current_membership", "events")
        for room_id, joined_at in self._database.rows("rooms without their state", tables, _OVERDUE) or ():
            self._findings.append(
                Finding(
                    Reason.STATE_OVERDUE,
                    room_id,
                    f"The room {room_id} was joined before {joined_at:%Y-%m-%d %H:%M} UTC, and its state has not come since.",
                    "The server goes on asking the other servers of the room. If none of them answers any more: leave the room "
                    "with all local users, delete it with purge, and join it again.",
                    rule="the state of a room comes within minutes of the join",
                )
            )

    # --- remedies -----------------------------------------------------------------------------------------------
    def _remedies(self, empty: set[str] | None, groups: Groups | None) -> list[Remedy]:
        found = []
        if empty:
            size = sum(self._rooms[room_id].bytes for room_id in empty if room_id in self._rooms)
            found.append(
                Remedy(
                    f"delete the {len(empty):,} rooms nobody of this server is in",
                    size,
                    'DELETE /_synapse/admin/v2/rooms/ROOM_ID with {"purge": true}, for each',
                )
            )
        if groups is not None and groups.rows:
            found.append(
                Remedy(
                    f"delete the {groups.unreferenced:,} state groups that no event needs",
                    round(groups.unreferenced_rows * groups.row_bytes),
                    "recent versions do it in the background; older ones: a tool for unreferenced state groups, after a backup",
                )
            )
            needed = groups.unreferenced_rows + groups.groups - groups.unreferenced
            found.append(
                Remedy(
                    COMPRESS,
                    round(max(groups.rows - needed, 0) * groups.row_bytes),
                    HOW_TO_COMPRESS,
                    is_upper_bound=True,
                )
            )
        if self._events:
            per_event = (self._bytes_of(_PER_EVENT) + self._bytes_of(("event_json",))) / self._events
            found.append(
                Remedy(
                    f"purge messages that are older than {_OLD_DAYS} days",
                    round(self._old_messages * per_event),
                    "POST /_synapse/admin/v1/purge_history/ROOM_ID, or a retention policy",
                )
            )
        dead = sum(t.row_bytes * t.dead_rows // (t.rows + t.dead_rows) for t in self._tables.values() if t.dead_rows)
        if dead:
            found.append(
                Remedy("give the space of dead rows back", dead, "pg_repack, or VACUUM FULL with the server stopped")
            )
        return sorted((r for r in found if r.bytes), key=lambda remedy: (-remedy.bytes, remedy.subject))


def _piled_up(found: PiledUp) -> Finding:
    path = f"/_synapse/admin/v1/rooms/{quote(found.room_id, safe='!:')}/forward_extremities"
    return Finding(
        Reason.EXTREMITIES_PILE_UP,
        found.room_id,
        f"The room {found.room_id} has {found.extremities:,} forward extremities.",
        f"Send a message to the room, which refers to ten of them; or DELETE {path}.",
        stored=str(found.extremities),
        computed=f"at most {_MANY_EXTREMITIES}",
        rule="events merge the forward extremities of a room",
    )
