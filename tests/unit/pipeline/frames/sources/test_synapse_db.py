"""Rows of a Synapse's database, here a SQLite file: what is taken, and which databases are refused."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, suppress

import pytest

from events.errors import EventRefused
from events.format.parsing import parse_line, parse_row
from pipeline.errors import UnusableSource
from pipeline.frames.parse_lines import scan_part
from pipeline.frames.sources import synapse_db
from pipeline.frames.sources.parts import BrokenLine, Form, Line
from pipeline.frames.sources.synapse_db import inspect, name_of, parts_of, read_rows
from tests.support.room_data import event_lines, stored_events
from tests.support.synapse_database import sqlite_file

ROOMS = ("v10_rejected", "v10_gap")


@pytest.fixture
def file(tmp_path):
    return sqlite_file(tmp_path / "homeserver.db", ROOMS)


def change(path, sql):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(sql)
        connection.commit()


def parts(path):
    _, bounds = inspect(Form.SQLITE, str(path), str(path))
    return parts_of(0, Form.SQLITE, str(path), str(path), bounds)


def rows(path):
    return [line for part in parts(path) for line in read_rows(part)]


def refusal(path):
    with pytest.raises(UnusableSource) as refused:
        parts(path)
    return str(refused.value)


def test_an_event_is_what_the_rooms_file_says_of_it(file):
    found = {line.given["event_id"]: parse_row(line.content, line.given) for line in rows(file)}
    expected = [parse_line(line) for room in ROOMS for line in event_lines(room)]
    assert len(found) == len(expected)
    for event in expected:
        told = found[event.event_id]
        assert (told.json, told.rejected_reason, told.soft_failed, told.outlier, told.room_version) == (
            event.json, event.rejected_reason, event.soft_failed, event.outlier, event.room_version,
        )  # fmt: skip
        assert told.rejection_given and told.soft_failure_given and told.backfilled == event.backfilled


def test_rows_come_in_the_order_of_the_stream_from_parts_of_bounded_size(file, monkeypatch):
    monkeypatch.setattr(synapse_db, "_BOUNDS", synapse_db._BOUNDS.replace("50000", "50"))
    found = parts(file)
    assert [part.rows for part in found] == [50, 50, 50, 50, 4] == [len(list(read_rows(part))) for part in found]
    places = [line.given["stream_ordering"] for part in found for line in read_rows(part)]
    assert places == sorted(places) and places[0] < 0
    assert [line.number for line in read_rows(found[1])] == list(range(1, 51))


def test_a_room_without_a_version_has_that_of_its_create_event(file):
    change(file, "UPDATE rooms SET room_version = NULL")
    (part,) = parts(file)
    room_ids = {stored_events(room)[0]["room_id"] for room in ROOMS}
    found = scan_part(part, 1 << 20)
    assert found.lines == part.rows and found.versions == dict.fromkeys(room_ids, "10")


def test_known_versions_are_not_looked_for(file):
    (part,) = parts(file)
    assert scan_part(part, 1 << 20).versions == {}


@pytest.mark.parametrize(
    ("version", "compatible", "good"),
    [(63, 59, True), (94, 84, True), (99, 94, True), (62, 59, False), (99, 95, False)],
)
def test_schema_versions_that_are_known_or_say_that_they_fit_are_taken(tmp_path, version, compatible, good):
    path = sqlite_file(tmp_path / "in.db", ["v9_restricted"], schema=version, compatible=compatible)
    if good:
        assert inspect(Form.SQLITE, str(path), "in.db")[0] == version
    else:
        assert f"has schema version {version} (compatible down to {compatible}); known are 63 to 94" in refusal(path)


def test_a_database_without_version_is_refused(file):
    change(file, "DELETE FROM schema_compat_version")
    assert "compatible down to None" in refusal(file)


def test_another_database_is_refused_by_what_it_lacks(tmp_path):
    change(tmp_path / "other.db", "CREATE TABLE events (event_id TEXT)")
    assert "not the database of a Synapse" in refusal(tmp_path / "other.db")
    assert "events.stream_ordering" in refusal(tmp_path / "other.db")


def test_events_without_a_place_in_the_stream_are_not_left_out_silently(file):
    change(file, "UPDATE events SET stream_ordering = NULL WHERE depth = 3")
    assert "have no stream_ordering yet" in refusal(file)


def test_an_event_without_json_is_broken_and_named(file):
    event_id = stored_events("v10_gap")[7]["event_id"]
    change(file, f"DELETE FROM event_json WHERE event_id = '{event_id}'")
    (broken,) = [line for line in rows(file) if isinstance(line, BrokenLine)]
    assert broken.reason == "no-json" and event_id in broken.detail


def test_metadata_that_is_no_json_is_broken_and_named(file):
    event_id = stored_events("v10_gap")[7]["event_id"]
    change(file, f"UPDATE event_json SET internal_metadata = '{{' WHERE event_id = '{event_id}'")
    (broken,) = [line for line in rows(file) if isinstance(line, BrokenLine)]
    assert broken.reason == "not-json" and event_id in broken.detail


def test_text_that_is_no_text_goes_to_the_parser_as_it_is(file):
    event_id = stored_events("v10_gap")[7]["event_id"]
    change(file, f"UPDATE event_json SET json = CAST(x'7bff7d' AS TEXT) WHERE event_id = '{event_id}'")
    assert b"{\xff}" in [line.content for line in rows(file)]


def test_a_damaged_file_gives_what_can_be_read_and_a_reason(file):
    expected = len(rows(file))
    found = parts(file)
    content = bytearray(file.read_bytes())
    for page in range(20, len(content) // 4096, 9):
        content[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    file.write_bytes(content)
    lines = [line for part in found for line in read_rows(part)]
    assert lines[-1].reason == "corrupt-sqlite" and len(lines) <= expected


# --- a file that somebody made up -------------------------------------------------------------------------------------


def rebuilt(path, table, columns):
    """The table without its indexes."""
    change(path, f"CREATE TABLE other ({columns})")
    change(path, f"INSERT INTO other SELECT {columns} FROM {table}")
    change(path, f"DROP TABLE {table}")
    change(path, f"ALTER TABLE other RENAME TO {table}")


def test_an_event_comes_once_however_often_it_is_in_other_tables(file):
    """A thousand rows of one event in each of three tables were a billion, sorted on the disk before the first was read."""
    expected = rows(file)
    for table, columns in (
        ("rooms", "room_id, room_version"),
        ("rejections", "event_id, reason"),
        ("event_json", "event_id, internal_metadata, json"),
    ):
        rebuilt(file, table, columns)
        change(file, f"INSERT INTO {table} SELECT t.* FROM {table} t JOIN (SELECT 1 FROM events LIMIT 200)")
    assert rows(file) == expected


def test_one_default_for_many_events_is_no_room(file, monkeypatch):
    """A file of a megabyte gave a megabyte for each of its events, 500 of them at a time."""
    monkeypatch.setattr(synapse_db, "FREE_BYTES", 1_000_000)
    rebuilt(file, "event_json", "event_id")
    change(file, f"ALTER TABLE event_json ADD COLUMN json TEXT DEFAULT '{'x' * 1_000_000}'")
    change(file, "ALTER TABLE event_json ADD COLUMN internal_metadata TEXT DEFAULT '{}'")
    found = rows(file)
    assert found[-1].reason == "expands-too-much"
    assert len(found) < 5


def test_a_value_longer_than_any_line_is_not_read(file):
    change(file, "UPDATE event_json SET json = CAST(zeroblob(3000000) AS TEXT)")
    assert [line.reason for line in rows(file)] == ["corrupt-sqlite"]


def test_a_file_without_indexes_takes_no_endless_time(file, monkeypatch):
    monkeypatch.setattr(synapse_db, "_SQLITE_FREE_STEPS", 0)
    monkeypatch.setattr(synapse_db, "_SQLITE_STEPS_AT_ONCE", 1_000)
    expected = rows(file)  # with them the steps suffice
    assert all(isinstance(line, Line) for line in expected)
    rebuilt(file, "event_json", "event_id, internal_metadata, json")
    monkeypatch.setattr(synapse_db, "_SQLITE_STEPS_PER_EVENT", 200)
    assert rows(file)[-1].reason == "corrupt-sqlite"


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("UPDATE events SET stream_ordering = 'x'", "no stream_ordering yet"),
        ("UPDATE events SET stream_ordering = 1e300 WHERE depth = 3", "no stream_ordering yet"),
        ("UPDATE events SET stream_ordering = 9223372036854775807 WHERE depth = 3", "no server gives out"),
        ("UPDATE schema_version SET version = 'x'", "schema version x"),
        ("UPDATE schema_compat_version SET compat_version = x'ff'", "compatible down to b'"),
        (
            "DROP TABLE rejections; CREATE VIRTUAL TABLE rejections USING fts5 (event_id, reason)",
            "no rejections.event_id",
        ),
        (
            "DROP TABLE rejections; CREATE VIEW rejections AS SELECT 1 AS event_id, 2 AS reason",
            "no rejections.event_id",
        ),
    ],
)
def test_what_no_server_stores_is_refused(file, sql, told):
    change(file, "DROP INDEX events_stream_ordering")
    for statement in sql.split("; "):
        change(file, statement)
    assert told in refusal(file)


@pytest.mark.parametrize("value", ["5", "x'ff'", "1e300", "x'00'"])
@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("events", "event_id"),
        ("events", "outlier"),
        ("event_json", "internal_metadata"),
        ("event_json", "json"),
        ("rooms", "room_version"),
        ("rejections", "reason"),
    ],
)
def test_a_value_of_another_type_breaks_its_own_line_at_most(file, table, column, value):
    change(file, f"UPDATE OR IGNORE {table} SET {column} = {value} WHERE rowid = 3")
    found = rows(file)
    assert len(found) == parts(file)[0].rows
    for line in found:
        if isinstance(line, Line):
            with suppress(EventRefused):
                parse_row(line.content, line.given)


def test_nothing_is_written_to_the_database(file):
    before = file.read_bytes()
    rows(file)
    assert file.read_bytes() == before and [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:secret@h:1/db", "postgresql://u@h:1/db"),
        ("postgresql://u:p%40@h/db?sslpassword=x&sslmode=require", "postgresql://u@h/db?sslmode=require"),
        ("postgresql:///?service=a", "postgresql:///?service=a"),
        ("postgres://h/db?password=x", "postgres://h/db"),
    ],
)
def test_people_see_no_passwords(url, shown):
    assert name_of(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:s3cret@[bad/db",
        "postgresql://u:s3%zzcret@h/db",
        "postgresql://u:s3/cret@h/db",
        "postgresql://u:s3?cret@h/db",
        "postgresql://u:s3#cret@h/db",
        "postgresql://u@h/db?PASSWORD=s3cret",
    ],
)
def test_a_url_that_may_show_a_piece_of_its_password_is_refused_and_not_repeated(url):
    with pytest.raises(UnusableSource, match="cannot be read; it is not repeated here") as refused:
        name_of(url)
    assert "s3" not in str(refused.value) and "cret" not in str(refused.value)


def test_told_values_are_plain(file):
    told = rows(file)[0].given
    assert json.loads(json.dumps(told)) == told and isinstance(told["outlier"], bool)
