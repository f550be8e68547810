"""A made Synapse database of any size: the rooms of ``histories``, with the answers that a healthy server would have.

The answers (state groups, current state, extremities) are those of our own rules. So a database of this kind says how fast a
room is checked, and nothing of whether the rules are right: the shipped rooms, with the answers of a real server, say that.
"""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2

from events.format.parsing import ParsedEvent, parse_line
from events.history.chunked_walk import EventsInMemory
from events.history.rows import RoomHistory
from script.benchmarks.histories import make_history, sizes_of_rooms
from state.rules.room_versions import room_version
from tests.support.synapse_database import postgresql_database

__all__ = ["made_synapse"]

_EVENTS_PER_FILE = 50_000
_COPIED = {
    "events": "topological_ordering, event_id, type, room_id, outlier, depth, origin_server_ts, sender, instance_name, "
    "stream_ordering, received_ts, state_key",
    "event_json": "event_id, room_id, internal_metadata, json, format_version",
    "rooms": "room_id, is_public, room_version",
    "state_groups": "id, room_id, event_id",
    "state_group_edges": "state_group, prev_state_group",
    "state_groups_state": "state_group, room_id, type, state_key, event_id",
    "event_to_state_groups": "event_id, state_group",
    "current_state_events": "event_id, room_id, type, state_key, membership",
    "event_forward_extremities": "event_id, room_id",
    "local_current_membership": "room_id, user_id, event_id, membership",
}
_SETTLED = """
SELECT setval('events_stream_seq', (SELECT max(stream_ordering) FROM events));
SELECT setval('state_group_id_seq', (SELECT max(id) FROM state_groups));
UPDATE stream_positions SET stream_id = (SELECT max(stream_ordering) FROM events) WHERE stream_name = 'events';
ANALYZE
"""
Rows = dict[str, list[Sequence[Any]]]


@contextmanager
def made_synapse(server: str, events: int) -> Iterator[str]:
    """Yields the URL of such a database, beside that of the URL ``server``. One room has a fifth of the events."""
    sizes = sizes_of_rooms(events, max(events // 500, 2), events // 5)
    with (
        postgresql_database(server, [], answers=True) as url,
        tempfile.TemporaryDirectory() as folder,
        closing(psycopg2.connect(url)) as connection,
        connection.cursor() as cursor,
    ):
        place = group = 1
        for path in make_history(Path(folder), sizes, max(2, events // _EVENTS_PER_FILE)):
            for room in _rooms(path):
                rows, group = _rows_of(room, place, group)
                _copy(cursor, rows)
                place += len(room)
            connection.commit()
        connection.autocommit = True
        for statement in _SETTLED.split(";"):
            cursor.execute(statement)
        yield url


def _rooms(path: Path) -> Iterator[list[ParsedEvent]]:
    lines: dict[str, list[bytes]] = {}
    with path.open("rb") as file:
        for line in file:
            lines.setdefault(line.partition(b'"room_id":"')[2].partition(b'"')[0].decode(), []).append(line)
    while lines:
        _, some = lines.popitem()
        yield [parse_line(line) for line in some]


def _rows_of(events: list[ParsedEvent], first_place: int, first_group: int) -> tuple[Rows, int]:
    create = events[0]
    room_id = create.room_id
    history = RoomHistory(EventsInMemory(room_id, room_version(create.room_version), events, create))
    rows: Rows = {table: [] for table in _COPIED}
    rows["rooms"].append((room_id, False, create.room_version))
    last = first_group
    for group, prev, *_ in history.groups():
        last = first_group + group
        rows["state_groups"].append((last, room_id, ""))
        if prev is not None:
            rows["state_group_edges"].append((last, first_group + prev))
    for _, group, kind, key, event_id in history.group_deltas():
        if event_id is None:
            raise RuntimeError(f"{room_id}: a state of a Synapse cannot lose an entry")
        rows["state_groups_state"].append((first_group + group, room_id, kind, key, event_id))
    for part in history.events():
        places = range(first_place + part.first, first_place + part.first + len(part.events))
        for event, place, group in zip(part.events, places, part.columns[-1], strict=True):
            rows["event_to_state_groups"].append((event.event_id, first_group + int(str(group))))
            metadata = json.dumps({"soft_failed": True} if event.soft_failed else {})
            rows["event_json"].append((event.event_id, room_id, metadata, event.json.decode(), 3))
            rows["events"].append((
                event.depth, event.event_id, event.type, room_id, False, event.depth, event.origin_server_ts, event.sender,
                "master", place, event.origin_server_ts, event.state_key,
            ))  # fmt: skip
    current = [*history.current_state()]
    rows["current_state_events"] = [(event_id, room_id, kind, key, member) for kind, key, event_id, member in current]
    rows["event_forward_extremities"] = [(event_id, room_id) for event_id in history.forward_extremities()]
    here = create.sender.partition(":")[2]
    rows["local_current_membership"] = [
        (room_id, key, event_id, member)
        for kind, key, event_id, member in current
        if kind == "m.room.member" and key.endswith(f":{here}")
    ]
    return rows, last + 1


def _copy(cursor: Any, rows: Rows) -> None:
    for table, columns in _COPIED.items():
        file = io.StringIO()
        csv.writer(file).writerows(_as_csv(rows[table]))
        file.seek(0)
        cursor.copy_expert(f"COPY {table} ({columns}) FROM STDIN (FORMAT csv, NULL '\\N')", file)


def _as_csv(rows: Iterable[Sequence[Any]]) -> Iterator[list[Any]]:
    for row in rows:
        yield ["\\N" if value is None else value for value in row]
