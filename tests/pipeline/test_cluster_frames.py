"""Frames on a real standalone cluster: two workers that share no memory and no folder with the driver but those it names.

The driver's own folder is below ``/proc/self/cwd``, which is another place, or none, in every other process. So a task that
opened a file of the driver by its path would fail.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

from streams.db.driver import dsn
from tests.conftest import end_processes
from tests.pipeline.imports import bare_room, run_import, write_lines
from tests.support.emptying import empty_tables
from tests.support.room_data import ROOMS
from tests.support.session import PROJECT
from tests.support.spark_cluster import spark_cluster

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.scenario]
EVENTS_OF_MADE_ROOM = 600
_DRIVER = """
    import json, sys
    from pathlib import Path
    from pipeline import SourceFrames, differences, read_events, stored_rooms, work_out_rooms
    from pipeline.spark.session import spark_session

    master, dsn, url, *files = sys.argv[1:]

    def where(batches):
        import os, pyarrow, pipeline.frames.stored
        for batch in batches:
            found = {
                "file": os.path.abspath(pipeline.frames.stored.__file__), "folder": os.getcwd(),
                "sees_driver": os.path.exists("/proc/self/cwd/driver"),
                "django": "django" in sys.modules, "names": sorted(os.environ),
            }
            yield pyarrow.RecordBatch.from_pydict({"found": [json.dumps(found)] * batch.num_rows})

    with spark_session("frames", folder=Path("/proc/self/cwd/driver"), master=master) as spark:
        with read_events(spark, files) as read:
            read.keep(f"{url}/lines")
        rooms = work_out_rooms(SourceFrames.kept(spark, f"{url}/lines")).keep(f"{url}/rooms")
        with stored_rooms(spark, dsn, events_per_part=500) as stored:
            told = {
                "differs": [row.asDict() for row in differences(rooms, stored).take(5)],
                "damage": [row.asDict() for row in stored.damage.take(5)],
                "rows": {name: frame.count() for name, frame in stored.items()},
                "again": work_out_rooms(stored.source_events).events.count(),
                "lines": SourceFrames.kept(spark, f"{url}/lines").broken_lines.count(),
            }
        executors = spark.sparkContext._jsc.sc().statusStore().executorList(True)
        found = [executors.apply(n) for n in range(executors.size())]
        told["tasks"] = {one.id(): one.completedTasks() for one in found if one.id() != "driver"}
        told["where"] = [json.loads(row[0]) for row in spark.range(0, 8, 1, 8).mapInArrow(where, "found string").collect()]
        print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.mark.timeout(900)
def test_frames_on_a_cluster_are_those_of_this_machine(cluster, spark, tmp_path):
    """What the cluster reads, keeps and computes equals, row by row, what an import on this machine has stored."""
    made = [write_lines(tmp_path / f"made{n}.jsonl", *bare_room(n, EVENTS_OF_MADE_ROOM)) for n in range(2)]
    files = [*made, *(ROOMS / name / "events.jsonl.gz" for name in ("v9_restricted", "v10_rejected"))]
    outcome = run_import(*files)
    shared, own = tmp_path / "shared", tmp_path / "own"
    own.mkdir(mode=0o700)
    names = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO", "DATABASE"))}
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_DRIVER), cluster.master, dsn(), shared.as_uri(), *map(str, files)],
        # Workers of the cluster have Spark's own daemon, and no path of ours.
        cwd=own, env={**names, "PYTHONPATH": str(PROJECT), "PYSPARK_SUBMIT_ARGS": "pyspark-shell"},
        text=True, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        out, _ = driver.communicate()
    finally:
        end_processes([driver])
    assert driver.returncode == 0
    told = json.loads(out.splitlines()[-1])
    assert (told["differs"], told["damage"], told["lines"]) == ([], [], 0)
    assert told["rows"]["events"] == told["again"] == outcome.imported > 2 * EVENTS_OF_MADE_ROOM
    assert all(told["rows"][name] for name in ("rooms", "edges", "state_groups", "current_state", "visibility"))
    assert len(told["tasks"]) == 2 and all(told["tasks"].values())
    for one in told["where"]:
        assert one["file"].startswith(str(cluster.folder)) and ".zip/" in one["file"]
        assert one["folder"].startswith(str(cluster.folder)) and not one["sees_driver"] and not one["django"]
        assert not [name for name in one["names"] if name.startswith(("DJANGO", "DATABASE", "REPLSITE"))]
    assert len({one["folder"] for one in told["where"]}) == 2
    empty_tables()
