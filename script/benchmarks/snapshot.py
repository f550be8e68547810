"""What the live page and a scrape of metrics cost at a large site with 2,000 readers, against the limits.

Everybody goes on by one step before each round. *snapshot* is the wall time of all queries and of working out what they say;
*snapshot_cpu* and *scrape_cpu* are the CPU of this process. *message* is what an open page gets then, compressed.
"""

from __future__ import annotations

import statistics
import time

from django.db import connection

from replsite.dashboard.shared_answers import SharedAnswers
from replsite.live_rows import reading
from replsite.live_rows.shared import SharedSnapshot
from replsite.live_rows.snapshot import Snapshot
from replsite.metrics.cluster import SnapshotCollector
from replsite.metrics.exposition import as_text
from replsite.metrics.synapse import SynapseNames
from script.benchmarks.report import Report
from tests.support.large_site import READERS, Site, move

#: Site -> limits of a snapshot's wall time and of a scrape's CPU, in milliseconds.
LIMITS = {Site(50, 50): (300.0, 1_000.0), Site(16, 20): (100.0, 200.0)}
ROUNDS = 15


def scrape(snapshot: Snapshot) -> int:
    """Returns the length of the answer."""
    return len(as_text(SynapseNames(SnapshotCollector(lambda: snapshot)).collect()))


def measure(site: Site) -> dict[str, float]:
    """Returns the medians of the rounds, in milliseconds and bytes."""
    site.fill()
    shared = SharedSnapshot(reading.read_snapshot)
    answers = SharedAnswers(shared)
    found: dict[str, list[float]] = {"snapshot_ms": [], "snapshot_cpu_ms": [], "scrape_cpu_ms": [], "message_bytes": []}
    for _ in range(ROUNDS):
        move()
        wall, cpu = time.perf_counter(), time.thread_time()
        snapshot = shared.get(fresh_seconds=0)
        found["snapshot_ms"].append(1_000 * (time.perf_counter() - wall))
        found["snapshot_cpu_ms"].append(1_000 * (time.thread_time() - cpu))
        found["message_bytes"].append(len(answers.of(frozenset()).packed))
        cpu = time.thread_time()
        scrape(snapshot)
        found["scrape_cpu_ms"].append(1_000 * (time.thread_time() - cpu))
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    """Measures each size of a site."""
    report = Report("snapshot", f"a snapshot and a scrape with {READERS:,} readers")
    for site, (limit, scrape_limit) in LIMITS.items():
        with connection.cursor() as cursor:
            cursor.execute(
                "SET LOCAL streams.maintenance = on; "
                "TRUNCATE streams_reader, streams_streamposition, streams_cacheinvalidation"
            )
        reading.registry = site.registry()  # type: ignore[assignment,attr-defined]
        taken = measure(site)
        report.add(
            site=f"{site.streams} streams x {site.writers} writers",
            limit_ms=limit,
            ratio=taken["snapshot_ms"] / limit,
            scrape_limit_ms=scrape_limit,
            **taken,
        )
    report.finish()
