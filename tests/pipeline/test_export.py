"""Exports: what is in the files, read back by Spark and by pyarrow, and what happens when they fail.

The tests share rooms that are stored once for all of them, and committed, because executors read them.
"""

from __future__ import annotations

import io
import json
import re
import stat
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from django.core.management import CommandError, call_command

from events.format.client_format import pruned_json
from events.models import CurrentState, Event, EventJson, Room
from pipeline.errors import DiskFull, ExportDiffers, SparkFailed
from pipeline.export import write_tables as export
from pipeline.export.tables import FIRST_DAY, TABLES, room_bucket
from pipeline.models import Job, JobState
from pipeline.operations import export as kind
from pipeline.operations.export import Export
from streams.jobs.errors import JobCancelled, UnusableArguments
from streams.jobs.job_run import JobRun
from streams.jobs.operation import operations
from streams.jobs.run import queue_job
from tests.oracle.answers import parsed
from tests.support.exporting import run_export
from tests.support.session import PROJECT
from tests.support.stored_rooms import store_room

PAGE = (PROJECT / "docs" / "how-to" / "export-to-parquet.md").read_text()
NAMES = ["v11_redactions", "v9_restricted", "v10_rejected"]


@pytest.fixture(scope="module")
def stored(module_database):
    """Some rooms, one event of which claims to be of the year 5000."""
    for number, name in enumerate(NAMES):
        store_room(parsed(name), 2 + 1_000 * number)
    late = Event.objects.filter(type="m.room.message").first()
    Event.objects.writable().filter(pk=late.pk).update(origin_server_ts=95_617_584_000_000)
    return late.event_id


@pytest.fixture(scope="module")
def exported(spark, stored, tmp_path_factory, django_db_blocker):
    """A folder with everything, and the summary of its job."""
    folder = tmp_path_factory.mktemp("export")
    with django_db_blocker.unblock():
        summary = run_export(folder, {"buckets": 2}, stream=io.StringIO())
    return folder, summary


#: Tests of what is there. The others run jobs, whose rows their threads have to see, so they are in no transaction of a test.
reading = pytest.mark.django_db


def rows_of(folder, table):
    """By pyarrow, the partitions' columns included."""
    return ds.dataset(folder / table, format="parquet", partitioning="hive").to_table().to_pylist()


def day_of(ms):
    return datetime.fromtimestamp(ms / 1000, UTC).date().isoformat()


@reading
def test_every_event_is_there_once_with_its_columns(exported):
    folder, summary = exported
    rows = {row["event_id"]: row for row in rows_of(folder, "events")}
    events = Event.objects.all()
    assert summary["tables"]["events"]["rows"] == len(rows) == events.count() == sum(map(len, map(parsed, NAMES)))
    for event in events:
        row = rows[event.event_id]
        for name in ("room_id", "type", "state_key", "sender", "stream_ordering", "topological_ordering", "membership",
                     "redacts", "relates_to", "outlier", "rejected_reason", "soft_failed", "origin_server_ts"):  # fmt: skip
            assert row[name] == getattr(event, name), name
        assert row["received_at_ms"] == int(event.received_at.timestamp() * 1000)


@reading
def test_only_their_owner_may_read_the_files(exported):
    folder, _ = exported
    modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in folder.rglob("*")}
    assert modes == {(True, 0o700), (False, 0o600)}


@reading
def test_the_bytes_are_those_that_are_stored_but_for_what_was_redacted(exported):
    folder, _ = exported
    redacted = set(Event.objects.filter(redacted_by__isnull=False).values_list("event_id", flat=True))
    rows = {row["event_id"]: row for row in rows_of(folder, "events")}
    assert {event_id for event_id, row in rows.items() if row["redacted"]} == redacted != set()
    for stored_json in EventJson.objects.all():
        text = bytes(stored_json.json)
        wanted = pruned_json(text, stored_json.room_version) if stored_json.event_id in redacted else text
        assert rows[stored_json.event_id]["json"].encode() == wanted


@reading
def test_folders_are_buckets_of_rooms_and_days_of_events(exported, stored):
    folder, _ = exported
    for row in rows_of(folder, "events"):
        assert row["room_bucket"] == room_bucket(row["room_id"], 2)
        is_known = row["origin_server_ts"] >= FIRST_DAY * 86_400_000 and row["event_id"] != stored
        assert row["day"] is None if not is_known else str(row["day"]) == day_of(row["origin_server_ts"])


@reading
def test_a_day_that_nobody_can_believe_is_null(exported, stored):
    folder, _ = exported
    (row,) = [row for row in rows_of(folder, "events") if row["event_id"] == stored]
    assert row["day"] is None
    assert list((folder / "events").glob("room_bucket=*/day=__HIVE_DEFAULT_PARTITION__"))


@reading
def test_each_folder_has_one_file_ordered_by_room_and_position(exported):
    folder, summary = exported
    files = list((folder / "events").rglob("*.parquet"))
    assert len(files) == len({file.parent for file in files}) == summary["tables"]["events"]["files"]
    for file in files:
        places = [(row["room_id"], row["stream_ordering"]) for row in pq.read_table(file).to_pylist()]
        assert places == sorted(places)


@reading
def test_state_is_the_current_state(exported):
    folder, _ = exported
    rows = {(row["room_id"], row["type"], row["state_key"]): row for row in rows_of(folder, "state")}
    current = list(CurrentState.objects.all())
    assert len(rows) == len(current)
    for entry in current:
        row = rows[entry.room_id, entry.type, entry.state_key]
        assert (row["event_id"], row["membership"]) == (entry.event_id, entry.membership)
        assert json.loads(row["json"])["type"] == entry.type


@reading
def test_memberships_are_all_that_ever_were_and_tell_the_current_ones(exported):
    folder, _ = exported
    rows = rows_of(folder, "memberships")
    accepted = Event.objects.filter(type="m.room.member", state_key__isnull=False, outlier=False, rejected_reason=None)
    assert Counter((r["room_id"], r["user_id"], r["membership"], r["event_id"]) for r in rows) == Counter(
        accepted.values_list("room_id", "state_key", "membership", "event_id")
    )
    current = CurrentState.objects.filter(type="m.room.member").values_list("event_id", flat=True)
    assert {row["event_id"] for row in rows if row["is_current"]} == set(current)


@reading
def test_rooms_are_there_without_days(exported):
    folder, _ = exported
    rows = {row["room_id"]: row for row in rows_of(folder, "rooms")}
    assert {(r, row["room_version"], row["creator"]) for r, row in rows.items()} == set(
        Room.objects.values_list("room_id", "room_version", "creator")
    )
    assert not list((folder / "rooms").rglob("day=*"))


@reading
def test_spark_reads_it_back(exported, spark):
    folder, summary = exported
    for name, table in summary["tables"].items():
        assert spark.read.parquet(f"{folder}/{name}").count() == table["rows"]
    room_id = Room.objects.first().room_id
    events = spark.read.parquet(f"{folder}/events").where(f"room_bucket = {room_bucket(room_id, 2)}")
    assert events.where(events.room_id == room_id).count() == Event.objects.filter(room_id=room_id).count()


@reading
def test_the_manifest_tells_what_is_there(exported):
    folder, summary = exported
    manifest = json.loads((folder / "export.json").read_text())
    assert manifest["tables"] == summary["tables"]
    assert manifest["format"] == 1 and manifest["rooms"] is None
    assert set(manifest["tables"]) == set(TABLES) == {path.name for path in folder.iterdir()} - {"export.json"}


@reading
def test_an_import_reads_the_events_again(exported, stored):
    from pipeline.frames.sources.parquet import check_file

    folder, _ = exported
    for file in (folder / "events").rglob("*.parquet"):
        check_file(file)


@reading
def test_the_page_reads_it_and_shows_what_the_command_says(exported):
    folder, summary = exported
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    room_id = Room.objects.order_by("room_id").last().room_id
    names = {}
    exec(example.replace("/data/export", str(folder)).replace("!room:example.org", room_id), names)
    assert names["of_room"].num_rows == Event.objects.filter(room_id=room_id).count()
    shown = re.search(r"manage\.py room export /data/export\n(.*?)```", PAGE, re.DOTALL)[1].splitlines()
    said = [re.sub(r"[\d,]+ ", "", line) for line in Export().lines({**summary, "folder": "/data/export"})]
    assert [re.sub(r"[\d,]+ ", "", line) for line in shown] == said
    assert {name for name in TABLES if f"| `{name}` |" in PAGE} == set(TABLES)


# --- a part of it ---------------------------------------------------------------------------------------------------


def command(*arguments):
    out = io.StringIO()
    call_command("room", "export", *map(str, arguments), "--json", stdout=out, stderr=io.StringIO())
    return json.loads(out.getvalue())


def test_only_some_rooms_tables_and_days(spark, stored, tmp_path):
    room_id, other = Room.objects.order_by("room_id").values_list("room_id", flat=True)[:2]
    days = sorted(
        {day_of(ms) for ms in Event.objects.filter(room_id=room_id).values_list("origin_server_ts", flat=True)}
    )
    summary = command(tmp_path, "events", "--room", room_id, "--since", days[0], "--until", "2100-01-01")
    assert set(summary["tables"]) == {"events"}
    wanted = Event.objects.filter(room_id=room_id, origin_server_ts__lt=4_102_444_800_000)
    assert {row["event_id"] for row in rows_of(tmp_path, "events")} == set(wanted.values_list("event_id", flat=True))
    assert command(tmp_path, "events", "--room", other, "--until", "2014-01-01", "--overwrite")["tables"]["events"] == {
        "rows": 0, "files": 0, "bytes": 0, "room_buckets": 1, "days": 0,
    }  # fmt: skip


def test_it_says_what_it_wrote(spark, stored, tmp_path):
    out = io.StringIO()
    call_command("room", "export", str(tmp_path / "new"), "rooms", stdout=out, stderr=io.StringIO())
    assert out.getvalue().startswith("rooms: 3 rows in ")
    assert f"written to {tmp_path / 'new'}" in out.getvalue()


def test_what_is_there_is_replaced_only_when_that_is_said(spark, stored, tmp_path):
    command(tmp_path, "rooms")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CommandError, match="--overwrite") as raised:
        command(tmp_path, "rooms")
    assert raised.value.returncode == 2
    assert sorted(tmp_path.rglob("*")) == before
    assert command(tmp_path, "rooms", "--overwrite")["tables"]["rooms"]["rows"] == 3


def test_it_is_all_of_one_moment(spark, stored, tmp_path, monkeypatch):
    """What is committed while it is written is not in it, and the count does not differ by it."""
    count = Event.objects.count()
    monkeypatch.setattr(export, "_write", changed_meanwhile(export._write))
    assert command(tmp_path, "events")["tables"]["events"]["rows"] == count


def changed_meanwhile(write):
    """Others change everything, commit, and bring it back afterwards."""
    from tests.support.writing import session

    def changed(*arguments):
        with session() as cursor:
            cursor.execute("CREATE TABLE kept_events AS SELECT * FROM events_event")
            cursor.execute("DELETE FROM events_event")
            try:
                write(*arguments)
            finally:
                cursor.execute("SET LOCAL streams.maintenance = on; INSERT INTO events_event SELECT * FROM kept_events")
                cursor.execute("DROP TABLE kept_events")

    return changed


# --- what goes wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (SparkFailed("java.io.IOException: No space left on device"), DiskFull),
        (OSError(28, "No space left on device"), DiskFull),
        (SparkFailed("a task failed"), SparkFailed),
    ],
)
def test_a_failure_leaves_the_folder_as_it_was(spark, stored, tmp_path, monkeypatch, failure, expected):
    command(tmp_path, "rooms")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    def fail(_spark, _work, _pieces, target, _done):
        target.folder.mkdir()
        (target.folder / "part.parquet").write_bytes(b"half")
        raise failure

    monkeypatch.setattr(export, "_write", fail)
    with pytest.raises(expected):
        run_export(tmp_path, {"tables": ["rooms", "state"], "overwrite": True}, stream=io.StringIO())
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert Job.objects.latest("pk").state == JobState.FAILED


def filled(folder, **contents):
    """Folders of tables with a file each, and a manifest that names them; ``a__partial`` is one that waits for its place."""
    for name, text in contents.items():
        table = folder / name.replace("__", ".")
        table.mkdir()
        (table / "part.parquet").write_text(text)
    return folder


def what_is_there(folder):
    return {path.relative_to(folder).parts[0]: path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_tables_take_their_places_with_the_manifest_last(tmp_path):
    filled(tmp_path, rooms="old", state="kept", rooms__partial="new", events__partial="new")
    (tmp_path / "export.json").write_text("old")
    (tmp_path / "export.json.partial").write_text("new")
    export._put_in_place(tmp_path, ["rooms", "events", "export.json"])
    assert what_is_there(tmp_path) == {"rooms": "new", "events": "new", "state": "kept", "export.json": "new"}


@pytest.mark.parametrize("renames", range(5))
def test_tables_that_cannot_take_their_places_leave_what_was_there(tmp_path, monkeypatch, renames):
    filled(tmp_path, rooms="old", rooms__partial="new", events__partial="new")
    (tmp_path / "export.json").write_text("old")
    (tmp_path / "export.json.partial").write_text("new")
    rename, left = Path.rename, list(range(renames))

    def fail_in_time(path, target):
        if not left and not path.name.endswith(export.OLD):
            raise KeyboardInterrupt
        left and left.pop()
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail_in_time)
    with pytest.raises(KeyboardInterrupt):
        export._put_in_place(tmp_path, ["rooms", "events", "export.json"])
    found = what_is_there(tmp_path)
    assert {name: text for name, text in found.items() if not name.endswith(export.PARTIAL)} == {
        "rooms": "old",
        "export.json": "old",
    }


def test_an_export_that_was_killed_between_two_places_is_undone_by_the_next(spark, stored, tmp_path):
    filled(tmp_path, rooms="new", rooms__replaced="old", state__replaced="old")
    export._settle(tmp_path)
    assert what_is_there(tmp_path) == {"rooms": "old", "state": "old"}
    filled(tmp_path, rooms__replaced="older")
    assert command(tmp_path, "rooms", "--overwrite")["tables"]["rooms"]["rows"] == 3
    assert {path.name for path in tmp_path.iterdir()} == {"rooms", "state", "export.json"}


@pytest.fixture
def no_large_files(spark):
    """Spark's JVM cannot write files of more than 2 kB: the system refuses, as it does when a disk is full."""
    jvm = psutil.Process(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    before = jvm.rlimit(psutil.RLIMIT_FSIZE)
    jvm.rlimit(psutil.RLIMIT_FSIZE, (2_000, before[1]))
    yield
    jvm.rlimit(psutil.RLIMIT_FSIZE, before)


def test_what_the_system_refuses_to_write_is_told_in_its_words(no_large_files, stored, tmp_path):
    with pytest.raises(SparkFailed, match="Spark could not write events: File too large"):
        run_export(tmp_path, {"tables": ["events"]}, stream=io.StringIO())
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_of_a_java_trace():
    trace = (
        "o448.parquet.\n: SparkException: failed\nCaused by: java.io.IOException: No space left on device\n\tat java"
    )
    assert export._why(trace) == "No space left on device"


def test_files_that_lack_a_row_are_not_taken(spark, stored, tmp_path, monkeypatch):
    found = export._count
    monkeypatch.setattr(export, "_count", lambda folder: (found(folder)[0] - 1, 1, 1))
    with pytest.raises(ExportDiffers, match="Export again"):
        run_export(tmp_path, {"tables": ["rooms"]}, stream=io.StringIO())
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_export_left_is_replaced(spark, stored, tmp_path):
    (tmp_path / "rooms.partial").mkdir()
    (tmp_path / "rooms.partial" / "part.parquet").write_bytes(b"half")
    assert command(tmp_path, "rooms")["tables"]["rooms"]["rows"] == 3
    assert {path.name for path in tmp_path.iterdir()} == {"rooms", "export.json"}


def test_a_cancelled_export_leaves_nothing(spark, stored, tmp_path, monkeypatch):
    monkeypatch.setattr(JobRun, "step", lambda _run: (_ for _ in ()).throw(JobCancelled("by a test")))
    with pytest.raises(JobCancelled):
        run_export(tmp_path, {"tables": ["rooms"]}, stream=io.StringIO())
    assert list(tmp_path.iterdir()) == []
    assert Job.objects.latest("pk").state == JobState.CANCELLED


def test_two_exports_to_one_folder_do_not_meet(spark, stored, tmp_path):
    with export._snapshot(tmp_path, "default"), pytest.raises(CommandError, match="at work") as raised:
        command(tmp_path, "rooms")
    assert raised.value.returncode == 1


def test_it_can_be_queued_below_the_folder_for_exports(spark, stored, monkeypatch, tmp_path):
    monkeypatch.setattr(kind, "exports_folder", lambda: tmp_path)
    queued = queue_job(Export.name, {"to": "nightly", "tables": ["rooms"]}, by="a timer")
    call_command("runjobs", "--once", stdout=io.StringIO(), stderr=io.StringIO())
    job = Job.objects.get(pk=queued.pk)
    assert (job.state, job.after) == (JobState.DONE, {"rooms": 3})
    assert job.summary["folder"] == str(tmp_path / "nightly")


@pytest.mark.parametrize("name", ["/tmp/x", "../x", "a/b", "", ".hidden", None, 7, "x" * 101])
def test_a_queued_export_goes_nowhere_else(name):
    with pytest.raises(UnusableArguments, match="name of a folder"):
        operations()[Export.name].check({"to": name})


@pytest.mark.parametrize(
    "arguments",
    [
        {"tables": []}, {"tables": ["passwords"]}, {"tables": "rooms"}, {"rooms": []}, {"rooms": "!a:b.test"},
        {"rooms": ["\0"]}, {"since": "yesterday"}, {"until": "2026-13-01"}, {"buckets": 0}, {"buckets": True},
        {"buckets": 1_000}, {"overwrite": "yes"},
    ],
)  # fmt: skip
def test_unusable_arguments_are_refused(arguments):
    with pytest.raises(UnusableArguments):
        Export().check({"to": "x", **arguments})


def test_a_folder_that_cannot_be_made_is_told(stored, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match="Cannot write") as raised:
        command(tmp_path / "file" / "x", "rooms")
    assert raised.value.returncode == 2
