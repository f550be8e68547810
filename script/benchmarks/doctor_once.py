"""One examination of a Synapse database in a process of its own, and what it takes: one line of JSON (see ``doctor``)."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import django

from script.benchmarks.import_once import Meter


def run(url: str, cores: int) -> dict[str, Any]:
    """Examine the database. With no cores, this process computes the rooms itself; with -1 no room is computed."""
    from pipeline.doctor import many_rooms  # noqa: PLC0415 - after Django is set up
    from pipeline.doctor.examine import examine  # noqa: PLC0415
    from pipeline.doctor.report import Report  # noqa: PLC0415
    from pipeline.doctor.server_database import ServerDatabase  # noqa: PLC0415

    many_rooms.EVENTS_IN_PROCESS = 2**40
    master = f"local[{cores}]" if cores > 0 else None
    spent: dict[str, float] = {}

    def say(_: str) -> None:
        """Says nothing."""

    def check(database: ServerDatabase, report: Report) -> None:
        meter = Meter()
        with meter, meter.step("all"):
            many_rooms.check_many_rooms(url, database, report, say, rooms=None, master=master)
        spent.update(meter.steps["all"])

    begun = time.monotonic()
    report = examine(url, say, None if cores < 0 else check)
    checked = report.checked
    return {
        "seconds": time.monotonic() - begun if checked is None else checked.seconds,
        "events": 0 if checked is None else checked.events,
        "findings": len(report.findings),
        "left_out": report.left_out,
        "mb": _peak_mb(),
        "spent": spent,
    }


def _peak_mb() -> float:
    # Not that of ``getrusage``, which begins with the memory of the process that started this one.
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    django.setup()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--cores", type=int, default=0)
    given = parser.parse_args()
    sys.stdout.write(json.dumps(run(given.url, given.cores)) + "\n")
