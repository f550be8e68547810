"""Twenty kills at random moments: an import and a load, once repeated, end like one clean run, and leave nothing behind."""

from __future__ import annotations

import random
import signal
import time

import pytest

from pipeline import read_events, work_out_rooms
from pipeline.frames import work_out_rooms as module
from pipeline.models import Job, JobState
from tests.pipeline.imports import SMALL_ROOMS, content, run_import, staging_tables
from tests.pipeline.loads import run_load
from tests.support.emptying import empty_tables
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import sessions

pytestmark = [
    pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.scenario, pytest.mark.timeout(1_800),
]  # fmt: skip

KILLS = 20
KILLED = """
import io, tempfile, threading
from pathlib import Path

what, seconds, tempfile.tempdir, *sources = sys.argv[1:]
ending = threading.Timer(float(seconds), os.kill, (os.getpid(), signal.SIGKILL))
ending.daemon = True
ending.start()
if what == "load":
    from pipeline import WorkedOutRooms, load
    from pipeline.spark.session import spark_session
    from streams.db.driver import dsn
    from streams.jobs.folders import any_folder
    from streams.jobs.run import run_job

    folder = Path(sources[0])
    with any_folder(), spark_session("killed", folder=folder / "spark", master="local[1]") as spark:
        rooms = WorkedOutRooms.kept(spark, folder / "rooms")
        run_job("import_events", {"sources": ["rooms"]}, stream=io.StringIO(),
                work=lambda run: load(rooms, dsn(), run).summary())
else:
    from pipeline.importing.job import ImportOptions, import_history

    master = "local[1]" if what == "on Spark" else None
    import_history(ImportOptions(sources, events_per_pack=300, master=master), io.StringIO())
"""


@pytest.fixture
def load_again(spark, tmp_path, monkeypatch):
    """Loads kept rooms."""
    monkeypatch.setattr(module, "EVENTS_PER_PACK", 300)
    kept = work_out_rooms(read_events(spark, SMALL_ROOMS).events).keep(tmp_path / "rooms")
    return lambda *, resume: run_load(kept, resume=resume)


@pytest.mark.parametrize("what", ["in process", "on Spark", "load"])
def test_a_job_that_was_killed_at_any_moment_ends_like_a_clean_one(
    what, spark, run_script, tmp_path, request, record_property
):
    sources = [str(tmp_path)] if what == "load" else [*map(str, SMALL_ROOMS)]
    master = None if what == "in process" else "local[1]"
    again = (
        request.getfixturevalue("load_again")
        if what == "load"
        else lambda *, resume: run_import(*SMALL_ROOMS, resume=resume, master=master)
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    begun = time.monotonic()
    done = run_script(KILLED, what, "1000000", str(temporary), *sources, timeout=4 * DEADLINE_SECONDS)
    took, clean = time.monotonic() - begun, content()
    assert done.returncode == 0 and clean["events"], done.stderr
    ends, seed = [], random.randrange(2**32)
    choose = random.Random(seed)
    for _ in range(KILLS):
        empty_tables()
        seconds, before = str(choose.uniform(0, took)), {*sessions()}
        done = run_script(KILLED, what, seconds, str(temporary), *sources, timeout=4 * DEADLINE_SECONDS)
        assert done.returncode in (0, -signal.SIGKILL), (seed, done.stderr)
        wait_until(lambda: {*sessions()} <= before)  # noqa: B023 - what was sent may be carried out after the kill
        ends.append((done.returncode, len(content()["rooms"])))
        if not Job.objects.filter(state=JobState.DONE).exists():
            again(resume=Job.objects.exists())
        assert content() == clean, seed
        assert staging_tables() == [] and Job.objects.get().state == JobState.DONE, seed
    # While its JVM starts, PySpark has a folder for one file with the JVM's port. Nothing can remove that after a kill.
    left = [path for path in temporary.rglob("*") if path.is_file()]
    assert all(path.stat().st_size < 200 for path in left) and len(left) <= KILLS, left
    record_property("kills", f"seed {seed}; (exit status, rooms) after each: {ends}")
