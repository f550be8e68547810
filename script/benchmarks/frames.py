"""CPU of the rows of rooms as frames, for an event: read, kept as Parquet, planned and computed.

``load`` compares the whole way into the tables with an import. Walls are those of a machine that does nothing else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from script.benchmarks.histories import make_history, sizes_of_rooms
from script.benchmarks.report import Report

EVENTS = int(os.environ.get("REPLSITE_BENCH_EVENTS") or 100_000)
_WHO = ("driver", "jvm", "workers", "postgres")


def frames_of(paths: list[Path], folder: Path) -> dict[str, Any]:
    """Compute the frames of the files; what ``frames_once`` says."""
    command = [sys.executable, "-m", "script.benchmarks.frames_once", str(folder), *map(str, paths)]
    found = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True)
    answer: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    if answer["rows"]["events"] != EVENTS:
        raise RuntimeError(f"not every event has a row: {answer}")
    return answer


def add(report: Report, name: str, steps: dict[str, dict[str, float]], memory: dict[str, float]) -> None:
    """A row for each step, and one for all of them."""
    whole = {key: sum(step[key] for step in steps.values()) for key in ("wall", *_WHO)}
    for step, spent in [*steps.items(), ("all", whole)]:
        report.add(
            rows=f"{name}: {step}",
            events_per_second=EVENTS / spent["wall"],
            cpu_us_per_event=sum(spent[who] for who in _WHO) / EVENTS * 1e6,
            **{f"{who}_us": spent[who] / EVENTS * 1e6 for who in _WHO},
            **({f"{who}_mb": memory[who] for who in ("workers", "jvm")} if step == "all" else {}),
        )


def main() -> None:
    """Compute the frames."""
    columns = ["rows", "events_per_second", "cpu_us_per_event", *(f"{who}_us" for who in _WHO), "workers_mb", "jvm_mb"]
    report = Report("frames", f"Rows of rooms as frames, {EVENTS:,} events", columns)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = make_history(folder, sizes_of_rooms(EVENTS, max(EVENTS // 500, 2), EVENTS // 5))
        found = frames_of(paths, folder / "spark")
        add(report, "frames", found["steps"], found["memory"])
    report.finish()
