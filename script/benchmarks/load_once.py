"""Files are read as frames and loaded, in a process of its own; what each step takes: one line of JSON (see ``load``)."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from script.benchmarks.import_once import Meter


def run(paths: list[Path], folder: Path, cores: int, *, kept: bool) -> dict[str, Any]:
    """Read, compute and load into the database as it is. Rows are kept in files, or else by Spark, on its disks."""
    from django.db import connection  # noqa: PLC0415 - after Django is set up

    from pipeline import load, read_events, work_out_rooms  # noqa: PLC0415
    from pipeline.spark.session import LIGHT_DRIVER, spark_session  # noqa: PLC0415
    from streams.db.driver import dsn  # noqa: PLC0415
    from streams.jobs.folders import any_folder  # noqa: PLC0415
    from streams.jobs.run import JobRun, run_job  # noqa: PLC0415
    from streams.writing.name import use_instance  # noqa: PLC0415

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid(), pg_current_wal_insert_lsn() - '0/0'")
        backend, wal = cursor.fetchone()
    meter = Meter(int(backend))

    def work(job: JobRun) -> Mapping[str, Any]:
        with ExitStack() as stack:
            with meter.step("start"):
                session = spark_session("bench", folder=folder, master=f"local[{cores}]", conf=LIGHT_DRIVER)
                spark = stack.enter_context(session)
            with meter.step("read"):
                lines = read_events(spark, paths).keep(folder / "lines")
            with meter.step("plan"):
                rooms = work_out_rooms(lines)
            with meter.step("rooms"):
                if kept:
                    rooms = rooms.keep(folder / "rooms")
                else:
                    rooms.persist().bundles.count()
            with meter.step("load"):
                return load(rooms, dsn(), job).summary()

    use_instance("bench")
    with meter, any_folder():
        summary = run_job("import_events", {"sources": [str(folder)]}, stream=io.StringIO(), work=work)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_wal_insert_lsn() - '0/0'")
        (after,) = cursor.fetchone()
    return {"steps": meter.steps, "memory": meter.most_mb, "wal": int(after - wal), **summary}


if __name__ == "__main__":
    import django

    django.setup()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--persisted", action="store_true", help="let Spark keep the rows, and not files")
    given = parser.parse_args()
    sys.stdout.write(json.dumps(run(given.paths, given.folder, given.cores, kept=not given.persisted)) + "\n")
