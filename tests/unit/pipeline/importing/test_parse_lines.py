"""Lines become rows for staging, or reasons."""

from __future__ import annotations

import json
from dataclasses import replace

from pipeline.frames.parse_lines import LineRules
from pipeline.frames.sources.parts import BrokenLine, Line
from pipeline.importing.parse_lines import LINES_PER_PART, StoredVersions, _batches, sequence_number
from pipeline.importing.staging_tables import BROKEN, STAGED_EVENTS, table_name
from tests.support.room_data import event_lines, stored_events

RULES = LineRules()


def rows_of(*lines):
    given = [line if isinstance(line, BrokenLine) else Line(n, line) for n, line in enumerate(lines, 1)]
    ((events, broken),) = _batches(RULES, 2, given)
    return events, broken


def test_a_row_has_every_column_and_the_place_of_its_line():
    events, broken = rows_of(*event_lines("v9_restricted")[:3])
    assert [row[0] for row in events] == [2 * LINES_PER_PART + n for n in (1, 2, 3)] and not broken
    assert {len(row) for row in events} == {len(STAGED_EVENTS.columns)}


def test_what_the_rules_refuse_is_broken_with_a_reason_and_its_head():
    events, broken = rows_of(b"[]", b"x" * 1000)
    assert not events and [(place % LINES_PER_PART, reason) for place, reason, *_ in broken] == [
        (1, "not-an-object"),
        (2, "not-json"),
    ]
    assert broken[1][3] == b"x" * 300 and len(broken[0]) == len(BROKEN.columns)


def test_a_line_that_could_not_be_had_keeps_its_reason():
    assert rows_of(BrokenLine(9, "truncated-gzip", "cut", b"{"))[1] == [
        (sequence_number(2, 9), "truncated-gzip", "cut", b"{")
    ]


def test_many_lines_come_in_bounded_batches():
    lines = [Line(n, b"?") for n in range(1, 5001)]
    sizes = [len(events) + len(broken) for events, broken in _batches(RULES, 0, lines)]
    assert sum(sizes) == 5000 and max(sizes) <= 2000


def test_staging_tables_carry_the_jobs_number():
    assert STAGED_EVENTS.ddl(12).startswith(f"CREATE UNLOGGED TABLE {table_name(12, 'event')} (")
    assert '"room_id" text COLLATE "C"' in STAGED_EVENTS.ddl(12)


class _Cursor:
    def __init__(self, versions):
        self.versions, self.asked = versions, []

    def execute(self, sql, values):
        self.asked.append(values["room"])

    def fetchone(self):
        return [self.versions.get(self.asked[-1])]


def test_a_rooms_version_is_asked_for_once_and_only_where_a_bare_event_needs_it():
    bare = [line["json"] for line in stored_events("v9_restricted")[1:4]]
    cursor = _Cursor({bare[0]["room_id"]: "9"})
    rules = replace(RULES, versions=StoredVersions(cursor, 1))
    lines = [Line(n, json.dumps(event).encode()) for n, event in enumerate([*bare, bare[0] | {"room_id": "!x:y\0"}], 1)]
    ((events, broken),) = _batches(rules, 0, [*lines, Line(9, event_lines("v9_restricted")[5])])
    assert len(events) == 4 and [reason for _, reason, *_ in broken] == ["unknown-room-version"]
    assert cursor.asked == [bare[0]["room_id"]] and dict(rules.versions) == {bare[0]["room_id"]: "9"}


def test_a_room_that_nobody_knows_is_asked_for_once():
    cursor = _Cursor({})
    versions = StoredVersions(cursor, 1)
    assert versions and "!a:b" not in versions and "!a:b" not in versions
    assert cursor.asked == ["!a:b"] and len(versions) == 0 and list(versions) == []
