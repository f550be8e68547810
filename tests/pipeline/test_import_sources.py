"""Whatever form histories come in, the tables end the same: as after an import of the JSON Lines files."""

from __future__ import annotations

import json
import os
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.db import connection

from pipeline.frames.sources import synapse_db
from pipeline.frames.sources.parts import GIVEN_COLUMNS
from pipeline.models import ImportSource, Job, QuarantinedLine
from tests.pipeline.imports import bare_room, content, run_import, write_lines
from tests.support.emptying import empty_tables
from tests.support.room_data import ROOMS, event_lines
from tests.support.synapse_database import postgresql_database, sqlite_file

#: Roles belong to the whole server.
READS_SYNAPSE = f"reads_synapse_{os.getpid()}"

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("spark")]

NAMES = ("v10_gap", "v10_rejected", "v9_restricted")
#: Rooms of several servers share no places in one stream, so their order among each other is not compared, but in each room.


@pytest.fixture(scope="module")
def expected(spark, module_database):
    """Summary and tables after an import of the files."""
    outcome = run_import(*(ROOMS / name / "events.jsonl.gz" for name in NAMES))
    found = content()
    empty_tables()
    return outcome.summary() | {"seconds": 0}, found


def result(outcome):
    return outcome.summary() | {"seconds": 0}, content()


def json_of(line: bytes) -> bytes:
    return line[line.index(b'"json":') + len(b'"json":') : -1]


def test_zstandard(expected, tmp_path):
    lines = b"".join(line + b"\n" for name in NAMES for line in event_lines(name))
    path = tmp_path / "all.jsonl.zst"
    path.write_bytes(pa.compress(lines, codec="zstd", asbytes=True))
    assert result(run_import(path)) == expected


def test_a_folder_of_parquet_with_several_row_groups(expected, tmp_path):
    for name in NAMES:
        told = [json.loads(line) for line in event_lines(name)]
        columns = {key: [line[key] for line in told] for key in GIVEN_COLUMNS}
        table = pa.table({"json": [json_of(line) for line in event_lines(name)], **columns})
        (tmp_path / f"room={name}").mkdir()
        pq.write_table(table, tmp_path / f"room={name}" / "part-0.parquet", row_group_size=40)
    assert result(run_import(tmp_path)) == expected
    assert [source.rows for source in ImportSource.objects.all()] == [len(event_lines(name)) for name in NAMES]


def test_the_database_of_a_synapse_on_sqlite(expected, tmp_path):
    assert result(run_import(sqlite_file(tmp_path / "homeserver.db", NAMES))) == expected


def test_the_database_of_a_synapse_on_postgresql(expected, database_url, monkeypatch):
    monkeypatch.setattr(synapse_db, "_BOUNDS", synapse_db._BOUNDS.replace("50000", "100"))
    with postgresql_database(database_url, NAMES) as url:
        assert result(run_import(url)) == expected
    source = ImportSource.objects.get()
    assert source.form == "postgresql" and source.identity["schema"] == 94 and len(source.identity["bounds"]) == 3
    assert source.rows == sum(len(event_lines(name)) for name in NAMES)


def test_several_forms_at_once_are_one_import_that_finds_each_event_once(tmp_path):
    events = bare_room(1, 30)
    table = pa.table({"json": [json.dumps(event).encode() for event in events[10:]]})
    pq.write_table(table, tmp_path / "b.parquet")
    outcome = run_import(write_lines(tmp_path / "a.jsonl", *events[:20]), tmp_path / "b.parquet")
    assert (outcome.read, outcome.imported, outcome.duplicates, outcome.rooms) == (40, 30, 10, 1)


def test_a_broken_row_is_put_aside_with_its_row_and_event(tmp_path):
    events = [json.dumps(event).encode() for event in bare_room(1, 6)]
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"json": [*events, b"{"], "event_id": [None] * 6 + ["$x:example.org"]}), path)
    outcome = run_import(path)
    assert (outcome.imported, outcome.quarantined) == (6, 1)
    line = QuarantinedLine.objects.get()
    assert (line.file, line.line, line.reason) == (str(path), 7, "not-json")
    assert line.detail.startswith("$x:example.org: ") and bytes(line.content) == b"{"


def test_a_reading_role_is_enough_and_its_password_is_written_nowhere(database_url, rows):
    with postgresql_database(database_url, ["v9_restricted"]) as url:
        server = urlsplit(url)
        rows(f"CREATE ROLE {READS_SYNAPSE} LOGIN PASSWORD 's3cret' IN ROLE pg_read_all_data; SELECT 1")
        try:
            run_import(f"postgresql://{READS_SYNAPSE}:s3cret@{server.hostname}:{server.port}{server.path}")
        finally:
            rows(f"DROP ROLE {READS_SYNAPSE}; SELECT 1")
    stored = json.dumps([Job.objects.get().arguments, ImportSource.objects.get().name])
    assert READS_SYNAPSE in stored and "s3cret" not in stored


def test_the_jobs_row_tells_what_was_before_and_after(tmp_path):
    run_import(write_lines(tmp_path / "in", *bare_room(1, 5)))
    job = Job.objects.get()
    assert (job.before["rooms"], job.after["rooms"]) == (0, 1)
    assert job.after["database_bytes"] > 0 and job.unit == "events" and job.done == job.total == 5


def test_the_given_order_of_unknown_rooms_is_kept_whatever_the_order_of_the_lines(tmp_path):
    first, second = bare_room(1, 6), bare_room(2, 6)
    woven = [event for pair in zip(first, second, strict=True) for event in pair]
    lines = [{"json": event, "room_version": "2", "stream_ordering": 100 + n} for n, event in enumerate(woven)]
    run_import(write_lines(tmp_path / "in", *lines[6:], *lines[:6]))
    with connection.cursor() as cursor:
        cursor.execute("SELECT event_id FROM events_event WHERE stream_ordering > 0 ORDER BY stream_ordering")
        assert [event_id for (event_id,) in cursor.fetchall()] == [event["event_id"] for event in woven]
