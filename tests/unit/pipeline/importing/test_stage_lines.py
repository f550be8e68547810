"""The versions of rooms by which staged lines are parsed, and the names of staging tables."""

from __future__ import annotations

import json

from pipeline.frames.parse_lines import LineRules, parse_lines
from pipeline.frames.sources.parts import BrokenLine, Line
from pipeline.importing.stage_lines import StoredVersions
from pipeline.importing.staging_tables import STAGED_EVENTS, table_name
from tests.support.room_data import event_lines, stored_events


def test_staging_tables_carry_the_jobs_number():
    assert STAGED_EVENTS.ddl(12).startswith(f"CREATE UNLOGGED TABLE {table_name(12, 'event')} (")
    assert 'room_id text COLLATE "C"' in STAGED_EVENTS.ddl(12)


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
    rules = LineRules(versions=StoredVersions(cursor, 1))
    lines = [Line(n, json.dumps(event).encode()) for n, event in enumerate([*bare, bare[0] | {"room_id": "!x:y\0"}], 1)]
    parsed = list(parse_lines([*lines, Line(9, event_lines("v9_restricted")[5])], rules))
    assert [one.reason for one in parsed if isinstance(one, BrokenLine)] == ["unknown-room-version"] and len(
        parsed
    ) == 5
    assert cursor.asked == [bare[0]["room_id"]] and dict(rules.versions) == {bare[0]["room_id"]: "9"}


def test_a_room_that_nobody_knows_is_asked_for_once():
    cursor = _Cursor({})
    versions = StoredVersions(cursor, 1)
    assert versions and "!a:b" not in versions and "!a:b" not in versions
    assert cursor.asked == ["!a:b"] and len(versions) == 0 and list(versions) == []
