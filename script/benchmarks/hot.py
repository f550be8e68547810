"""The hot caches: what "anything new?" costs for a user of 1,000 rooms, how soon a waiter wakes, and what keeping them costs.

* *nothing new*: ``hot.look`` with nothing new at all, after 1 and after 5,000 events in other rooms.
  Limit 0.1 ms. The peer is the cheapest query that tells the same, an index probe of the newest event of each room.
* *sync*: the whole call over all streams, nothing new and one event new, for the same user.
* *wake*: milliseconds from the return of a commit in another process, and in this one, to the running of a caller who waited;
  limit 50. The floor is PostgreSQL's own: NOTIFY to a listening process.
* *wake 1,000*: from a commit that concerns all of 1,000 waiting tasks to the last of them.
* *feed*: CPU per event of the process that keeps the caches, while another one writes.
* *memory*: per 10,000 users in 10 rooms each, and per 10,000 rooms changed.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
import tracemalloc
from collections.abc import Callable

from asgiref.sync import sync_to_async
from django.db import connection, connections

from events.models import CurrentState, Room
from events.notifier import notifier
from events.notifier.change_index import LastChanges
from events.sending.send import LocalRoom, create_room
from events.sync.sync import sync
from script.benchmarks.latency import floor, percentile
from script.benchmarks.report import Report, database_url
from streams import registry
from streams.core.tokens import VectorToken
from streams.writing.name import use_instance
from tests.support.room_talker import Talker, talkers

ROOMS = 1_000
OTHERS = 5_000
ROUNDS = 400
WAKES = 60
WAITERS = 1_000
FED = 400
ALICE, BOB = "@alice:bench", "@bob:bench"
_PEER = """
SELECT r.room_id FROM unnest(%s::text[]) AS r (room_id)
WHERE EXISTS (SELECT FROM events_event e WHERE e.room_id = r.room_id AND e.stream_ordering > %s)
"""


def make_rooms() -> list[str]:
    """Rooms that Alice is joined to, by their rows of current state alone, and one that is whole."""
    whole = create_room(ALICE).room_id
    names = [f"!bench{number}:bench" for number in range(ROOMS - 1)]
    Room.objects.bulk_create(Room(room_id=name, room_version="11") for name in names)
    CurrentState.objects.bulk_create(
        CurrentState(room_id=n, type="m.room.member", state_key=ALICE, event_id=f"$m{n}", membership="join")
        for n in names
    )
    return [whole, *names]


def milliseconds(work: Callable[[], object], number: int) -> float:
    """Median of the times of single calls."""
    found = []
    for _ in range(number):
        begun = time.perf_counter()
        work()
        found.append((time.perf_counter() - begun) * 1000)
    return statistics.median(found)


def peer(rooms: list[str], since: VectorToken) -> None:
    """Ask the tables."""
    with connection.cursor() as cursor:
        cursor.execute(_PEER, [rooms, since.base])
        cursor.fetchall()


def nothing_new(report: Report, rooms: list[str], other: LocalRoom) -> None:
    """How long it takes to say that there is nothing."""
    while len((known := notifier.look(ALICE, VectorToken(0))).rooms) < ROOMS:
        time.sleep(0.01)  # the room's first facts are known once their position is stored
    since = known.now
    for name, more in (("nothing at all", 0), ("1 event elsewhere", 1), (f"{OTHERS} changes elsewhere", OTHERS)):
        if more == 1:
            other.send(BOB, "m.room.message", {"body": "x"})
        elif more:
            elsewhere(since, more)
        found = notifier.look(ALICE, since)
        if not found.nothing or len(found.rooms) != ROOMS:
            raise RuntimeError(f"something is new, or not all of the {ROOMS} rooms are known: {found.changed}")
        look = milliseconds(lambda: notifier.look(ALICE, since), ROUNDS)
        report.add(what=f"look, {name}", ms=look, limit=0.1, of_limit=look / 0.1)
    asked = milliseconds(lambda: peer(rooms, since), 40)
    report.add(what="peer: one query over the rooms", ms=asked, limit=0.1, of_limit=asked / 0.1)


def whole(report: Report, room: LocalRoom) -> None:
    """The call that does everything."""
    first = sync(ALICE)
    token = first.next_batch
    report.add(what="sync, nothing new", ms=milliseconds(lambda: sync(ALICE, token), 100))

    def one() -> None:
        nonlocal token
        answer = sync(ALICE, token)
        if not answer.rooms:
            raise RuntimeError("the new event was not told")
        token = answer.next_batch

    found = []
    for _ in range(40):
        room.send(ALICE, "m.room.message", {"body": "x"})
        found.append(milliseconds(one, 1))
    report.add(what="sync, one new event", ms=statistics.median(found))


def elsewhere(since: VectorToken, number: int) -> None:
    """As if so many other rooms had changed after that position: the list of changes is long then."""
    feed = notifier._feeds.obtain()
    with feed.cache._lock:
        events = feed.cache.streams["events"]
        for n in range(number):
            events.add_row(
                "bench", since.highest + 1 + n, ["ev", ["$", f"!e{n}", "m.x", None, None, None, None, False]]
            )


def wakes(commit: Callable[[], float]) -> list[float]:
    """Milliseconds from commits to a thread that waited for each."""
    found: list[float] = []
    while len(found) < WAKES:
        woken: list[float] = []
        at = notifier.positions()

        def run() -> None:
            notifier.wait(ALICE, at, 20.0)  # noqa: B023 - ended within the round
            woken.append(time.monotonic())  # noqa: B023

        thread = threading.Thread(target=run)
        thread.start()
        # What the round before has changed may be heard only now: then the thread does not wait, and the round does not count.
        while thread.is_alive() and not notifier.waiting():
            time.sleep(0.001)
        begun, committed = time.monotonic(), commit()
        thread.join()
        if woken[0] > begun:
            found.append(max(0.0, woken[0] - committed) * 1000)
    return found


def waking(report: Report, room: LocalRoom, talker: Talker) -> None:
    """One caller at a time, by another process and by this one."""

    def here() -> float:
        room.send(ALICE, "m.room.message", {"body": "x"})
        return time.monotonic()

    def there() -> float:
        return talker.do("send", room.room_id, ALICE)[1]

    base = floor()
    for name, commit in (("another process", there), ("this process", here)):
        commit()
        found = wakes(commit)
        for share in (0.5, 0.95):
            value = percentile(found, share)
            report.add(what=f"wake by {name}, p{share * 100:.0f}", ms=value, limit=50.0, of_limit=value / 50)
    report.add(
        what="floor: NOTIFY alone, p50", ms=percentile(base, 0.5), limit=50.0, of_limit=percentile(base, 0.5) / 50
    )


def many(report: Report, room: LocalRoom, talker: Talker) -> None:
    """All of many tasks by one commit."""

    async def run() -> float | None:
        at = await sync_to_async(notifier.positions)()
        woken: list[float] = []

        async def one() -> None:
            await notifier.await_news(ALICE, at, 30.0)
            woken.append(time.monotonic())

        tasks = [asyncio.create_task(one()) for _ in range(WAITERS)]
        while not any(task.done() for task in tasks) and notifier.waiting() < WAITERS:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        all_wait = notifier.waiting() == WAITERS
        _, committed = await asyncio.to_thread(talker.do, "send", room.room_id, ALICE)
        await asyncio.gather(*tasks)
        await sync_to_async(connections.close_all)()
        return (woken[-1] - committed) * 1000 if all_wait else None

    values: list[float] = []
    while len(values) < 5:
        values += [value for value in [asyncio.run(run())] if value is not None]
    value = statistics.median(values)
    report.add(what=f"wake {WAITERS} tasks, the last", ms=value, limit=50.0, of_limit=value / 50)


def feeding(report: Report, room: LocalRoom, talker: Talker) -> None:
    """CPU of this process per event of another, less what asking the other one takes. This process writes nothing."""
    notifier.stop_feeds()
    asking = cpu_of(room, talker)
    notifier.look(ALICE, VectorToken(0))
    fed = cpu_of(room, talker, until_fed=True)
    report.add(what="feed, one by one, ms CPU per event", ms=(fed - asking) / FED)
    begun = time.process_time()
    time.sleep(3.0)
    report.add(what="feed, idle, ms CPU per second", ms=(time.process_time() - begun) * 1000 / 3.0)


def cpu_of(room: LocalRoom, talker: Talker, *, until_fed: bool = False) -> float:
    """Milliseconds of CPU while another process sends so many events."""
    begun = time.process_time()
    position = 0
    for _ in range(FED):
        position = talker.do("send", room.room_id, ALICE)[0]
    while until_fed and not notifier.now().covers("talker", position):  # type: ignore[union-attr]
        time.sleep(0.01)
    return (time.process_time() - begun) * 1000


def memory(report: Report) -> None:
    """What is kept, by itself."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    changes = LastChanges(10_000)
    for number in range(10_000):
        changes.add(f"!{number:08}:bench.example", "master", number + 1)
    after = tracemalloc.get_traced_memory()[0]
    report.add(what="memory of 10,000 last changes, MB", ms=(after - before) / 1e6)
    shared = [f"!{number:08}:bench.example" for number in range(2_000)]
    before = tracemalloc.get_traced_memory()[0]
    users = {f"@{n:08}:bench.example": frozenset(shared[n % 1_990 : n % 1_990 + 10]) for n in range(10_000)}
    after = tracemalloc.get_traced_memory()[0]
    report.add(what=f"memory of the rooms of {len(users):,} users (10 each), MB", ms=(after - before) / 1e6)
    tracemalloc.stop()


def main() -> None:
    """Measure everything, in one run."""
    use_instance("bench")
    report = Report("hot", "the hot caches")
    rooms = make_rooms()
    room, other = LocalRoom(rooms[0]), create_room(BOB)
    registry.get("events")
    nothing_new(report, rooms, other)
    notifier.stop_feeds()
    whole(report, room)
    with talkers(database_url(), "talker") as (talker,):
        waking(report, room, talker)
        many(report, room, talker)
        feeding(report, room, talker)
    memory(report)
    notifier.stop_feeds()
    report.finish()
