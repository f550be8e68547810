"""``manage.py doctor`` on a made Synapse database: its quick part, and events a second of rooms computed again.

CPU is that of all who work: this process, the JVM, its workers, and all processes of the database server. ``per_core`` is the
number of events for a second of it, so that cores times this is what a machine of more cores could reach at best.
"""

from __future__ import annotations

import os
from typing import Any

from script.benchmarks.made_synapse import made_synapse
from script.benchmarks.report import Report, answer_of, database_url

EVENTS = int(os.environ.get("REPLSITE_BENCH_EVENTS") or 300_000)
LEAST_PER_SECOND, MOST_SECONDS, MOST_MB = 20_000, 60.0, 300.0
_WHO = ("driver", "jvm", "workers", "postgres")


def once(url: str, cores: int) -> dict[str, Any]:
    """Examine the database; what ``doctor_once`` says."""
    answer = answer_of("-m", "script.benchmarks.doctor_once", url, "--cores", str(cores))
    if answer["findings"] or answer["left_out"] or (cores >= 0 and answer["events"] != EVENTS):
        raise RuntimeError(f"the database is well, and is not found so: {answer}")
    return answer


def main() -> None:
    """Measure the quick part, then the rooms in this process and on two cores."""
    columns = ["part", "seconds", "limit", "events_per_second", "per_core", "cpu_us_per_event", "mb", "ok"]
    report = Report("doctor", f"doctor, {EVENTS:,} events (whose CPU it was: in the file)", columns)
    with made_synapse(database_url(), EVENTS) as url:
        quick = once(url, -1)
        ok = quick["seconds"] <= MOST_SECONDS and quick["mb"] <= MOST_MB
        report.add(
            part="quick", seconds=quick["seconds"], limit=MOST_SECONDS, mb=quick["mb"], mb_limit=MOST_MB,
            ok="yes" if ok else "NO",
        )  # fmt: skip
        for part, cores in (("rooms, one process", 0), ("rooms, two tasks on Spark", 2)):
            found = once(url, cores)
            spent = {who: found["spent"][who] for who in _WHO}
            cpu, rate = sum(spent.values()), EVENTS / found["seconds"]
            report.add(
                part=part, seconds=found["seconds"], limit=LEAST_PER_SECOND, events_per_second=rate, per_core=EVENTS / cpu,
                cpu_us_per_event=cpu / EVENTS * 1e6, mb=found["mb"],
                **{f"{who}_us": seconds / EVENTS * 1e6 for who, seconds in spent.items()},
                ok="yes" if rate >= LEAST_PER_SECOND else "NO",
            )  # fmt: skip
    report.finish()
