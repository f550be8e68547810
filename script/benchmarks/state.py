"""Rows of state per event, and the time of a full state at any event, on the largest shipped room.

Rows: the delta rows of state groups, as ``room_history`` (bulk import) computes them and as ``persist`` leaves them in the table
when the room comes in batches; group rows are told beside them. Nothing is compressed afterwards.

Time: the state after each of a sample of events (``full_state``), against the *peer*: one index range of a plain table with as
many rows of the same columns as that state has entries, read into the same kind of dictionary. Filters: the same events, one key
and all but the members.
"""

from __future__ import annotations

import gzip
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from django.db import connection
from msgspec.structs import replace

from events.format.parsing import ParsedEvent, parse_line
from events.models import Event
from events.persist.batch import Incoming, persist
from events.room.graph import causal_order
from script.benchmarks.report import Report
from state.groups.filters import EVERYTHING, StateFilter
from state.models import StateGroup, StateGroupDelta
from state.store import State, full_state
from streams.writing.name import use_instance
from tests.support.room_results import room_history

ROOM = Path(__file__).resolve().parents[2] / "tests" / "data" / "rooms" / "large_v10" / "events.jsonl.gz"
BATCH = 100
SAMPLE, ROUNDS = 500, 5
ROWS_LIMIT, TIME_LIMIT = 1.3, 2.0

_PEER_TABLE = """
CREATE TABLE bench_entries AS
SELECT room.n AS room, row_number() OVER (PARTITION BY room.n) AS place, type, state_key, event_id
FROM generate_series(1, 40) AS room (n), events_currentstate
"""
_PEER = "SELECT type, state_key, event_id FROM bench_entries WHERE room = %s AND place <= %s"


def events_in_causal_order() -> list[ParsedEvent]:
    """The room as another server would send it, each event after those it builds on."""
    with gzip.open(ROOM) as lines:
        events = [parse_line(line.rstrip(b"\n")) for line in lines]
    order, _ = causal_order(events)
    return [replace(events[number], stream_ordering=None) for number in order]


def count_rows(report: Report, events: Sequence[ParsedEvent]) -> None:
    """Rows of both ways in, which leaves the room in the tables."""
    result = room_history(events)
    _add_rows(report, "import", len(events), len(result.group_deltas), len(result.groups))
    for start in range(0, len(events), BATCH):
        persist([Incoming(event.json, event.room_version) for event in events[start : start + BATCH]], verified=True)
    stored = Event.objects.filter(state_group__isnull=False).count()
    _add_rows(
        report, f"persist, batches of {BATCH}", stored, StateGroupDelta.objects.count(), StateGroup.objects.count()
    )


def _add_rows(report: Report, way: str, events: int, deltas: int, groups: int) -> None:
    report.add(
        measure=f"rows per event, {way}",
        p50=deltas / events,
        p95="",
        ratio="",
        limit=ROWS_LIMIT,
        note=f"{deltas:,} rows for {events:,} events; groups {groups / events:.2f} per event",
    )


def read_states(report: Report) -> None:
    """Time of full and filtered states, in milliseconds, and their ratio to the peer."""
    with connection.cursor() as cursor:
        cursor.execute(_PEER_TABLE)
        cursor.execute("ALTER TABLE bench_entries ADD PRIMARY KEY (room, place)")
        cursor.execute("VACUUM ANALYZE")
    groups = list(Event.objects.filter(state_group__isnull=False).order_by("pk").values_list("state_group", flat=True))
    sample = [group for group in random.Random(5).sample(groups, SAMPLE) if group is not None]  # noqa: S311 - the same each run
    known = StateGroup.objects.in_bulk(sample)
    ways: dict[str, Callable[[int], State]] = {
        "peer": lambda group: _peer(known[group].keys),
        "full state": lambda group: full_state(group, only=EVERYTHING),
        "one key": lambda group: full_state(group, only=StateFilter.at([("m.room.create", "")])),
        "all but the members": lambda group: full_state(group, only=StateFilter.without_members()),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for group in sample:
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(ROUNDS):
            for name, way in ways.items():
                begun = time.perf_counter()
                way(group)
                best[name] = min(best[name], (time.perf_counter() - begun) * 1000)
        for name, milliseconds in best.items():
            times[name].append(milliseconds)
    keys, read = (statistics.mean(getattr(known[g], name) for g in sample) for name in ("keys", "rows_to_read"))
    for name in ways:
        _add_times(report, name, times, f"{keys:,.0f} entries, {read:,.0f} rows read on average")


def _add_times(report: Report, name: str, times: dict[str, list[float]], note: str) -> None:
    middle, high = _quantiles(times[name])
    peer_middle, peer_high = _quantiles(times["peer"])
    full = name == "full state"
    ratio = "" if name == "peer" else f"{middle / peer_middle:.2f}, {high / peer_high:.2f}"
    report.add(
        measure=f"{name}, ms", p50=middle, p95=high, ratio=ratio, limit=TIME_LIMIT if full else "", note=note * full
    )


def _peer(rows: int) -> State:
    with connection.cursor() as cursor:
        cursor.execute(_PEER, [17, rows])
        return {(event_type, state_key): event_id for event_type, state_key, event_id in cursor.fetchall()}


def _quantiles(values: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.95)]


def main() -> None:
    """Store the room, count, read."""
    use_instance("bench")
    report = Report("state", "state groups of the largest room")
    count_rows(report, events_in_causal_order())
    read_states(report)
    report.finish()
