"""What reading and appending takes beside as many events and facts as are stored: one line of JSON (see ``scale``).

CPU is that of this process and of its database session; of a reader that catches up also that of the whole database server.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "replsite.settings")
django.setup()

from django.db import connection  # noqa: E402

from events.reading.pages import timeline  # noqa: E402
from script.benchmarks.catchup import make_past  # noqa: E402
from script.benchmarks.cpu_seconds import CpuSeconds  # noqa: E402
from script.benchmarks.page import cpu_ms  # noqa: E402
from state.groups.filters import EVERYTHING  # noqa: E402
from state.store import full_state  # noqa: E402
from streams import registry  # noqa: E402
from streams.catalog.models import CacheInvalidation  # noqa: E402
from streams.writing.name import use_instance  # noqa: E402

SAMPLE = 100
PAGE = 100
_SOME_EVENTS = """
SELECT e.room_id, e.state_group, user_id FROM unnest(%s::bigint[]) AS place
CROSS JOIN LATERAL (
    SELECT room_id, state_group FROM events_event
    WHERE stream_ordering >= place AND state_group IS NOT NULL ORDER BY stream_ordering LIMIT 1
) AS e
CROSS JOIN LATERAL (
    SELECT state_key AS user_id FROM events_currentstate
    WHERE room_id = e.room_id AND type = 'm.room.member' AND membership = 'join' ORDER BY state_key LIMIT 1
) AS member
"""


def some_events() -> list[tuple[str, int, str]]:
    """Events of the whole history, the same in each run: their rooms, state groups, and a member of each room."""
    choose = random.Random(17)  # noqa: S311 - the same each run
    with connection.cursor() as cursor:
        cursor.execute("SELECT min(stream_ordering), max(stream_ordering) FROM events_event WHERE NOT outlier")
        first, last = cursor.fetchone()
        cursor.execute(_SOME_EVENTS, [[choose.randint(first, last) for _ in range(SAMPLE)]])
        return cursor.fetchall()


def reads(events: list[tuple[str, int, str]]) -> dict[str, float]:
    """Microseconds for a page on average, and for an entry of a state: larger histories have rooms of more members."""

    def pages() -> int:
        return sum(len(timeline(room_id, user_id, PAGE).events) for room_id, _, user_id in events)

    def states() -> int:
        return sum(len(full_state(group, only=EVERYTHING)) for _, group, _ in events)

    entries = states()
    return {
        f"a page of {PAGE} events, us": cpu_ms(pages, 5) * 1000 / len(events),
        "an entry of the state at an event, us": cpu_ms(states, 5) * 1000 / entries,
    }


def facts(number: int) -> dict[str, float]:
    """Microseconds for a fact, beside ``number`` others."""
    upto = make_past(number)
    stream = registry.get("caches")

    def append() -> int:
        return len(stream.append(CacheInvalidation(cache_name="bench", keys=["key"], invalidation_ts=1)))

    appended = cpu_ms(append, 1_000) * 1000
    command = [sys.executable, "-m", "script.benchmarks.catchup_follower", "reader", "writer", str(upto)]
    with CpuSeconds() as cpu:
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return {"an append, us": appended, "catching up a fact, us": cpu.seconds / number * 1e6}


def main() -> None:
    """Measure."""
    use_instance("bench")
    number = int(sys.argv[1])
    print(json.dumps({**reads(some_events()), **facts(number)}), flush=True)


if __name__ == "__main__":
    main()
