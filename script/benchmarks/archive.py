"""Archive, restore, export, check and mend of one large room beside a plain COPY of its rows, by wall time and by CPU.

The room has real hashes: a restore hashes each event, and of JSON that is damaged it would also look for the reason.
The peer of an archive and of an export is COPY of the room's tables to files; that of a restore is COPY of these files into empty
tables with the same indexes. An archive is read back and compared by digest before it counts, a restore checks every file and
every place, an export brings rooms and days together: a ratio tells what that costs. Spark's start is not counted.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

from django.db import connection

from events.integrity.compare import EVERYTHING
from events.integrity.repair import check_room
from events.operations.purge_room import PurgeRoom
from pipeline.archive.parts import read_batches
from pipeline.archive.read_parts import open_archive
from pipeline.importing import job
from pipeline.importing.job import ImportOptions, import_history
from pipeline.operations.archive import Archive
from pipeline.operations.export import Export
from pipeline.operations.restore import Restore
from pipeline.operations.resync_and_room_mend import Resync
from pipeline.spark.site_session import site_session
from script.benchmarks.histories import make_history
from script.benchmarks.import_once import Meter
from script.benchmarks.report import Report
from streams.jobs import throttle
from streams.jobs.folders import any_folder
from streams.jobs.run import run_job
from streams.writing.name import use_instance

EVENTS = int(os.environ.get("REPLSITE_BENCH_EVENTS") or 200_000)
TABLES = (
    "events_event", "events_eventjson", "events_eventedge", "events_eventauth", "state_stategroup", "state_stategroupdelta",
)  # fmt: skip


_DAMAGE = "DELETE FROM events_eventedge WHERE hashtext(event_id) % 1000 = 0"


def import_room() -> str:
    """Imports a room in this process, and returns its ID."""
    job.BYTES_IN_PROCESS = 2**40
    with tempfile.TemporaryDirectory() as folder:
        import_history(ImportOptions(make_history(Path(folder), [EVENTS], 1)), StringIO())
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
        cursor.execute("SELECT room_id FROM events_room")
        ((room_id,),) = cursor.fetchall()
    return str(room_id)


def damage() -> None:
    """Deletes some edges, one in a thousand."""
    with connection.cursor() as cursor:
        cursor.execute(_DAMAGE)


def copy_out(folder: Path) -> None:
    """Every table to a file; they hold nothing but the room."""
    with connection.cursor() as cursor:
        for table in TABLES:
            with (folder / table).open("wb") as file:
                cursor.copy_expert(f"COPY {table} TO STDOUT (FORMAT BINARY)", file)  # type: ignore[attr-defined]


def copy_in(folder: Path) -> None:
    """Every file into a table of the same form, in one transaction each."""
    with connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"CREATE TABLE peer_of_{table} (LIKE {table} INCLUDING ALL)")
            with (folder / table).open("rb") as file:
                cursor.copy_expert(f"COPY peer_of_{table} FROM STDIN (FORMAT BINARY)", file)  # type: ignore[attr-defined]


def timed(meter: Meter, work: Callable[[], Any]) -> tuple[float, float, Any]:
    """(wall seconds, CPU seconds of all processes that take part, what the work returned)."""
    with meter.step("work"):
        found = work()
    spent = dict(meter.steps["work"])
    return spent.pop("wall"), sum(spent.values()), found


def read_all(folder: Path) -> int:
    """What a restore does without the database: looks at each file's bytes, then reads all rows. Returns their number."""
    manifest = open_archive(folder)
    return sum(batch.num_rows for file in manifest.files for batch in read_batches(folder / file.name, file.table))


def main() -> None:
    """Archive, delete, restore, check, mend and export the room."""
    report = Report("archive", f"archive, restore, export, check and mend of {EVENTS} events beside COPY")
    throttle._REST = 0  # what is deleted in between is not measured
    room_id, meter = import_room(), Meter()
    use_instance("bench")

    def add(what: str, work: Callable[[], Any], peer: tuple[float, float, Any], note: Callable[[Any], str]) -> Any:
        wall, cpu, found = timed(meter, work)
        rate, copied, copy_us = EVENTS / wall, EVENTS / peer[0], peer[1] / EVENTS * 1e6
        report.add(what=what, per_second=rate, cpu_us=cpu / EVENTS * 1e6, copy_per_second=copied,
                   copy_cpu_us=copy_us, ratio=copied / rate, cpu_ratio=cpu / peer[1], note=note(found))  # fmt: skip
        return found

    with tempfile.TemporaryDirectory() as name, any_folder():
        folder = Path(name)
        out, back = timed(meter, lambda: copy_out(folder)), timed(meter, lambda: copy_in(folder))

        def archive(**told: Any) -> Any:
            return run_job(Archive.name, {"room": room_id, "folder": name, **told}, stream=StringIO())

        made = add("archive, in process", lambda: archive(spark=False), out, lambda found: f"{found['bytes']:,} bytes")
        add(
            "reading the archive",
            lambda: read_all(Path(made["folder"])),
            back,
            lambda found: f"{found:,} rows, part of restore",
        )
        run_job(PurgeRoom.name, {"room": room_id, "force": True}, stream=StringIO())
        add("restore", lambda: run_job(Restore.name, {"archive": made["folder"]}, stream=StringIO()), back,
            lambda found: f"{found['restored']:,} restored")  # fmt: skip
        add(
            "check",
            lambda: check_room(room_id, "default"),
            out,
            lambda found: f"{sum(found.totals.values())} differences",
        )
        damage()
        mend = {"what": EVERYTHING, "rooms": [room_id], "dry_run": False, "master": None}
        add("mend", lambda: run_job(Resync.name, mend, stream=StringIO()), out,
            lambda found: f"{sum(found['before'].values())} differences, {found['left']} left")  # fmt: skip
        with site_session("bench", "local[2]"):

            def export() -> Any:
                work = Export().work_for({"master": None})
                return run_job(Export.name, {"to": str(folder / "export")}, stream=StringIO(), work=work)

            add("archive, on Spark", lambda: archive(spark=True), out, lambda found: f"{found['files']} files")
            add("export", export, out,
                lambda found: f"{sum(one['files'] for one in found['tables'].values())} files")  # fmt: skip
    report.finish()
