"""A first sync, and what is new since: against their limits, and against an indexed read of as many rows in the same run.

* *initial sync*: the last 20 events of each of 100 rooms with state and memberships, all of it read from the tables; limit 50 ms.
  The peer reads the same events and state events, 20 newest events and the current state of each room by their indexes, asks
  nothing about who may see them, and makes nothing of the rows but tuples.
* *rooms since*: one message in one of 1,000 rooms; the peer is an index probe of each room for something new.
* *events since*: for a user of 1,000 rooms with nothing new (0.1 ms) and with one new event (2 ms); the peer as above.
* *sync after a join*: the whole answer, over all streams, for a user of 10, 100 and 1,000 rooms who has just joined another;
  limit 15 ms of CPU.

Milliseconds: *ours* and *peer* are medians by the clock, *best* the fastest; *cpu* is that of this process and of the session's
server process, and so tells about the code where others use the machine, too. After a join, *cpu* is that of all processes of the
server.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

from django.db import connection, transaction

from events.notifier import notifier
from events.sending.send import LocalRoom, NewEvent, RoomSetup, create_room
from events.sync.rooms import initial_sync, rooms_since
from events.sync.sync import SyncAnswer, sync
from events.tokens.positions import events_token
from script.benchmarks.page import cpu_ms
from script.benchmarks.persist import cost_of
from script.benchmarks.report import Report
from streams.core.tokens import VectorToken
from streams.writing.name import use_instance

ROOMS, FIRST_ROOMS = 1_000, 100
MESSAGES, EVENTS = 40, 20
ROUNDS = 40
ALICE, BOB, CAROL, HOST = "@alice:bench", "@bob:bench", "@carol:bench", "@host:bench"
JOINED = {CAROL: 10, BOB: FIRST_ROOMS, ALICE: ROOMS}
JOINS = 15
JOIN_LIMIT = 15.0
LIMITS = {"initial sync": 50.0, "events since, nothing new": 0.1, "events since, one new": 2.0}
TEXT = "m.room.message"

_NEWEST = """
SELECT e.*, j.json FROM unnest(%(rooms)s::text[]) AS r (room_id) CROSS JOIN LATERAL (
  SELECT * FROM events_event e WHERE e.room_id = r.room_id
  ORDER BY e.topological_ordering DESC, e.stream_ordering DESC LIMIT %(events)s
) AS e JOIN events_eventjson j USING (event_id)
"""
_STATE = """
SELECT e.*, j.json FROM events_currentstate c JOIN events_event e USING (event_id) JOIN events_eventjson j USING (event_id)
WHERE c.room_id = ANY(%(rooms)s)
"""
_ANYTHING = """
SELECT r.room_id FROM unnest(%(rooms)s::text[]) AS r (room_id)
WHERE EXISTS (SELECT FROM events_event e WHERE e.room_id = r.room_id AND e.stream_ordering > %(since)s)
"""


def make_rooms() -> list[str]:
    """Rooms of Alice; Bob is in the first of them, where more is said."""
    found = []
    for number in range(ROOMS):
        with transaction.atomic():
            room = create_room(
                ALICE, setup=RoomSetup(state=[NewEvent(ALICE, "m.room.name", {"name": str(number)}, "")])
            )
            if number < FIRST_ROOMS:
                room.join(BOB)
                room.add(
                    [NewEvent(ALICE, TEXT, {"msgtype": "m.text", "body": f"message {n}"}) for n in range(MESSAGES)]
                )
        found.append(room.room_id)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return found


def measured(report: Report, name: str, ours: Callable[[], object], peer: Callable[[], object]) -> None:
    """Medians of alternating calls, and CPU time."""
    times: dict[str, list[float]] = {"ours": [], "peer": []}
    ours(), peer()
    for _ in range(ROUNDS):
        for key, work in (("ours", ours), ("peer", peer)):
            begun = time.perf_counter()
            work()
            times[key].append((time.perf_counter() - begun) * 1000)
    middle = {key: statistics.median(found) for key, found in times.items()}
    limit = LIMITS.get(name)
    report.add(
        what=name,
        ours=round(middle["ours"], 3),
        best=round(min(times["ours"]), 3),
        cpu=round(cpu_ms(ours, ROUNDS), 3),
        peer=round(middle["peer"], 3),
        peer_cpu=round(cpu_ms(peer, ROUNDS), 3),
        ratio=middle["ours"] / middle["peer"],
        limit=limit,
        of_limit=middle["ours"] / limit if limit is not None else "",
    )


def read(text: str, **values: object) -> int:
    """Run a peer's query."""
    with connection.cursor() as cursor:
        cursor.execute(text, values)
        return len(cursor.fetchall())


def peer_of_first_sync(rooms: list[str]) -> None:
    """The same rows, by their indexes."""
    read(_NEWEST, rooms=rooms, events=EVENTS)
    read(_STATE, rooms=rooms)


def say(room_id: str) -> tuple[VectorToken, VectorToken]:
    """One message; the positions before and after it."""
    before = events_token()
    LocalRoom(room_id).send(ALICE, TEXT, {"msgtype": "m.text", "body": "news"})
    return before, events_token()


def expect(holds: bool, what: str) -> None:
    """What is measured must be what is meant."""
    if not holds:
        raise RuntimeError(f"this benchmark measures something else: {what} does not hold")


def after_joins(report: Report, rooms: list[str]) -> None:
    """The answers for users of few and of many rooms who have joined one more."""
    for room_id in rooms[: JOINED[CAROL]]:
        LocalRoom(room_id).join(CAROL)
    more = {user: [create_room(HOST) for _ in range(JOINS)] for user in JOINED}
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
    for user, count in JOINED.items():
        answers, costs, times = [sync(user)], [], []
        for room in more[user]:
            room.join(user)
            begun = time.perf_counter()
            costs.append(cost_of(partial(_next, user, answers), 1).cpu)
            times.append((time.perf_counter() - begun) * 1000)
            found = answers[-1].rooms
            expect([one.room_id for one in found.joined] == [room.room_id], "the joined room is told, and no other")
        report.add(
            what=f"sync after a join, {count} rooms",
            ours=round(statistics.median(times), 3),
            best=round(min(times), 3),
            cpu=round(statistics.median(costs), 3),
            limit=JOIN_LIMIT,
            of_limit=statistics.median(costs) / JOIN_LIMIT,
        )


def _next(user: str, answers: list[SyncAnswer]) -> None:
    answers.append(sync(user, answers[-1].next_batch))


def main() -> None:
    """Make the rooms, measure, report."""
    title = f"syncs: {FIRST_ROOMS} rooms x {EVENTS} events, and a user of {ROOMS} rooms"
    use_instance("bench")
    report = Report("sync", title)
    rooms = make_rooms()
    first = rooms[:FIRST_ROOMS]
    answer = initial_sync(BOB, FIRST_ROOMS, EVENTS)
    whole = [room for room in answer.rooms if len(room.timeline) == EVENTS and room.limited and room.state]
    expect(len(whole) == FIRST_ROOMS, "every room is told in full")
    measured(report, "initial sync", lambda: initial_sync(BOB, FIRST_ROOMS, EVENTS), lambda: peer_of_first_sync(first))
    before, after = say(rooms[ROOMS // 2])
    expect(len(rooms_since(ALICE, before).joined) == 1, "one room is new")
    changed = frozenset({rooms[ROOMS // 2]})
    anything = {"rooms": rooms, "since": before.base}
    measured(report, "rooms since, one new", lambda: rooms_since(ALICE, before), lambda: read(_ANYTHING, **anything))
    measured(
        report,
        "rooms since, one new, told by a cache",
        lambda: rooms_since(ALICE, before, changed_rooms=changed),
        lambda: read(_ANYTHING, **anything),
    )
    nothing = {"rooms": rooms, "since": after.base}
    measured(report, "rooms since, nothing new", lambda: rooms_since(ALICE, after), lambda: read(_ANYTHING, **nothing))
    expect(not rooms_since(ALICE, after), "nothing is new")
    after_joins(report, rooms)
    notifier.stop_feeds()
    report.finish()
