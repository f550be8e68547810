"""The frames of some files, computed in a process of its own, and what each step takes: one line of JSON (see ``frames``)."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pipeline import read_events, work_out_rooms
from pipeline.spark.session import LIGHT_DRIVER, spark_session
from script.benchmarks.import_once import Meter


def run(paths: list[Path], folder: Path, cores: int) -> dict[str, Any]:
    """Read and keep the events, then compute the rows of their rooms. No other thing is done with the rows."""
    meter = Meter()
    with spark_session("bench", folder=folder, master=f"local[{cores}]", conf=LIGHT_DRIVER) as spark, meter:
        with meter.step("read"):
            kept = read_events(spark, paths).keep(folder / "lines")
        with meter.step("plan"):
            rooms = work_out_rooms(kept)
        with meter.step("rooms"):
            counted = rooms.bundles.groupBy("frame").sum("rows").collect()
    return {"steps": meter.steps, "memory": meter.most_mb, "rows": dict(map(tuple, counted))}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--cores", type=int, default=2)
    given = parser.parse_args()
    sys.stdout.write(json.dumps(run(given.paths, given.folder, given.cores)) + "\n")
