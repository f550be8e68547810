"""Rows of a Synapse's database, here a SQLite file: what is taken, and which databases are refused."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest

from events.format.parsing import parse_line, parse_row
from pipeline.errors import UnusableSource
from pipeline.importing.parse_lines import scan_part
from pipeline.importing.sources import synapse_db
from pipeline.importing.sources.parts import BrokenLine, Form
from pipeline.importing.sources.synapse_db import inspect, name_of, parts_of, read_rows
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
    found = {line.told["event_id"]: parse_row(line.content, line.told) for line in rows(file)}
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
    places = [line.told["stream_ordering"] for part in found for line in read_rows(part)]
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
    told = rows(file)[0].told
    assert json.loads(json.dumps(told)) == told and isinstance(told["outlier"], bool)
