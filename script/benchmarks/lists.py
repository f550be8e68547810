"""Milliseconds for each list and search of the pages at 10^6 events in 10^5 rooms and 10^7 facts, against 300.

*ms* is the median of the whole answer of the page, *worst* the longest one. *slowest* is the longest statement of an answer. A
search for a content reads for a bounded time, and the page goes on below by itself: there *ms* and *worst* are of its *requests*,
and *seconds* is the time until the fact is found or the search is at its end.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterator
from html import unescape
from urllib.parse import parse_qsl

from django.contrib.auth.models import User
from django.db import connection, models
from django.test import Client
from django.test.utils import CaptureQueriesContext, override_settings

from script.benchmarks.filled_room import SERVER, Shape, fill_rooms
from script.benchmarks.report import Report
from streams import Fact, stream

EVENTS, ROOMS, FACTS = 1_000_000, 100_000, 10_000_000
LIMIT_MS = 300.0
ROUNDS = 5
#: Above this a statement's plan is printed.
TOLD_MS = 100.0
MEMBERS = 8
_ROOMS = "/admin/events/room/"
_EVENTS = "/admin/events/event/"
_FACTS = "/admin/facts/"


@stream("entries", key="account")
class Entry(Fact):
    """Of one of 10^5 accounts."""

    account = models.TextField()
    number = models.IntegerField()

    class Meta(Fact.Meta):
        app_label = "streams_catalog"


_PEOPLE = f"""
INSERT INTO events_currentstate (room_id, type, state_key, event_id, membership)
SELECT room_id, 'm.room.member', '@u' || (abs(hashtext(room_id || n)) %% 200000) || ':{SERVER}', '$m' || n || room_id,
    CASE WHEN n = 1 THEN 'invite' ELSE 'join' END
FROM events_room CROSS JOIN generate_series(1, %s) AS n ON CONFLICT DO NOTHING
"""
#: Half of the rooms have a name, one in five an alias, one in a hundred gaps, one in a thousand no known state.
_NAMES = (
    """
    UPDATE events_roomsummary SET name = named, alias = aliased, words = lower(concat_ws(' ', named, aliased, room_id))
    FROM (SELECT room_id AS id,
        CASE WHEN hashtext(room_id) & 1 = 0 THEN 'Team ' || (hashtext(room_id) & 65535) || ' of the house' END AS named,
        CASE WHEN hashtext(room_id) % 5 = 0 THEN '#team-' || (hashtext(room_id) & 65535) || ':example.org' END AS aliased
        FROM events_roomsummary) AS made WHERE id = room_id
    """,
    "INSERT INTO events_backwardextremity (room_id, event_id) "
    "SELECT room_id, '$gap' || room_id FROM events_room WHERE hashtext(room_id) % 100 = 0",
    "UPDATE events_room SET current_state_unresolved = true WHERE hashtext(room_id) % 1000 = 1",
    "UPDATE events_room SET room_version = '6' WHERE hashtext(room_id) % 50 = 2",
    "VACUUM ANALYZE events_room, events_roomsummary, events_currentstate, events_backwardextremity, events_event",
)
_ENTRIES = """
SET LOCAL streams.maintenance = on;
INSERT INTO {table} (stream_id, instance_name, received_at, account, number)
SELECT n, 'past', now() - (%(facts)s - n) * interval '1 second', 'account-' || n %% 100000, n
FROM generate_series(2, %(facts)s) AS n;
SELECT setval('{sequence}', %(facts)s);
INSERT INTO streams_streamposition (stream, instance_name, position, last_write_position, state)
VALUES ('entries', 'past', %(facts)s, %(facts)s, 'retired')
"""


def fill(events: int, rooms: int, facts: int) -> None:
    """Stores rooms, events and facts."""
    fill_rooms(Shape(events, rooms))
    with connection.cursor() as cursor:
        cursor.execute(_PEOPLE, [MEMBERS])
        for statement in _NAMES:
            cursor.execute(statement)
    with connection.schema_editor() as editor:
        editor.create_model(Entry)
    table, sequence = Entry._meta.db_table, Entry.stream.declaration.sequence
    with connection.cursor() as cursor:
        cursor.execute(_ENTRIES.format(table=table, sequence=sequence), {"facts": facts})
        cursor.execute(f"VACUUM ANALYZE {table}")


def addresses(facts: int) -> Iterator[tuple[str, str, dict[str, str]]]:
    """(what, address, parameters) of each list and search."""
    for order in ("", "0", "-0", "1", "-1", "2", "-2", "3", "-3"):
        yield f"rooms, order {order or 'as it is'}", _ROOMS, {"o": order} if order else {}
    yield "rooms, page 200", _ROOMS, {"p": "200"}
    for health in ("healthy", "gaps", "unknown"):
        yield f"rooms, {health}", _ROOMS, {"health": health}
        yield f"rooms, {health} by name", _ROOMS, {"health": health, "o": "0"}
    for version in ("6", "10", "12"):
        yield f"rooms, version {version}", _ROOMS, {"version": version}
    yield "rooms, version 6 with gaps", _ROOMS, {"version": "6", "health": "gaps"}
    searches = {
        "name": "team 4711 of", "name of half of them": "house", "alias": "#team-4711", "part of an ID": "!4711",
        "part of all IDs": "large", "no room": "nothing like it", "member": f"@u4711:{SERVER}",
        "beginning of many members": "@u1", "name, letters of both cases": "TEAM 99",
    }  # fmt: skip
    for what, term in searches.items():
        yield f"rooms, search: {what}", _ROOMS, {"q": term}
    yield "rooms, search: half of them by name, healthy", _ROOMS, {"q": "house", "o": "0", "health": "healthy"}
    yield "events", _EVENTS, {}
    yield "facts, newest", _FACTS, {"stream": "entries"}
    yield "facts, ID in the middle", _FACTS, {"stream": "entries", "id": str(facts // 2)}
    for ago in ("1h", "30d", "100d"):
        yield f"facts, before {ago}", _FACTS, {"stream": "entries", "until": ago}
    yield "facts, key", _FACTS, {"stream": "entries", "key": "account-4711"}
    yield "facts, key before 100d", _FACTS, {"stream": "entries", "key": "account-4711", "until": "100d"}
    yield "facts, no such key", _FACTS, {"stream": "entries", "key": "none"}


def searches(facts: int) -> Iterator[tuple[str, dict[str, str]]]:
    """(what, parameters) of each search for a content."""
    for what, text in {
        "a newest number": str(facts - 5), "a number in the middle": str(facts // 2), "no such number": "99999999",
        "letters of all facts": "ACCOUNT-", "no such letters": "nothing like it", "no such letters, not of ASCII": "größer",
        "a key, however old": "account-4711",
    }.items():  # fmt: skip
        yield f"facts, content: {what}", {"stream": "entries", "text": text}


def main() -> None:
    """Measures each."""
    fill(EVENTS, ROOMS, FACTS)
    report = Report("lists", f"lists at {EVENTS:,} events in {ROOMS:,} rooms and {FACTS:,} facts")
    client = Client(SERVER_NAME="localhost")
    client.force_login(User.objects.create_superuser("boss"))
    with override_settings(
        STORAGES={"staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}}
    ):
        for what, address, asked in addresses(FACTS):
            report.add(what=what, limit=LIMIT_MS, **measure(client, address, asked))
        for what, asked in searches(FACTS):
            report.add(what=what, limit=LIMIT_MS, **measure_search(client, asked))
    report.finish()


def measure(client: Client, address: str, asked: dict[str, str]) -> dict[str, float]:
    """Returns the figures of one list. Prints the plans of its long statements."""
    times = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        answer = client.get(address, asked)
        times.append((time.perf_counter() - begun) * 1000)
        if answer.status_code != 200:
            raise SystemExit(f"{address} {asked}: {answer.status_code}")
    with CaptureQueriesContext(connection) as captured:
        client.get(address, asked)
    slowest = max(captured.captured_queries, key=lambda query: float(query["time"]))
    found = {"ms": statistics.median(times), "worst": max(times), "slowest": float(slowest["time"]) * 1000}
    if found["slowest"] > TOLD_MS:
        with connection.cursor() as cursor:
            cursor.execute("EXPLAIN (ANALYZE, BUFFERS) " + slowest["sql"])
            plan = "\n".join(row[0] for row in cursor.fetchall())
        print(f"{address} {asked}\n{slowest['sql'][:700]}\n{plan}\n")
    return found


def measure_search(client: Client, asked: dict[str, str]) -> dict[str, float]:
    """Returns the figures of a search that goes on until a fact is found, as the page does."""
    times = []
    while True:
        begun = time.perf_counter()
        text = client.get(_FACTS, asked).content.decode()
        times.append((time.perf_counter() - begun) * 1000)
        link = re.search(r'id="facts-older" href="\?([^"]*)"', text)
        if '<tr><th scope="row"' in text or link is None:
            break
        asked = dict(parse_qsl(unescape(link[1])))
    return {
        "ms": statistics.median(times),
        "worst": max(times),
        "requests": len(times),
        "seconds": sum(times) / 1000,
    }
