"""Files are read as frames and loaded, in a process of its own; what each step takes: one line of JSON (see ``load``)."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from script.benchmarks.import_once import Meter


def run(paths: list[Path], folder: Path) -> dict[str, Any]:
    """Read, compute and load into the database as it is. Lines and rows are kept in files in between."""
    from pipeline import load, read_events, work_out_rooms  # noqa: PLC0415 - after Django is set up
    from pipeline.spark.session import LIGHT_DRIVER, spark_session  # noqa: PLC0415
    from streams.db.driver import dsn  # noqa: PLC0415
    from streams.jobs.folders import any_folder  # noqa: PLC0415
    from streams.jobs.run import JobRun, run_job  # noqa: PLC0415
    from streams.writing.name import use_instance  # noqa: PLC0415

    meter = Meter()

    def work(job: JobRun) -> Mapping[str, Any]:
        with ExitStack() as stack:
            with meter.step("start"):
                session = spark_session("bench", folder=folder, master="local[2]", conf=LIGHT_DRIVER)
                spark = stack.enter_context(session)
            with meter.step("read"):
                lines = read_events(spark, paths).keep(folder / "lines")
            with meter.step("plan"):
                rooms = work_out_rooms(lines)
            with meter.step("rooms"):
                rooms = rooms.keep(folder / "rooms")
            with meter.step("load"):
                return load(rooms, dsn(), job).summary()

    use_instance("bench")
    with meter, any_folder():
        summary = run_job("import_events", {"sources": [str(folder)]}, stream=io.StringIO(), work=work)
    return {"steps": meter.steps, "memory": meter.most_mb, **summary}


if __name__ == "__main__":
    import django

    django.setup()
    folder, *paths = map(Path, sys.argv[1:])
    sys.stdout.write(json.dumps(run(paths, folder)) + "\n")
