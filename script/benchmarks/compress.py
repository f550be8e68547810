"""``compress_state`` on one large room whose groups were stored with a full copy in a hundred, as other servers do.

The peer is one UPDATE that gives every event of the room another group, without planning, comparing or resting: what moving the
events costs at least.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from django.db import connection

from events.maintenance.group_compaction import RoomCompaction, group_rows
from events.models import Event
from script.benchmarks.broadcast import PROJECT
from script.benchmarks.filled_room import fill_room
from script.benchmarks.report import Report

EVENTS = int(os.environ.get("REPLSITE_BENCH_EVENTS") or 100_000)
COPY_EVERY = 100
LEAST_PER_SECOND = 2_000
MOST_OF_ROWS = 0.2
#: What more processes could share; the rest is transactions under the room's lock, and the rest after each.
MOST_OF_PLANNING = 0.5
#: Group m of the chain gets twice its ID; before each hundredth there is a copy of the one below it, which begins a chain.
_CUT = (
    "CREATE TEMPORARY TABLE old AS SELECT g.id - first.id AS m, 2 * first.id AS base, d.type, d.state_key, d.event_id "
    "FROM (SELECT min(id) AS id FROM state_stategroup) AS first, state_stategroup g "
    "JOIN state_stategroupdelta d ON d.state_group = g.id",
    "DELETE FROM state_stategroupdelta",
    "DELETE FROM state_stategroup",
    "ALTER TABLE old ADD head bigint, ADD chain bigint",
    "UPDATE old SET head = m / {every} * {every}, chain = base + greatest(2 * (m / {every} * {every}) - 1, 0)",
    "INSERT INTO state_stategroupdelta (chain, state_group, type, state_key, event_id) "
    "SELECT chain, base + 2 * m, type, state_key, event_id FROM old",
    "INSERT INTO state_stategroupdelta (chain, state_group, type, state_key, event_id) "
    "SELECT copy.chain, copy.chain, old.type, old.state_key, old.event_id FROM old AS copy JOIN old ON old.m < copy.m "
    "WHERE copy.m = copy.head AND copy.m > 0",
    "INSERT INTO state_stategroup (id, room_id, prev_group, chain, hops, keys, rows_to_read) "
    "SELECT base + 2 * m, %(room)s, CASE WHEN m = 0 THEN NULL WHEN m = head THEN chain ELSE base + 2 * m - 2 END, chain, "
    "0, m + 1, m + 1 FROM old",
    "INSERT INTO state_stategroup (id, room_id, prev_group, chain, hops, keys, rows_to_read) "
    "SELECT chain, %(room)s, NULL, chain, 0, m, m FROM old WHERE m = head AND m > 0",
    "UPDATE events_event SET state_group = base + 2 * (state_group - base / 2) FROM (SELECT min(base) AS base FROM old) AS o",
    "ANALYZE",
)
_MOVE_ALL = "UPDATE events_event SET state_group = state_group + 0 WHERE room_id = %s"


def store_copies(room_id: str) -> None:
    """Cut the room's one chain, with the state in full at each cut."""
    with connection.cursor() as cursor:
        for statement in _CUT:
            text = statement.replace("{every}", str(COPY_EVERY))
            cursor.execute(text, {"room": room_id} if "%(room)s" in text else None)
        cursor.execute("SELECT setval(pg_get_serial_sequence('state_stategroup', 'id'), max(id)) FROM state_stategroup")


def move_all(room_id: str) -> float:
    """Seconds of the peer."""
    begun = time.monotonic()
    with connection.cursor() as cursor:
        cursor.execute(_MOVE_ALL, [room_id])
    return time.monotonic() - begun


def plan_seconds(room_id: str) -> float:
    """How long it takes to work out the new groups, which changes nothing."""
    begun = time.monotonic()
    RoomCompaction(room_id, "default").plan()
    return time.monotonic() - begun


def main() -> None:
    """Compress the room by the command."""
    title = f"compression of the state groups of {EVENTS} events"
    report = Report("compress", title, ["measure", "value", "limit", "ratio", "well", "note"])
    room_id = fill_room(EVENTS)
    store_copies(room_id)
    before, peer, plans = group_rows(room_id, "default"), move_all(room_id), plan_seconds(room_id)
    begun = time.monotonic()
    out = subprocess.run(
        [sys.executable, "manage.py", "compress_state", room_id, "--json"],
        cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
    ).stdout  # fmt: skip
    seconds, summary = time.monotonic() - begun, json.loads(out)
    after, events = group_rows(room_id, "default"), Event.objects.filter(room_id=room_id).count()
    rate, left = events / seconds, after.total / before.total
    report.add(measure="events per second", value=rate, limit=LEAST_PER_SECOND, ratio=rate / LEAST_PER_SECOND,
               well=rate >= LEAST_PER_SECOND and summary["events_moved"] == events,
               note=f"{events} in {seconds:.1f} s, half of it rest; {seconds / peer:.1f} x one UPDATE")  # fmt: skip
    share = plans / seconds
    report.add(measure="share of planning", value=share, limit=MOST_OF_PLANNING, ratio=share / MOST_OF_PLANNING,
               well=share <= MOST_OF_PLANNING, note=f"{plans:.1f} s of {seconds:.1f} s; once more under the lock")  # fmt: skip
    report.add(measure="share of the rows", value=left, limit=MOST_OF_ROWS, ratio=left / MOST_OF_ROWS,
               well=left <= MOST_OF_ROWS, note=f"{before.total} -> {after.total}")  # fmt: skip
    report.finish()
