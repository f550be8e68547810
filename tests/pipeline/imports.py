"""Running imports in tests, and what is in the tables afterwards."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from django.db import connection

from pipeline.importing.job import ImportOptions, Outcome, import_history
from tests.support.room_data import ROOM_NAMES, ROOMS

ALL_ROOMS = tuple(ROOMS / name / "events.jsonl.gz" for name in ROOM_NAMES)
SMALL_ROOMS = tuple(path for path in ALL_ROOMS if path.parent.name != "large_v10")
#: Parameters of what is proved with the shipped rooms. Three quarters of all events are the large room's, which the gate takes
#: through an import (``test_import_history``) and through frames (``test_room_frames``), and the second tier through the rest.
SHIPPED = [pytest.param(SMALL_ROOMS, id="small"), pytest.param(ALL_ROOMS, id="all", marks=pytest.mark.scenario)]


def run_import(*paths: Path | str, **options: object) -> Outcome:
    """Import files on the session of Spark that this process has; with ``master=None`` without Spark, if they are small."""
    return import_history(ImportOptions(paths, **{"master": "local[1]", **options}), io.StringIO())


def write_lines(path: Path, *lines: object) -> Path:
    """A file of lines: bytes as they are, everything else as JSON."""
    path.write_bytes(
        b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    )
    return path


def bare_room(number: int, events: int, version: str = "2") -> list[dict]:
    """A linear room whose events carry their own IDs, so that they are quick to make."""
    room_id, creator = f"!made{number}:example.org", "@a:example.org"
    made = []
    for depth in range(1, events + 1):
        event = {
            "event_id": f"$e{depth}-{number}:example.org",
            "room_id": room_id,
            "sender": creator,
            "type": "m.room.message",
            "content": {"body": f"{depth} " + "x" * 100, "msgtype": "m.text"},
            "depth": depth,
            "origin_server_ts": 1_700_000_000_000 + depth,
            "prev_events": [[f"$e{depth - 1}-{number}:example.org", {"sha256": "x"}]] if depth > 1 else [],
            "auth_events": [],
            "hashes": {"sha256": "x"},
            "signatures": {},
        }
        if depth == 1:
            event |= {
                "type": "m.room.create",
                "state_key": "",
                "content": {"creator": creator, "room_version": version},
            }
        if depth == 2:
            event |= {"type": "m.room.member", "state_key": creator, "content": {"membership": "join"}}
        made.append(event)
    return made


#: Everything an import loads, in a form that does not depend on which IDs were free.
_CONTENT = {
    "events": "SELECT event_id, room_id, type, state_key, topological_ordering, outlier, rejected_reason, soft_failed, "
    "redacted_by, state_unresolved, sign(stream_ordering) FROM events_event ORDER BY event_id",
    "order": "SELECT room_id, array_agg(event_id ORDER BY stream_ordering) FROM events_event GROUP BY 1 ORDER BY 1",
    "json": "SELECT event_id, room_version, md5(json) FROM events_eventjson ORDER BY 1",
    "rooms": "SELECT * FROM events_room ORDER BY 1",
    "edges": "SELECT * FROM events_eventedge ORDER BY 1, 2",
    "auth": "SELECT * FROM events_eventauth ORDER BY 1",
    "forward": "SELECT * FROM events_forwardextremity ORDER BY 1",
    "backward": "SELECT room_id, event_id FROM events_backwardextremity ORDER BY 1, 2",
    "current": "SELECT room_id, type, state_key, event_id, membership FROM events_currentstate ORDER BY 1, 2, 3",
    "deltas": "SELECT e.event_id, d.type, d.state_key, d.event_id, d.prev_event_id FROM events_currentstatedelta d "
    "JOIN events_event e USING (stream_ordering) ORDER BY 1, 2, 3",
    "visibility": "SELECT v.room_id, user_id, kind, f.event_id, l.event_id FROM events_eventvisibility v "
    "JOIN events_event f ON f.stream_ordering = v.first LEFT JOIN events_event l ON l.stream_ordering = v.last "
    "ORDER BY 1, 2, 3, 4",
    "groups": "WITH named AS (SELECT id, room_id, prev_group, rank() OVER (PARTITION BY room_id ORDER BY id) AS number "
    "FROM state_stategroup) SELECT n.room_id, n.number, p.number, d.type, d.state_key, d.event_id FROM named n "
    "LEFT JOIN named p ON p.id = n.prev_group JOIN state_stategroupdelta d ON d.state_group = n.id ORDER BY 1, 2, 4, 5",
    "event groups": "SELECT event_id, count(*) OVER (PARTITION BY state_group) FROM events_event "
    "WHERE state_group IS NOT NULL ORDER BY 1",
}


def content() -> dict[str, list[tuple]]:
    """What is in the tables, comparable between two imports."""
    found = {}
    with connection.cursor() as cursor:
        for name, sql in _CONTENT.items():
            cursor.execute(sql)
            found[name] = cursor.fetchall()
    return found


def staging_tables() -> list[str]:
    """Names of staging tables that exist."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT tablename FROM pg_tables WHERE starts_with(tablename, 'pipeline_stage_')")
        return [name for (name,) in cursor.fetchall()]
