"""Imports that end before their time, by a full disk, a source that changes, or because somebody wants it; and go on."""

from __future__ import annotations

import io
import os
import signal
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from pipeline.errors import DiskFull, SourceChanged
from pipeline.models import ImportSource, Job, JobState, QuarantinedLine
from streams.jobs.errors import JobCancelled
from streams.jobs.queue import JobServer
from streams.jobs.rows import cancel_job
from streams.jobs.run import queue_job
from tests.pipeline.imports import bare_room, content, run_import, staging_tables, write_lines
from tests.support.room_data import ROOMS
from tests.support.synapse_database import sqlite_file

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("spark")]


@pytest.fixture
def small_disk(rows):
    """A file system of one megabyte that takes the staging tables; ``grow()`` makes it larger.

    The tablespace lies in the server's own folder. A folder beside it would be one that every copy of the server, which
    another test may be making, writes to as well.
    """
    data = Path(rows("SELECT setting FROM pg_settings WHERE name = 'data_directory'")[0][0])
    with connection.cursor() as cursor:
        cursor.execute("SET allow_in_place_tablespaces = on")
        cursor.execute("CREATE TABLESPACE small LOCATION ''")
        folder = data / "pg_tblspc" / str(rows("SELECT oid FROM pg_tablespace WHERE spcname = 'small'")[0][0])
        try:
            (version,) = (path.name for path in folder.iterdir())
            mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
            if subprocess.run(mount, check=False, capture_output=True).returncode:
                pytest.skip("no right to mount a small file system here")
            try:
                (folder / version).mkdir()
                for path in (folder, folder / version):
                    os.chown(path, data.stat().st_uid, data.stat().st_gid)
                cursor.execute("SET default_tablespace = small")
                yield lambda: subprocess.run(["mount", "-o", "remount,size=200m", folder], check=True)
                cursor.execute("RESET default_tablespace")
                for table in staging_tables():
                    cursor.execute(f"DROP TABLE {table}")
            finally:
                subprocess.run(["umount", "-l", folder], check=True)
        finally:
            cursor.execute("RESET default_tablespace")
            cursor.execute("DROP TABLESPACE small")


def test_a_full_disk_says_so_and_the_import_goes_on_when_there_is_space(small_disk, tmp_path):
    files = [ROOMS / name / "events.jsonl.gz" for name in ("v11_fork_walk", "v10_visibility_walk")]
    files.append(write_lines(tmp_path / "broken", *[b"x" * 200] * 10_000))
    with pytest.raises(DiskFull, match=r"disk is full: .*Free space, then go on with --resume"):
        run_import(*files)
    job = Job.objects.get()
    assert job.state == JobState.FAILED and "disk is full" in job.error
    assert content()["events"] == []
    small_disk()
    outcome = run_import(*files, resume=True)
    assert (outcome.imported, outcome.quarantined) == (513 + 273, 10_000)
    assert QuarantinedLine.objects.count() == 10_000 and Job.objects.get().state == JobState.DONE
    assert staging_tables() == []


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda folder: table(folder, {"body": ["x"]}), "no column 'json'"),
        (lambda folder: table(folder, {"json": ["x"], "outlier": [1]}), "column 'outlier' is of type int64"),
        (lambda folder: sqlite_file(folder / "in.db", [], schema=40), "schema version 40"),
        (lambda folder: sqlite_file(folder / "in.db", [], schema=120, compatible=110), "compatible down to 110"),
        (lambda folder: "postgresql://nobody@127.0.0.1:1/none", "Cannot read postgresql://nobody@127.0.0.1:1/none"),
    ],
)
def test_a_source_of_another_kind_is_status_2_before_anything_starts(tmp_path, made, words):
    with pytest.raises(CommandError, match=words) as refused:
        call_command("import_events", str(made(tmp_path)))
    assert refused.value.returncode == 2 and not Job.objects.exists()


def table(folder, columns):
    pq.write_table(pa.table(columns), folder / "in.parquet")
    return folder / "in.parquet"


@pytest.mark.parametrize("form", ["parquet", "sqlite", "shorter"])
def test_a_source_that_changes_while_it_is_read_is_refused_and_nothing_is_loaded(tmp_path, monkeypatch, form):
    made = {
        "parquet": lambda: table(tmp_path, {"json": [b"{}"] * 10}),
        "sqlite": lambda: sqlite_file(tmp_path / "in.db", ["v9_restricted"]),
        "shorter": lambda: write_lines(tmp_path / "in", *bare_room(1, 50)),
    }
    path = made[form]()
    os.utime(path, ns=(1, 1))
    monkeypatch.setattr("pipeline.importing.runners.scan_parts", lambda *_: path.write_bytes(path.read_bytes()[:1000]))
    with pytest.raises(SourceChanged, match=f"{path.name} has changed"):
        run_import(path)
    assert content()["events"] == [] and staging_tables() == []
    assert Job.objects.get().state == JobState.FAILED


def broken_off(paths):
    """An import that fails when everything is read and nothing is loaded."""

    def fail(step):
        if step == "read":
            raise OSError("out of patience")

    with pytest.raises(OSError, match="out of patience"):
        run_import(*paths, pause=fail)


def test_resuming_with_a_file_that_changed_meanwhile_is_refused(tmp_path):
    path = write_lines(tmp_path / "in", *bare_room(1, 5))
    broken_off([path])
    write_lines(path, *bare_room(1, 6))
    with pytest.raises(SourceChanged, match="has changed since the import began"):
        run_import(path, resume=True)
    assert content()["events"] == [] and staging_tables() == []
    assert run_import(path).imported == 6


def mark_staged(job):
    """What was read keeps this mark, unless it is read again."""
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE pipeline_stage_{job.pk}_broken SET reason = 'marked'")


def test_resuming_goes_on_where_it_ended(tmp_path):
    path = write_lines(tmp_path / "in", *bare_room(1, 5), b"oops")
    broken_off([path])
    began = Job.objects.get()
    mark_staged(began)
    outcome = run_import(path, resume=True)
    assert QuarantinedLine.objects.get().reason == "marked"
    assert (outcome.job, outcome.read, outcome.imported, outcome.quarantined) == (began.pk, 6, 5, 1)
    assert ImportSource.objects.count() == 1 and Job.objects.get().before == began.before


def test_a_resumed_job_is_this_processs(tmp_path):
    path = write_lines(tmp_path / "in", *bare_room(1, 5))
    broken_off([path])
    Job.objects.update(host="elsewhere", process_id=1)
    run_import(path, resume=True)
    job = Job.objects.get()
    assert (job.state, job.process_id, job.error) == (JobState.DONE, os.getpid(), "") and job.host != "elsewhere"


def test_resuming_a_folder_to_which_a_file_came_is_refused(tmp_path):
    table(tmp_path, {"json": [b"{}"]})
    broken_off([tmp_path])
    (tmp_path / "more").mkdir()
    table(tmp_path / "more", {"json": [b"{}"]})
    with pytest.raises(SourceChanged, match=r"began with 1 files and databases, and there are others now"):
        run_import(tmp_path, resume=True)


def test_a_cancelled_import_ends_at_its_next_step_and_leaves_no_staging(tmp_path, monkeypatch):
    monkeypatch.setattr("streams.jobs.job_run._CHECK_SECONDS", 0.0)
    path = write_lines(tmp_path / "in", *bare_room(1, 5))
    with pytest.raises(JobCancelled, match="Cancelled by ann"):
        run_import(path, pause=lambda step: cancel_job(Job.objects.get().pk, "ann", "default"))
    assert Job.objects.get().state == JobState.CANCELLED
    assert content()["events"] == [] and staging_tables() == []


def test_what_a_cancelled_import_left_when_its_process_was_dead_is_swept_by_the_next(tmp_path):
    path = write_lines(tmp_path / "in", *bare_room(1, 5))
    broken_off([path])
    Job.objects.update(state=JobState.CANCELLED)
    assert staging_tables()
    run_import(path)
    assert staging_tables() == []


@pytest.fixture
def folder(tmp_path, settings):
    settings.REPLSITE_IMPORT_FOLDER = tmp_path / "import"
    settings.REPLSITE_IMPORT_FOLDER.mkdir()
    return settings.REPLSITE_IMPORT_FOLDER


def serve():
    said = []
    JobServer("default", io.StringIO(), said.append).run(once=True)
    return said


def test_a_queued_import_is_carried_out(folder):
    write_lines(folder / "a.jsonl", *bare_room(1, 5))
    job = queue_job("import_events", {"sources": ["a.jsonl"], "as_history": True}, "ann")
    serve()
    job.refresh_from_db()
    assert (job.state, job.summary["imported"], job.asked_by) == (JobState.DONE, 5, "ann")
    assert {row[-1] for row in content()["events"]} == {-1}


def test_a_queued_import_of_what_is_not_there_fails_with_the_reason(folder):
    job = queue_job("import_events", {"sources": ["a.jsonl"]}, "ann")
    assert "Cannot read" in serve()[-1]
    job.refresh_from_db()
    assert job.state == JobState.FAILED and "a.jsonl" in job.error


KILLED = """
from pathlib import Path
from django.conf import settings
settings.REPLSITE_IMPORT_FOLDER = Path(sys.argv[1])
from pipeline.importing import job as import_history
from streams.jobs.queue import JobServer
from streams.writing.name import use_instance

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

import_history._Import._load = die
use_instance("runjobs")
JobServer("default", sys.stderr, print).run(once=True)
"""


@pytest.mark.slow
@pytest.mark.scenario
def test_a_queued_import_whose_process_is_killed_goes_on_in_the_next_one(folder, run_script):
    names = ["v9_restricted", "v10_rejected", "oops"]
    for name in names[:2]:
        (folder / name).write_bytes((ROOMS / name / "events.jsonl.gz").read_bytes())
    write_lines(folder / "oops", b"oops")
    job = queue_job("import_events", {"sources": names}, "ann")
    done = run_script(KILLED, str(folder))
    assert done.returncode == -signal.SIGKILL, done.stderr
    mark_staged(job)
    serve()
    job.refresh_from_db()
    assert QuarantinedLine.objects.get().reason == "marked"
    assert (job.state, job.attempts, job.summary["imported"]) == (JobState.DONE, 2, 37 + 65)
    assert Job.objects.count() == 1 and staging_tables() == []
