"""Who sees what: what the ranges cost in rows, and the indexed query against the rule asked event by event.

Rows: of every shipped room with forks, the ranges of the room and of its users, and the single-event *exceptions*. A *class* is a
set of users who see the same events of the room; exceptions are told per event, and per event and class (limit 0.1). A message on
top of the largest room, persisted, must write none.

Time: the newest 100 events that a user sees, with the question who may read the room, against ``explain_visibility`` of the same
events: the rule, which reads the states around each event. The middle of some members of the largest room, in turn in
the same run. The view answers the same question by a join.

Size: what readers ask of the newest events of a room, half of which changed its state, by the number of its members: milliseconds
of CPU, the server's included, and how many times those of the smallest room. What they look up is as old as the room.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

from django.db import connection

from events.format.parsing import ParsedEvent, parse_line
from events.models import CurrentState, EventVisibility, VisibleEvent
from events.reading.pages import events_around, visible_to
from events.sending.send import LocalRoom
from events.visibility.access import access_parameters, read_access
from events.visibility.explain import explain_visibility
from events.visibility.predicate_sql import ACCESS_ROWS, sees
from events.visibility.viewer import Viewer
from script.benchmarks.copied_joins import copy_joins
from script.benchmarks.persist import BEGINNING, BenchRoom, cost_of, stored
from script.benchmarks.report import Report
from streams.writing.name import use_instance
from tests.support.range_reader import Seen
from tests.support.room_data import ROOM_NAMES, event_lines
from tests.support.stored_rooms import store_room

LARGE = "large_v10"
PAGE, USERS, ROUNDS = 100, 15, 3
ROUNDS_BY_SIZE = 7
MEMBERS = (31, 300, 3_000, 30_000)
GROWTH_LIMIT, AROUND_LIMIT = 1.5, 5.0
EXCEPTIONS_LIMIT = 0.1
_SECOND = "per class, or ratio"

_NEWEST = f"""
SELECT page.event_id FROM {ACCESS_ROWS} a CROSS JOIN LATERAL (
  SELECT e.event_id FROM events_event e WHERE e.room_id = a.room_id AND {sees()}
  ORDER BY e.topological_ordering DESC, e.stream_ordering DESC LIMIT {PAGE}
) page
"""


def newest(user_id: str, room_id: str) -> list[str]:
    """By the predicate: two queries."""
    access = read_access(user_id, [room_id])
    with connection.cursor() as cursor:
        cursor.execute(_NEWEST, access_parameters(user_id, access.values()))
        return [event_id for (event_id,) in cursor.fetchall()]


def newest_in_view(user_id: str, room_id: str) -> list[str]:
    """By the view."""
    rows = VisibleEvent.objects.filter(user_id=user_id, room_id=room_id)
    rows = rows.order_by("-topological_ordering", "-stream_ordering")
    return list(rows.values_list("event_id", flat=True)[:PAGE])


def count_rows(report: Report, room: str, events: Sequence[ParsedEvent]) -> None:
    """The rows of one room."""
    result = store_room(events, first_position=2 + 10_000 * ROOM_NAMES.index(room))
    wide = sum(row.user_id is None for row in result.visibility)
    single = sum(row.kind in ("shown", "hidden") for row in result.visibility)
    users = {row.user_id for row in result.visibility if row.user_id is not None}
    note = (
        f"{len(events)} events, {len(users)} users: {wide} rows of the room, {len(result.visibility) - wide} of users"
    )
    seen = Seen(events)
    classes = len({frozenset(seen.by_ranges(result.visibility, Viewer(user_id))) for user_id in users})
    per_class, note = single / len(events) / classes, f"{note}; {classes} classes"
    report.add(
        measure=f"exceptions, {room}",
        value=single / len(events),
        **{_SECOND: per_class},
        limit=EXCEPTIONS_LIMIT,
        note=note,
    )


def count_message(report: Report, room_id: str) -> None:
    """What a message on top of the room writes."""
    sender = _members(room_id)[0]
    room = LocalRoom(room_id)
    room.send(sender, "m.room.message", {"body": "merges what leaves there are"})
    before = EventVisibility.objects.filter(room_id=room_id).count()
    room.send(sender, "m.room.message", {"body": "x"})
    written = EventVisibility.objects.filter(room_id=room_id).count() - before
    report.add(
        measure="rows of a message on top",
        value=written,
        **{_SECOND: ""},
        limit=0,
        note=f"{len(_members(room_id))} members",
    )


def read_pages(report: Report, room_id: str) -> None:
    """Milliseconds of a page for each way."""
    members = _members(room_id)
    users = members[:: len(members) // USERS + 1]
    ways: dict[str, Callable[[str, list[str]], object]] = {
        "query": lambda user_id, _ids: newest(user_id, room_id),
        "view": lambda user_id, _ids: newest_in_view(user_id, room_id),
        "rule": lambda user_id, ids: list(explain_visibility(user_id, ids)),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for user_id in users:
        ids = newest(user_id, room_id)
        if newest_in_view(user_id, room_id) != ids or not all(found.seen for found in explain_visibility(user_id, ids)):
            raise AssertionError(f"The ways do not tell the same for {user_id} in {room_id}.")
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(ROUNDS):
            for name, way in ways.items():
                begun = time.perf_counter()
                way(user_id, ids)
                best[name] = min(best[name], (time.perf_counter() - begun) * 1000)
        for name, milliseconds in best.items():
            times[name].append(milliseconds)
    rule = statistics.median(times["rule"])
    for name, found in times.items():
        middle = statistics.median(found)
        report.add(
            measure=f"{PAGE} events, {name}, ms",
            value=middle,
            **{_SECOND: rule / middle},
            limit="",
            note=f"{len(found)} users",
        )


def read_by_size(report: Report) -> None:
    """CPU of questions in rooms of some sizes."""
    user = "@user-0:localhost"
    ways: dict[str, Callable[[list[str]], object]] = {
        f"explain_visibility, {PAGE} events": lambda ids: list(explain_visibility(user, ids)),
        f"visible_to, {PAGE} events": lambda ids: visible_to(user, ids),
        "events_around, 10 events": lambda ids: events_around(ids[PAGE // 2], user, 10),
    }
    rooms: dict[int, list[str]] = {}
    for members in MEMBERS:
        room = BenchRoom(members, f"!{members}:localhost")
        events, newest_events = room.set_up(), room.changes(PAGE)
        stored([events[:BEGINNING]])()
        copy_joins(events[BEGINNING:])
        stored([newest_events])()
        rooms[members] = [event.event_id for event in newest_events]
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
    costs: dict[tuple[str, int], list[float]] = {(name, members): [] for name in ways for members in MEMBERS}
    for _ in range(ROUNDS_BY_SIZE):
        for (name, members), found in costs.items():
            found.append(cost_of(partial(ways[name], rooms[members]), 1).cpu)
    for (name, members), found in costs.items():
        middle = statistics.median(found)
        report.add(
            measure=f"{name}, {members:,} members, ms of CPU",
            value=middle,
            **{_SECOND: middle / statistics.median(costs[name, MEMBERS[0]])},
            limit=AROUND_LIMIT if "around" in name else f"{GROWTH_LIMIT} times",
            note="",
        )


def _members(room_id: str) -> list[str]:
    found = CurrentState.objects.filter(room_id=room_id, type="m.room.member", membership="join")
    return list(found.order_by("state_key").values_list("state_key", flat=True))


def main() -> None:
    """Store the rooms, count, read."""
    use_instance("bench")
    report = Report("visibility", "who sees what")
    rooms = {}
    for room in (name for name in ROOM_NAMES if "walk" in name or "fork" in name or name == LARGE):
        events = [parse_line(line) for line in event_lines(room)]
        count_rows(report, room, events)
        rooms[room] = events[0].room_id
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
    read_pages(report, rooms[LARGE])
    count_message(report, rooms[LARGE])
    read_by_size(report)
    report.finish()
