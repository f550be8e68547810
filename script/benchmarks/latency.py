"""Milliseconds from commit to a follower's receipt over TCP at 100 facts a second, with 1 and 200 followers.

Counted from when ``append`` returned, to when the follower's process has the line in hand, over all facts and followers.
Beside it the *floor*: how long PostgreSQL alone takes to tell a listening process of a commit, measured in the same run.
"""

from __future__ import annotations

import json
import select
import statistics
import time
from contextlib import closing

from django.db import connection

from script.benchmarks.broadcast import hear, process, say
from script.benchmarks.report import Report
from streams import registry
from streams.catalog.models import CacheInvalidation
from streams.db import driver
from streams.writing.name import use_instance

FOLLOWERS = {1: 1.0, 200: 3.0}
"""Followers -> largest median in milliseconds that is wanted."""
PER_SECOND = 100
FACTS = 300
ROUNDS = 3


def append_at_pace(number: int, per_second: int = PER_SECOND) -> dict[int, float]:
    """Append facts one by one; ID -> when its commit was known."""
    stream, committed = registry.get("caches"), {}
    begun = time.monotonic()
    for n in range(number):
        time.sleep(max(0.0, begun + n / per_second - time.monotonic()))
        (taken,) = stream.append(CacheInvalidation(cache_name="bench", keys=[f"key {n}"]))
        committed[taken] = time.monotonic()
    return committed


def delays(port: int, followers: int) -> list[float]:
    """Milliseconds of every fact to every follower, of one round."""
    with process("-m", "script.benchmarks.receipts", str(port), str(followers)) as sink:
        hear(sink)  # connected
        append_at_pace(PER_SECOND // 5)  # warm
        committed = append_at_pace(FACTS)
        time.sleep(0.5)
        say(sink, "end")
        received = {int(token): times for token, times in json.loads(hear(sink)).items()}
    if missing := [token for token in committed if len(received.get(token, ())) != followers]:
        raise RuntimeError(f"{len(missing)} facts did not come to all {followers} followers: {missing[:5]}")
    return [(at - committed[token]) * 1000 for token in committed for at in received[token]]


def floor() -> list[float]:
    """Milliseconds from a commit with NOTIFY to the notification in this process."""
    found = []
    with closing(driver.direct_connection(application_name="bench")) as listener, listener.cursor() as hearing:
        hearing.execute("LISTEN bench")
        for _ in range(PER_SECOND):
            time.sleep(1 / PER_SECOND)
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_notify('bench', '')")
            known = time.monotonic()
            while not driver.receive(listener):
                select.select([listener], [], [])
            driver.received(listener).clear()
            found.append((time.monotonic() - known) * 1000)
    return found


def percentile(values: list[float], share: float) -> float:
    """The value below which that share of all lies."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def main() -> None:
    """Measure with each number of followers; figures are medians over the rounds."""
    use_instance("bench")
    report = Report("latency", "milliseconds from commit to receipt")
    with process("manage.py", "runreplication", "--bind", "127.0.0.1:0") as server:
        port = int(hear(server).rsplit(":", 1)[1])
        append_at_pace(PER_SECOND // 2)
        for followers, limit in FOLLOWERS.items():
            measured = [(delays(port, followers), floor()) for _ in range(ROUNDS)]
            figures = {
                name: statistics.median(percentile(values, share) for values, _ in measured)
                for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
            }
            report.add(
                followers=followers,
                **figures,
                limit=limit,
                of_limit=figures["p50"] / limit,
                floor=statistics.median(percentile(values, 0.5) for _, values in measured),
            )
    report.finish()
