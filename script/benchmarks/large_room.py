"""One large room in one worker: how much memory computing and loading it takes by the size of its chunks, and how fast it is.

The lines are parsed as an import does; then a process of its own loads the room, as a task of Spark would.
The peer is the room as one chunk, everything at hand. ``REPLSITE_BENCH_EVENTS`` makes the room smaller or larger; 10^6 as one
chunk take 2 GB, so from there on only chunks are measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from django.db import connection, transaction

from events.columns import COLUMNS
from pipeline.frames.packs import Packs, event_parcels
from pipeline.frames.parse_lines import LineRules, scan_part
from pipeline.frames.read_events import Reading
from pipeline.frames.sources.inputs import open_inputs, parts_of_inputs
from pipeline.frames.sources.parts import lines_before
from pipeline.importing.read_parts import ReadWork, read_part_once
from pipeline.importing.staging_tables import create_staging, drop_staging
from pipeline.models import Job
from script.benchmarks.histories import make_history
from script.benchmarks.report import Report
from streams.db.driver import dsn
from streams.holds.hold import CHANGE_FACTS

EVENTS = int(os.environ.get("REPLSITE_BENCH_EVENTS") or 200_000)
MOST_EVENTS_AT_ONCE = 500_000
CHUNKS = (5_000, 20_000, 50_000)
LEAST_OF_WHOLE = 0.9
MOST_BYTES_PER_EVENT = 600

_WORKER = """
import json, os, resource, sys, time
import pyarrow as pa
from pipeline.frames.packs import shuffled_pack
from pipeline.importing.import_pack import PackWork, import_pack
from pipeline.loading.load_pack import LoadWork
job, path, chunk, dsn = sys.argv[1:]
before = resource.getrusage(resource.RUSAGE_SELF)
begun = time.monotonic()
work = PackWork(LoadWork(dsn, int(job), "bench"), False, int(chunk))
with pa.OSFile(path) as file, shuffled_pack(pa.ipc.open_stream(file)) as found:
    import_pack(work, *found)
after = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({
    "wall": time.monotonic() - begun,
    "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    "empty_mb": before.ru_maxrss / 1024,
    "peak_mb": after.ru_maxrss / 1024,
}))
"""


def parse(path: Path, job: int, parcels: Path) -> None:
    """Parse a file with one room; its parcels are written to another file, as Spark's shuffle does."""
    inputs = open_inputs([str(path)])
    with parts_of_inputs(inputs, 2**24) as parts, pa.OSFile(str(parcels), "wb") as out:
        lines = [scan_part(part, 2**20).lines for part in parts]
        work = ReadWork(job, dsn("default"), Reading(parts, lines_before(parts, lines), LineRules()), inputs)
        writer = None
        for number in range(len(parts)):
            for batch in event_parcels(Packs({}, 1))(read_part_once(work, number)):
                writer = writer or pa.ipc.new_stream(out, batch.schema)
                writer.write_batch(batch)
        if writer is not None:
            writer.close()


def load(parcels: Path, job: int, chunk: int) -> dict[str, Any]:
    """What a worker says that computes and loads the room; the room is emptied first."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"{CHANGE_FACTS}; TRUNCATE {', '.join((*COLUMNS, 'pipeline_importedroom'))}")
        drop_staging(cursor, [job])
        create_staging(cursor, job)
    arguments = [str(job), str(parcels), str(chunk), dsn("default")]
    found = subprocess.run([sys.executable, "-c", _WORKER, *arguments], stdout=subprocess.PIPE, check=True, text=True)
    answer: dict[str, Any] = json.loads(found.stdout)
    return answer


def main() -> None:
    """Each size of chunks, and the whole."""
    report = Report("large_room", f"computing and loading one room of {EVENTS:,} events in one worker")
    with tempfile.TemporaryDirectory() as folder:
        (path,) = make_history(Path(folder), [EVENTS], 1)
        job, parcels = Job.objects.create(kind="import_events").pk, Path(folder, "parcels")
        with connection.cursor() as cursor:
            create_staging(cursor, job)
        parse(path, job, parcels)
        whole = load(parcels, job, EVENTS) if EVENTS <= MOST_EVENTS_AT_ONCE else None
        for chunk in CHUNKS:
            add(report, f"{chunk:,}", load(parcels, job, chunk), whole)
    if whole is not None:
        add(report, "whole", whole, None)
    with connection.cursor() as cursor:
        drop_staging(cursor, [job])
    report.finish()


def add(report: Report, chunk: str, found: dict[str, Any], whole: dict[str, Any] | None) -> None:
    """A row; CPU is compared, since the wall clock hears of everybody else."""
    carried = (found["peak_mb"] - found["empty_mb"]) * 1024 * 1024 / EVENTS
    ratio = whole["cpu"] / found["cpu"] if whole is not None else None
    well = chunk == "whole" or (carried <= MOST_BYTES_PER_EVENT and (ratio is None or ratio >= LEAST_OF_WHOLE))
    report.add(
        chunk=chunk,
        events_per_second=EVENTS / found["wall"],
        cpu_us=found["cpu"] / EVENTS * 1e6,
        peak_mb=found["peak_mb"],
        bytes_per_event=carried,
        ratio=ratio,
        ratio_limit=f">= {LEAST_OF_WHOLE} of the whole's speed, <= {MOST_BYTES_PER_EVENT} bytes an event",
        ok="yes" if well else "NO",
    )
