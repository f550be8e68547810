"""The versions of rooms by which lines are parsed, and the names of staging tables."""

from __future__ import annotations

import json

from pipeline.frames.parse_lines import LineRules, parse_lines
from pipeline.frames.sources.parts import BrokenLine, Line
from pipeline.importing.read_parts import SiteVersions
from tests.support.room_data import event_lines, stored_events


class _Cursor:
    def __init__(self, versions):
        self.versions, self.asked = versions, []

    def execute(self, sql, values):
        self.asked.append(values[0])

    def fetchone(self):
        found = self.versions.get(self.asked[-1])
        return None if found is None else [found]


def test_a_rooms_version_is_asked_for_once_and_only_where_a_bare_event_needs_it():
    bare = [line["json"] for line in stored_events("v9_restricted")[1:4]]
    cursor = _Cursor({bare[0]["room_id"]: "9"})
    rules = LineRules(versions=SiteVersions(cursor, {}))
    lines = [Line(n, json.dumps(event).encode()) for n, event in enumerate([*bare, bare[0] | {"room_id": "!x:y\0"}], 1)]
    parsed = list(parse_lines([*lines, Line(9, event_lines("v9_restricted")[5])], rules))
    assert [one.reason for one in parsed if isinstance(one, BrokenLine)] == ["unknown-room-version"] and len(
        parsed
    ) == 5
    assert cursor.asked == [bare[0]["room_id"]] and dict(rules.versions) == {bare[0]["room_id"]: "9"}


def test_a_room_that_nobody_knows_is_asked_for_once():
    cursor = _Cursor({})
    versions = SiteVersions(cursor, {})
    assert versions and "!a:b" not in versions and "!a:b" not in versions
    assert cursor.asked == ["!a:b"] and len(versions) == 0 and list(versions) == []


def test_a_room_of_the_site_has_its_version_there_and_another_one_that_which_the_input_announces():
    versions = SiteVersions(_Cursor({"!a:b": "9"}), {"!a:b": "10", "!c:d": "11"})
    assert (versions["!a:b"], versions["!c:d"]) == ("9", "11")
