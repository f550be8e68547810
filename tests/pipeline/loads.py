"""Loading frames in tests: as a job of this process."""

from __future__ import annotations

import io
import json

import pyarrow as pa

from events.format.parsing import parse_line
from pipeline import EVENTS, load
from pipeline.frames.bundles import bundled
from pipeline.frames.event_columns import event_arrays
from pipeline.frames.room_events import rooms_of
from pipeline.frames.room_rows import room_rows
from pipeline.frames.schemas import ROOM_FRAMES
from pipeline.loading.load_pack import LoadWork
from pipeline.loading.pack_rows import Pack
from streams.db.driver import dsn
from streams.jobs.folders import any_folder
from streams.jobs.run import run_job


def run_load(worked_out, *, resume=False, name="rooms"):
    """Load frames as a job. What was loaded."""
    found = []

    def work(run):
        found.append(load(worked_out, dsn(), run))
        return found[0].summary()

    with any_folder():
        run_job("import_events", {"sources": [name]}, stream=io.StringIO(), resume=resume, work=work)
    return found[0]


def bundles_of(*rooms):
    """(frame, content) of each bundle of a pack of rooms, given as lines, made here."""
    found = []
    rows = [(name, batch) for lines in rooms for name, batch in _rows(lines)]
    for bundle in bundled(0, rows):
        found.append((bundle.column("frame")[0].as_py(), bundle.column("content")[0].as_py()))
    return found


def _rows(lines):
    events = [parse_line(line if isinstance(line, bytes) else json.dumps({"json": line}).encode()) for line in lines]
    places = {
        "source": pa.array([0] * len(events), pa.int64()),
        "line": pa.array(range(1, len(events) + 1), pa.int64()),
    }
    given = pa.array([event.stream_ordering for event in events], pa.int64())
    columns = event_arrays(events) | places | {"stream_ordering": given}
    batch = pa.RecordBatch.from_arrays([columns[name] for name in EVENTS.names], schema=EVENTS.arrow())
    for room in rooms_of([batch]):
        yield from room_rows(room)


def pack_of(bundles):
    """A pack with these bundles."""
    pack = Pack()
    for name, content in bundles:
        pack.add(name, pa.ipc.read_record_batch(content, ROOM_FRAMES[name].arrow()))
    return pack


def work_of(job):
    """The parameters of a task, which appends under another name than the rest of the test."""
    return LoadWork(dsn(), job, "loader")
