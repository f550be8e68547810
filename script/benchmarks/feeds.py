"""Per-user feeds: what they save a reader of many rooms, and what writing them costs.

* *read*: ``events_since`` for a user of 1,000 rooms, 500 of which have something new, with a feed and (the peer) without one; the
  answers are compared first. Milliseconds; *ratio* is the time without a feed over the time with it.
* *write*: events listed in a second in a room of so many members of this server; the peer copies as many finished rows into a
  table of the same form, *ratio* is our rate over the peer's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

from django.db import connection, transaction

from events.sending.send import LocalRoom, NewEvent, create_room
from events.sync import events_since as reading
from events.sync.events_since import events_since
from events.tokens.positions import events_token
from pipeline.feeds.write import StreamRange, drop_feeds, write_feeds
from script.benchmarks.report import Report, median_ratio, rounds
from streams.writing import process

ROOMS, CHANGED, MESSAGES = 1_000, 500, 2
ROUNDS = 11
ALICE = "@alice:bench"
MEMBERS = (1, 100)
WRITTEN = 1_000
NEVER = 10**9
LIMIT = 5_000

_COPIED = "CREATE TEMPORARY TABLE bench_entry (LIKE events_feedentry INCLUDING ALL)"
_COPY = "INSERT INTO bench_entry SELECT * FROM events_feedentry ON CONFLICT DO NOTHING"


def messages(count: int) -> list[NewEvent]:
    """Things said by Alice."""
    return [NewEvent(ALICE, "m.room.message", {"msgtype": "m.text", "body": str(number)}) for number in range(count)]


def write(stretch: StreamRange) -> int:
    """Feeds of a stretch, from nothing; how many entries."""
    with transaction.atomic(), connection.cursor() as cursor:
        drop_feeds(cursor)
        return write_feeds(cursor, stretch, "bench", LIMIT).entries


def read(report: Report) -> None:
    """The same answers with and without a feed."""
    rooms = [create_room(ALICE) for _ in range(ROOMS)]
    since = events_token()
    for room in rooms[:CHANGED]:
        room.add(messages(MESSAGES))
    now = events_token()
    write(StreamRange(since.base, now.base))
    analyze()
    for limit in (20, 100, 1_000):
        ask = partial(events_since, ALICE, since, limit=limit, now=now)
        if ask() != without_feeds(ask):
            raise AssertionError("the feed's answer is another one")
        result = rounds(ROUNDS, {"ours": partial(timed, ask), "peer": partial(timed, partial(without_feeds, ask))})
        ours, peer = (statistics.median(result[kind]) for kind in ("ours", "peer"))
        report.add(
            what=f"read, {limit} events", unit="ms", ours=ours, peer=peer, ratio=median_ratio(result["peer"], result["ours"])
        )  # fmt: skip


def without_feeds(ask: Callable[[], object]) -> object:
    """What the rooms say."""
    worth, reading.ROOMS_WORTH_A_FEED = reading.ROOMS_WORTH_A_FEED, NEVER
    try:
        return ask()
    finally:
        reading.ROOMS_WORTH_A_FEED = worth


def timed(work: Callable[[], object]) -> float:
    """Milliseconds."""
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1000


def written(report: Report) -> None:
    """Events listed a second."""
    with connection.cursor() as cursor:
        cursor.execute(_COPIED)
    for members in MEMBERS:
        room = create_room(ALICE)
        join(room, members - 1)
        since = events_token()
        for _ in range(WRITTEN // 100):
            room.add(messages(100))
        stretch = StreamRange(since.base, events_token().base)
        analyze()
        entries = write(stretch)
        result = rounds(3, {"ours": partial(rate, partial(write, stretch)), "peer": partial(rate, copy)})
        ours, peer = (statistics.median(result[kind]) for kind in ("ours", "peer"))
        report.add(
            what=f"write, {entries // WRITTEN} members", unit="events/s", ours=ours, peer=peer,
            ratio=median_ratio(result["ours"], result["peer"]),
        )  # fmt: skip


def rate(work: Callable[[], object]) -> float:
    """Events a second."""
    return WRITTEN * 1000 / timed(work)


def copy() -> None:
    """The rows alone."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("TRUNCATE bench_entry")
        cursor.execute(_COPY)


def join(room: LocalRoom, users: int) -> None:
    """More members."""
    events = [
        NewEvent(f"@user{number}:bench", "m.room.member", {"membership": "join"}, f"@user{number}:bench")
        for number in range(users)
    ]
    if events:
        room.set_state(ALICE, "m.room.join_rules", {"join_rule": "public"})
        room.add(events)


def analyze() -> None:
    """Tables that were filled just now, as they are after a while."""
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def main() -> None:
    """Read, then write."""
    process.use_instance("bench-{n}")
    report = Report("feeds", "per-user feeds", ["what", "unit", "ours", "peer", "ratio"])
    read(report)
    written(report)
    process.retire_all()
    report.finish()
