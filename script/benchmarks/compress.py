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
from script.benchmarks.filled_room import ROOM, Shape, fill_rooms
from script.benchmarks.report import Report

EVENTS = int(os.environ.get("REPLSITE_BENCH_EVENTS") or 100_000)
COPY_EVERY = 100
LEAST_PER_SECOND = 2_000
MOST_OF_ROWS = 0.2
#: What more processes could share; the rest is transactions under the room's lock, and the rest after each.
MOST_OF_PLANNING = 0.5
_MOVE_ALL = "UPDATE events_event SET state_group = state_group + 0 WHERE room_id = %s"


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
    report = Report("compress", title)
    fill_rooms(Shape(EVENTS, copy_every=COPY_EVERY))
    room_id = ROOM
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
