"""A database with the tables of a Synapse server that an import reads, filled from the shipped rooms.

Column names and types are those of real servers' databases (1.43 and 1.163); columns that nothing reads are left out.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psycopg2

from tests.support.room_data import event_lines

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


@contextmanager
def postgresql_database(server: str, rooms: Iterable[str], **versions: int) -> Iterator[str]:
    """The same as a database of its own on a server, given by the URL of this test's database there; yields its URL."""
    server, _, ours = server.rpartition("/")
    name = f"synapse_of_{ours}"
    with closing(psycopg2.connect(f"{server}/{ours}")) as admin:
        admin.autocommit = True
        with admin.cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            cursor.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'")
            url = f"{server}/{name}"
            try:
                with closing(psycopg2.connect(url)) as connection, connection, connection.cursor() as own:
                    fill(lambda sql, values=None: own.execute(sql, values), rooms, **versions)
                yield url
            finally:
                cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")
