"""A page of 100 events as a user reads it, with the JSON a client is given, against a bare indexed read of as many rows.

Who may read, what is seen and what is redacted are in, as ``events.reading.pages.timeline`` answers it. The *peer* reads the
newest 100 rows from the same place with their JSON, through the same connection, and asks nobody.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from django.db import connection

from events.reading.pages import timeline
from events.sending.send import LocalRoom, NewEvent, RoomSetup, create_room
from script.benchmarks.report import Report, median_ratio
from streams.writing.name import use_instance

LIMIT_MS = 2.0
PAGE = 100
ROUNDS = 200
MEMBERS, MESSAGES = 1_000, 3_000
CHANGES = 400
BATCH = 100
_SITE = "bench.localhost"
_FOUNDER = f"@founder:{_SITE}"
_PEER = """
SELECT e.event_id, e.type, e.sender, e.stream_ordering, e.topological_ordering, j.json FROM (
  SELECT * FROM events_event WHERE room_id = %s AND (topological_ordering, stream_ordering) < (%s, %s)
  ORDER BY topological_ordering DESC, stream_ordering DESC LIMIT %s
) AS e JOIN events_eventjson j USING (event_id)
"""
_NEWEST = (2**63 - 1, 2**63 - 1)


@dataclass(frozen=True, slots=True)
class Case:
    """A room and who reads it."""

    name: str
    room_id: str
    user_id: str


def message(user: str, number: int) -> NewEvent:
    """A message of usual length."""
    return NewEvent(
        user, "m.room.message", {"msgtype": "m.text", "body": f"message number {number}, of a usual length"}
    )


def member(user: str, membership: str) -> NewEvent:
    """A membership of the user's own."""
    return NewEvent(user, "m.room.member", {"membership": membership}, user)


def visibility(setting: str) -> NewEvent:
    """A change of the room's history visibility."""
    return NewEvent(_FOUNDER, "m.room.history_visibility", {"history_visibility": setting}, "")


def add(room: LocalRoom, events: list[NewEvent]) -> None:
    """Store the events in batches."""
    for start in range(0, len(events), BATCH):
        room.add(events[start : start + BATCH])


def many_members() -> LocalRoom:
    """A room of many members and messages, with some redacted."""
    room = create_room(_FOUNDER, setup=RoomSetup(join_rule="public"))
    users = [f"@user-{number}:{_SITE}" for number in range(MEMBERS)]
    add(room, [member(user, "join") for user in users])
    add(room, [message(users[number % MEMBERS], number) for number in range(MESSAGES)])
    for number in range(5):
        room.redact(_FOUNDER, room.send(users[number], "m.room.message", {"body": "not for long"}))
    add(room, [message(users[number % MEMBERS], number) for number in range(50)])
    return room


def many_ranges() -> LocalRoom:
    """A room whose visibility changes all the time, and a member who comes and goes."""
    room = create_room(_FOUNDER, setup=RoomSetup(join_rule="public"))
    guest = f"@guest:{_SITE}"
    events = []
    for number in range(CHANGES):
        events += [visibility(("joined", "shared", "invited", "world_readable")[number % 4]), member(guest, "join")]
        events += [message(_FOUNDER, number), member(guest, "leave")]
    add(room, events)
    return room


def cases() -> list[Case]:
    """Rooms that pages are read of."""
    large, changing = many_members().room_id, many_ranges().room_id
    guest = f"@guest:{_SITE}"
    LocalRoom(changing).join(guest)
    return [
        Case(f"{MEMBERS:,} members", large, f"@user-7:{_SITE}"),
        Case(f"{CHANGES} visibility changes", changing, _FOUNDER),
        Case(f"{CHANGES} joins and leaves", changing, guest),
    ]


def deep(room_id: str) -> tuple[int, int]:
    """The place in the middle of the room's history."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT topological_ordering, stream_ordering FROM events_event WHERE room_id = %s ORDER BY 1 "
            "LIMIT 1 OFFSET (SELECT count(*) / 2 FROM events_event WHERE room_id = %s)",
            [room_id, room_id],
        )
        found: tuple[int, int] = cursor.fetchone()
        return found


def timed(work: Callable[[], int]) -> float:
    """Milliseconds of a page that must be full."""
    begun = time.perf_counter()
    if work() != PAGE:
        raise RuntimeError("the page is not full: nothing to compare")
    return 1000 * (time.perf_counter() - begun)


def cpu_ms(work: Callable[[], object], times: int = ROUNDS) -> float:
    """CPU of this process and of its database session for one call: steadier than time on a machine that others use."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        session = Path(f"/proc/{cursor.fetchone()[0]}/schedstat")
    own, server = time.process_time(), int(session.read_text().split()[0])
    for _ in range(times):
        work()
    own, server = time.process_time() - own, int(session.read_text().split()[0]) - server
    return (1000 * own + server / 1e6) / times


def measure(report: Report, case: Case, place: tuple[int, int], where: str) -> None:
    """A row: pages and bare reads in turn."""
    token = None if place == _NEWEST else f"t{place[0]}-{place[1]}"

    def ours() -> int:
        events = timeline(case.room_id, case.user_id, PAGE, before=token).events
        return len([event.client_json() for event in events])

    def peer() -> int:
        with connection.cursor() as cursor:
            cursor.execute(_PEER, [case.room_id, *place, PAGE])
            return len([bytes(row[-1]) for row in cursor.fetchall()])

    for _ in range(10):
        timed(ours), timed(peer)
    pairs = [(timed(ours), timed(peer)) for _ in range(ROUNDS)]
    mine, bare = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    p50 = statistics.median(mine)
    report.add(
        room=case.name,
        where=where,
        p50=p50,
        p95=statistics.quantiles(mine, n=20)[-1],
        limit=LIMIT_MS,
        peer=statistics.median(bare),
        ratio=median_ratio(mine, bare),
        cpu=cpu_ms(ours),
        peer_cpu=cpu_ms(peer),
        ok="yes" if p50 <= LIMIT_MS else "NO",
    )


def main() -> None:
    """Pages from the newest event and from the middle of the history."""
    use_instance("bench")
    report = Report("page", f"milliseconds for a page of {PAGE} events with their JSON, as a user sees it")
    found = cases()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    for case in found:
        measure(report, case, _NEWEST, "newest")
        measure(report, case, deep(case.room_id), "middle of the history")
    report.finish()
