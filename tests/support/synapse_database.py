"""A database with the tables of a Synapse server, filled from the shipped rooms and the answers of their real server.

Column names and types are those of real servers' databases (1.43 and 1.163); columns that nothing reads are left out.
``fill`` makes what an import reads. ``add_answers`` adds what the server itself worked out: state groups, current state,
extremities, memberships of its users, sequences and positions.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import psycopg2

from tests.support.room_data import event_lines, oracle, stored_events

SERVER = "localhost:19201"
TABLES = """
CREATE TABLE schema_version (lock CHAR(1) NOT NULL DEFAULT 'X' UNIQUE, version INTEGER NOT NULL, upgraded BOOL NOT NULL);
CREATE TABLE schema_compat_version (lock CHAR(1) NOT NULL DEFAULT 'X' UNIQUE, compat_version INTEGER NOT NULL);
CREATE TABLE events (topological_ordering BIGINT NOT NULL, event_id TEXT NOT NULL UNIQUE, type TEXT NOT NULL,
    room_id TEXT NOT NULL, outlier BOOL NOT NULL, depth BIGINT NOT NULL, origin_server_ts BIGINT, sender TEXT,
    instance_name TEXT, stream_ordering BIGINT);
CREATE TABLE event_json (event_id TEXT NOT NULL UNIQUE, room_id TEXT NOT NULL, internal_metadata TEXT NOT NULL,
    json TEXT NOT NULL, format_version INTEGER);
CREATE TABLE rooms (room_id TEXT PRIMARY KEY NOT NULL, is_public BOOL, creator TEXT, room_version TEXT);
CREATE TABLE rejections (event_id TEXT NOT NULL UNIQUE, reason TEXT NOT NULL, last_check TEXT NOT NULL);
CREATE UNIQUE INDEX events_stream_ordering ON events (stream_ordering);
"""
GROUPS = """
CREATE TABLE event_to_state_groups (event_id TEXT NOT NULL UNIQUE, state_group BIGINT NOT NULL);
CREATE INDEX event_to_state_groups_sg_index ON event_to_state_groups (state_group);
CREATE TABLE state_group_edges (state_group BIGINT NOT NULL, prev_state_group BIGINT NOT NULL);
CREATE INDEX state_group_edges_idx ON state_group_edges (state_group);
CREATE INDEX state_group_edges_prev_idx ON state_group_edges (prev_state_group);
CREATE TABLE state_groups_state (state_group BIGINT NOT NULL, room_id TEXT NOT NULL, type TEXT NOT NULL,
    state_key TEXT NOT NULL, event_id TEXT NOT NULL);
CREATE INDEX state_groups_state_type_idx ON state_groups_state (state_group, type, state_key);
"""
#: What a server of either version has besides, as far as it is read.
ANSWERS = (
    GROUPS
    + """
ALTER TABLE events ADD COLUMN received_ts BIGINT;
CREATE INDEX events_room_stream ON events (room_id, stream_ordering);
CREATE TABLE state_events (event_id TEXT NOT NULL UNIQUE, room_id TEXT NOT NULL, type TEXT NOT NULL, state_key TEXT NOT NULL);
CREATE TABLE event_edges (event_id TEXT NOT NULL, prev_event_id TEXT NOT NULL, room_id TEXT, is_state BOOL NOT NULL);
CREATE TABLE current_state_events (event_id TEXT NOT NULL UNIQUE, room_id TEXT NOT NULL, type TEXT NOT NULL,
    state_key TEXT NOT NULL, membership TEXT, UNIQUE (room_id, type, state_key));
CREATE TABLE event_forward_extremities (event_id TEXT NOT NULL, room_id TEXT NOT NULL, UNIQUE (event_id, room_id));
CREATE TABLE event_backward_extremities (event_id TEXT NOT NULL, room_id TEXT NOT NULL, UNIQUE (event_id, room_id));
CREATE TABLE state_groups (id BIGINT PRIMARY KEY, room_id TEXT NOT NULL, event_id TEXT NOT NULL);
CREATE INDEX state_groups_room_id_idx ON state_groups (room_id);
CREATE TABLE local_current_membership (room_id TEXT NOT NULL, user_id TEXT NOT NULL, event_id TEXT NOT NULL,
    membership TEXT NOT NULL);
CREATE TABLE room_stats_state (room_id TEXT NOT NULL UNIQUE, name TEXT, canonical_alias TEXT);
CREATE TABLE room_stats_current (room_id TEXT PRIMARY KEY, joined_members INT NOT NULL, local_users_in_room INT NOT NULL);
CREATE TABLE stream_positions (stream_name TEXT NOT NULL, instance_name TEXT NOT NULL, stream_id BIGINT NOT NULL,
    UNIQUE (stream_name, instance_name));
CREATE TABLE background_updates (update_name TEXT NOT NULL UNIQUE, progress_json TEXT NOT NULL, depends_on TEXT);
CREATE TABLE receipts_linearized (stream_id BIGINT NOT NULL, instance_name TEXT, room_id TEXT NOT NULL);
CREATE TABLE device_inbox (user_id TEXT NOT NULL, device_id TEXT NOT NULL, stream_id BIGINT NOT NULL, message_json TEXT NOT NULL);
CREATE TABLE cache_invalidation_stream_by_instance (stream_id BIGINT NOT NULL, instance_name TEXT NOT NULL);
CREATE SEQUENCE events_stream_seq;
CREATE SEQUENCE events_backfill_stream_seq;
CREATE SEQUENCE cache_invalidation_stream_seq;
CREATE SEQUENCE receipts_sequence;
CREATE SEQUENCE device_inbox_sequence;
CREATE SEQUENCE state_group_id_seq;
"""
)
#: What only the newer version has.
NEWER = """
ALTER TABLE events ADD COLUMN state_key TEXT, ADD COLUMN rejection_reason TEXT;
ALTER TABLE current_state_events ADD COLUMN event_stream_ordering BIGINT;
CREATE TABLE partial_state_rooms (room_id TEXT PRIMARY KEY, device_lists_stream_id BIGINT NOT NULL DEFAULT 0);
CREATE TABLE state_groups_pending_deletion (state_group BIGINT PRIMARY KEY, insertion_ts BIGINT NOT NULL);
CREATE TABLE device_lists_stream (stream_id BIGINT NOT NULL, user_id TEXT NOT NULL, device_id TEXT NOT NULL, instance_name TEXT);
CREATE SEQUENCE device_lists_sequence;
"""
Execute = Callable[..., Any]


def fill(execute: Execute, rooms: Iterable[str], *, schema: int = 94, compatible: int = 84) -> None:
    """Make and fill the tables; ``execute(sql, values)`` with ``%s`` as the mark of a value."""
    for statement in TABLES.split(";\n"):
        if statement.strip():
            execute(statement)
    execute("INSERT INTO schema_version (version, upgraded) VALUES (%s, %s)", [schema, True])
    execute("INSERT INTO schema_compat_version (compat_version) VALUES (%s)", [compatible])
    placed: set[int] = set()
    for room in rooms:
        for line in event_lines(room):
            add_event(execute, json.loads(line), line, placed)


def add_event(execute: Execute, told: dict[str, Any], line: bytes, placed: set[int]) -> None:
    """One event of a room's file, its bytes as they stand in the line. Rooms of several servers share no places in a stream."""
    event = told["json"]
    start = line.index(b'"json":') + len(b'"json":')
    ordering = told["stream_ordering"]
    while ordering in placed:
        ordering += 1 if ordering > 0 else -1
    placed.add(ordering)
    room_id = event.get("room_id", "!" + told["event_id"][1:])
    execute(
        "INSERT INTO events VALUES (%s, %s, %s, %s, %s, %s, %s, %s, 'master', %s)",
        [
            event["depth"],
            told["event_id"],
            event["type"],
            room_id,
            told["outlier"],
            event["depth"],
            event["origin_server_ts"],
            event["sender"],
            ordering,
        ],
    )
    text = line[start:].rstrip()[:-1].decode()
    execute(
        "INSERT INTO event_json VALUES (%s, %s, %s, %s, 3)",
        [told["event_id"], room_id, json.dumps(told["internal_metadata"]), text],
    )
    if event["type"] == "m.room.create":
        execute(
            "INSERT INTO rooms (room_id, is_public, room_version) VALUES (%s, %s, %s)",
            [room_id, False, told["room_version"]],
        )
    if told["rejected_reason"]:
        execute("INSERT INTO rejections VALUES (%s, %s, '0')", [told["event_id"], told["rejected_reason"]])


def sqlite_file(path: Path, rooms: Iterable[str], **versions: int) -> Path:
    """The same as a SQLite file."""
    path.write_bytes(_sqlite_bytes(tuple(rooms), tuple(versions.items())))
    return path


@cache
def _sqlite_bytes(rooms: tuple[str, ...], versions: tuple[tuple[str, int], ...]) -> bytes:
    """The file's content; most tests ask for the same rooms."""
    with closing(sqlite3.connect(":memory:")) as connection:
        fill(lambda sql, values=(): connection.execute(sql.replace("%s", "?"), list(values)), rooms, **dict(versions))
        connection.commit()
        return connection.serialize()


def add_answers(execute: Execute, rooms: Iterable[str], *, schema: int = 94) -> None:
    """What the real server worked out of its rooms, after ``fill`` on PostgreSQL."""
    for statement in (ANSWERS + (NEWER if schema >= 68 else "")).split(";\n"):
        if statement.strip():
            execute(statement)
    for room in rooms:
        _add_answers_of(execute, room)
    execute("UPDATE events SET received_ts = origin_server_ts")
    if schema >= 68:
        execute("UPDATE events e SET state_key = s.state_key FROM state_events s WHERE s.event_id = e.event_id")
        execute("UPDATE events e SET rejection_reason = x.reason FROM rejections x WHERE x.event_id = e.event_id")
    execute("SELECT setval('events_stream_seq', (SELECT greatest(max(stream_ordering), 1) FROM events))")
    execute("SELECT setval('events_backfill_stream_seq', (SELECT greatest(-min(stream_ordering), 1) FROM events))")
    execute("SELECT setval('state_group_id_seq', (SELECT max(id) FROM state_groups))")
    execute("INSERT INTO receipts_linearized VALUES (7, 'master', '!r'), (9, 'master', '!r')")
    execute("SELECT setval('receipts_sequence', 9)")
    execute("INSERT INTO stream_positions SELECT 'events', 'master', last_value FROM events_stream_seq")
    execute("INSERT INTO stream_positions SELECT 'backfill', 'master', -last_value FROM events_backfill_stream_seq")
    execute("INSERT INTO stream_positions VALUES ('receipts', 'master', 9)")


def add_groups(execute: Execute, room: str) -> None:
    """The state groups of one room, into the tables ``GROUPS``."""
    events = stored_events(room)
    _add_groups(
        partial(_insert, execute), events[0]["json"].get("room_id", "!" + events[0]["event_id"][1:]), *_groups_of(room)
    )


def _groups_of(room: str) -> tuple[list[dict[str, Any]], list[tuple[str, int]]]:
    """The groups with their rows, and (event, group after it)."""
    rows = oracle(room, "state_groups")
    after = [(row["event_id"], row["state_group"]) for row in rows if row["kind"] == "event" and row["state_group"]]
    return [row for row in rows if row["kind"] == "group"], after


def _add_groups(
    insert: Callable[[str, list[tuple[Any, ...]]], None],
    room_id: str,
    groups: list[dict[str, Any]],
    after: list[tuple[str, int]],
) -> None:
    insert("state_group_edges", [(g["state_group"], g["prev_group"]) for g in groups if g["prev_group"] is not None])
    insert("state_groups_state", [(g["state_group"], room_id, *entry) for g in groups for entry in g["delta"]])
    insert("event_to_state_groups", after)


def _insert(execute: Execute, table: str, values: list[tuple[Any, ...]]) -> None:
    for start in range(0, len(values), 500):
        some = values[start : start + 500]
        mark = f"({', '.join(['%s'] * len(some[0]))})"
        execute(f"INSERT INTO {table} VALUES {', '.join([mark] * len(some))}", [v for row in some for v in row])


def _add_answers_of(execute: Execute, room: str) -> None:
    events = stored_events(room)
    room_id = events[0]["json"].get("room_id", "!" + events[0]["event_id"][1:])
    content = {told["event_id"]: told["json"]["content"] for told in events}
    groups, after = _groups_of(room)
    of_group = {group: event_id for event_id, group in reversed(after)}
    current = [tuple(row) for row in oracle(room, "current_state")["state"]]

    insert = partial(_insert, execute)
    insert("state_groups", [(g["state_group"], room_id, of_group.get(g["state_group"], "")) for g in groups])
    _add_groups(insert, room_id, groups, after)
    state = [t for t in events if "state_key" in t["json"]]
    insert("state_events", [(t["event_id"], room_id, t["json"]["type"], t["json"]["state_key"]) for t in state])
    insert(
        "current_state_events (event_id, room_id, type, state_key, membership)",
        [
            (event_id, room_id, kind, key, content[event_id].get("membership") if kind == "m.room.member" else None)
            for kind, key, event_id in current
        ],
    )
    ends = oracle(room, "extremities")
    for table in ("forward", "backward"):
        insert(f"event_{table}_extremities", [(event_id, room_id) for event_id in ends[table]])
    members = [
        (room_id, key, event_id, content[event_id]["membership"])
        for kind, key, event_id in current
        if kind == "m.room.member"
    ]
    insert("local_current_membership", [row for row in members if row[1].endswith(f":{SERVER}")])
    joined = [row[1] for row in members if row[3] == "join"]
    insert("room_stats_current", [(room_id, len(joined), sum(user.endswith(f":{SERVER}") for user in joined))])
    insert("room_stats_state", [(room_id, room, None)])


@contextmanager
def postgresql_database(server: str, rooms: Iterable[str], *, answers: bool = False, **versions: int) -> Iterator[str]:
    """The same as a database of its own on a server, given by the URL of this test's database there; yields its URL.

    ``answers``: with what the server worked out.
    """
    rooms = tuple(rooms)
    server, _, ours = server.rpartition("/")
    name = f"synapse_of_{ours}"

    def say(*statements: str) -> None:
        with closing(psycopg2.connect(f"{server}/{ours}")) as admin:  # a test may restart its server
            admin.autocommit = True
            with admin.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)

    say(
        f"DROP DATABASE IF EXISTS {name} WITH (FORCE)",
        f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'",
    )
    url = f"{server}/{name}"
    try:
        with closing(psycopg2.connect(url)) as connection, connection, connection.cursor() as own:
            fill(lambda sql, values=None: own.execute(sql, values), rooms, **versions)
            if answers:
                add_answers(own.execute, rooms, schema=versions.get("schema", 94))
        yield url
    finally:
        say(f"DROP DATABASE {name} WITH (FORCE)")
