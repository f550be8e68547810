"""Frames of sources: every line is an event or a broken line, with its place, whatever the source is."""

from __future__ import annotations

import gzip

import pytest

from events.format.parsing import parse_line
from pipeline import BROKEN_LINES, EVENTS, read_events
from pipeline.errors import SourceChanged, UnusableSource
from pipeline.frames import read_events as module
from pipeline.frames.event_columns import event_arrays
from pipeline.frames.sources.parts import BrokenLine
from pipeline.models import QuarantinedLine
from tests.pipeline.frames import in_order, lines_of, rows_of, shipped
from tests.pipeline.imports import SHIPPED, bare_room, run_import, write_lines
from tests.support.room_data import event_lines
from tests.support.synapse_database import postgresql_database

pytestmark = pytest.mark.usefixtures("spark")
NAMES = ("v10_gap", "v10_rejected", "v9_restricted")
WITHOUT_PLACES = [name for name in EVENTS.names if name not in ("source", "line")]


def expected_of(*names):
    """The rows of ``EVENTS`` by the parser of single lines."""
    lines = [(source, line) for source, line in lines_of(*names) if not isinstance(line, BrokenLine)]
    events = [parse_line(line.content) for _, line in lines]
    columns = {
        "source": [source for source, _ in lines],
        "line": [line.number for _, line in lines],
        **{name: array.to_pylist() for name, array in event_arrays(events).items()},
    }
    rows = zip(*(columns[name] for name in EVENTS.names), strict=True)
    return in_order(tuple(tuple(v) if isinstance(v, list) else v for v in row) for row in rows)


@pytest.mark.parametrize("paths", SHIPPED)
def test_shipped_rooms_are_what_the_parser_finds(spark, paths):
    read = read_events(spark, paths)
    assert rows_of(read.events) == expected_of(*paths)
    assert read.broken_lines.count() == 0
    assert read.sources == [str(path) for path in paths]


def test_the_frames_have_their_schemas(spark):
    read = read_events(spark, shipped("v9_restricted"))
    assert read.events.schema == EVENTS.spark() and read.broken_lines.schema == BROKEN_LINES.spark()


def json_of(line: bytes) -> bytes:
    return line[line.index(b'"json":') + len(b'"json":') : -1]


def test_a_file_in_parts_has_the_lines_of_the_whole_file(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PART_BYTES", 5_000)
    first = write_lines(tmp_path / "a", *bare_room(1, 40), b"", b"broken")
    path = write_lines(tmp_path / "b", *bare_room(2, 70), b"broken", *bare_room(3, 30), b"\n", b"also broken")
    read = read_events(spark, [first, path])
    assert len(read.scans) > 4
    assert rows_of(read.broken_lines, "source", "name", "line", "reason") == [
        (0, str(first), 42, "not-json"),
        (1, str(path), 71, "not-json"),
        (1, str(path), 104, "not-json"),
    ]
    assert rows_of(read.events, "source", "line") == [
        *((0, n) for n in range(1, 41)),
        *((1, n) for n in (*range(1, 71), *range(72, 102))),
    ]


@pytest.mark.django_db(transaction=True)
def test_broken_lines_are_those_that_an_import_puts_aside(spark, tmp_path):
    good = event_lines("v9_restricted")
    plain = write_lines(
        tmp_path / "a", *good[:5], b'{"json": {', b"\xff\xfe\x00", b'"text"', b'{"json": [], "room_version": "10"}',
        b'{"json": {"type": "m.room.message"}, "room_version": "10"}', b'"x' + b"y" * 1_100_000, b'{"a": "\x00"}', *good[5:],
    )  # fmt: skip
    whole = gzip.compress(b"".join(line + b"\n" for line in event_lines("v11_gap")))
    cut = tmp_path / "b.gz"
    cut.write_bytes(whole[: len(whole) // 2])
    run_import(plain, cut)
    stored = [(q.file, q.line, q.reason, q.detail, bytes(q.content)) for q in QuarantinedLine.objects.all()]
    found = rows_of(read_events(spark, [plain, cut]).broken_lines, "name", "line", "reason", "detail", "head")
    assert len(found) == 8 and found == in_order(stored)


@pytest.fixture(scope="module")
def expected(spark):
    return rows_of(read_events(spark, shipped(*NAMES)).events, *WITHOUT_PLACES)


@pytest.mark.django_db(transaction=True)
def test_the_database_of_a_synapse_on_postgresql_is_one_snapshot_until_it_is_closed(spark, expected, database_url):
    import psycopg2

    with postgresql_database(database_url, NAMES) as url, read_events(spark, [url]) as read:
        server = psycopg2.connect(url)
        with server, server.cursor() as cursor:
            cursor.execute("DELETE FROM event_json")
        server.close()
        assert rows_of(read.events, *WITHOUT_PLACES) == expected


def test_bare_events_take_the_version_of_their_create_event_in_any_source_or_that_which_is_given(spark, tmp_path):
    create, *others = bare_room(1, 5)
    rest = write_lines(tmp_path / "rest", *others)
    with_create = write_lines(tmp_path / "create", create)
    read = read_events(spark, [rest, with_create])
    assert rows_of(read.events.select("room_version").distinct()) == [("2",)] and read.events.count() == 5
    assert {row.reason for row in read_events(spark, [rest]).broken_lines.collect()} == {"unknown-room-version"}
    given = read_events(spark, [rest], versions={create["room_id"]: "1"}).events
    assert rows_of(given.select("room_version").distinct()) == [("1",)]


def test_what_is_kept_is_read_once_and_stays_when_the_source_is_gone(spark, tmp_path):
    path = write_lines(tmp_path / "in", *bare_room(1, 20), b"broken")
    read = read_events(spark, [path])
    before = rows_of(read.events), rows_of(read.broken_lines)
    kept = read.keep(tmp_path / "kept")
    path.unlink()
    assert (rows_of(kept.events), rows_of(kept.broken_lines)) == before and len(before[0]) == 20
    kept.check_unchanged()


def test_a_source_that_changes_while_it_is_read_is_found(spark, tmp_path):
    path = write_lines(tmp_path / "in", *bare_room(1, 20))
    read = read_events(spark, [path])
    write_lines(path, *bare_room(2, 30))
    with pytest.raises(SourceChanged):
        read.keep(tmp_path / "kept")


def test_no_source_is_no_rows_and_an_unusable_one_is_named(spark, tmp_path):
    assert read_events(spark, []).events.count() == 0
    empty = read_events(spark, [write_lines(tmp_path / "empty")])
    assert empty.events.count() == empty.broken_lines.count() == empty.keep(tmp_path / "none").events.count() == 0
    with pytest.raises(UnusableSource, match="missing"):
        read_events(spark, [tmp_path / "missing"])
