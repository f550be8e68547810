"""Events/s and CPU for an event: files read as frames, computed and loaded, beside an import of the same files, in turns.

Each is a process of its own on an empty database: ``read_events``, ``work_out_rooms`` and ``load`` (``load_once``), with the rows
kept in files between the steps, and the import (``import_once``). The figures are without the seconds that Spark takes to start.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from script.benchmarks.histories import make_history, sizes_of_rooms
from script.benchmarks.import_ import emptied, once
from script.benchmarks.report import Report, answer_of

EVENTS = int(os.environ.get("REPLSITE_BENCH_EVENTS") or 100_000)
TURNS = int(os.environ.get("REPLSITE_BENCH_TURNS") or 2)
_WHO = ("driver", "jvm", "workers", "postgres")
_STEPS = ("read", "plan", "rooms", "load")


def loaded(paths: list[Path]) -> dict[str, Any]:
    """Load the files into an empty database; what ``load_once`` says."""
    emptied()
    with tempfile.TemporaryDirectory() as folder:
        answer = answer_of("-m", "script.benchmarks.load_once", folder, *map(str, paths))
    if answer["events"] != EVENTS or answer["rejected"] or answer["unresolved"] or answer["left_out"]:
        raise RuntimeError(f"not everything was loaded: {answer}")
    steps = answer["steps"]
    answer["all"] = {key: sum(steps[step][key] for step in _STEPS) for key in ("wall", *_WHO)}
    return answer


def imported(paths: list[Path]) -> dict[str, Any]:
    """Import the files into an empty database; what ``import_once`` says, in the form of ``loaded``."""
    answer = once(paths)
    return {"steps": answer["stages"], "memory": answer["memory"], "all": answer["stages"]["all"]}


def main() -> None:
    """The two ways in turns, each as often."""
    columns = ["way", "events_per_second", "cpu_us_per_event", *(f"{who}_us" for who in _WHO), "workers_mb", "jvm_mb"]
    report = Report("load", f"Frames loaded, beside an import, {EVENTS:,} events (each step: in the file)", columns)
    with tempfile.TemporaryDirectory() as name:
        paths = make_history(Path(name), sizes_of_rooms(EVENTS, max(EVENTS // 500, 2), EVENTS // 5))
        for _ in range(TURNS):
            for way, measure in (("frames", loaded), ("import", imported)):
                found = measure(paths)
                spent = found["all"]
                report.add(
                    way=way,
                    events_per_second=EVENTS / spent["wall"],
                    cpu_us_per_event=sum(spent[who] for who in _WHO) / EVENTS * 1e6,
                    **{f"{who}_us": spent[who] / EVENTS * 1e6 for who in _WHO},
                    **{f"{who}_mb": found["memory"][who] for who in ("workers", "jvm")},
                    steps=found["steps"],
                )
    report.finish()
