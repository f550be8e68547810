"""Lines become events, or broken lines with a reason; a scan finds what all parts need."""

from __future__ import annotations

import gzip
import json

from pipeline.frames.parse_lines import LineRules, parse_lines, scan_part
from pipeline.frames.sources.lines import parts_of
from pipeline.frames.sources.parts import BrokenLine, Form, Line, Part
from tests.support.room_data import event_lines, stored_events

RULES = LineRules()


def test_an_event_comes_with_the_number_of_its_line():
    lines = [Line(n, line) for n, line in enumerate(event_lines("v9_restricted")[:3], 5)]
    assert [number for number, _ in parse_lines(lines, RULES)] == [5, 6, 7]


def test_what_the_rules_refuse_is_broken_with_a_reason_and_its_head():
    found = list(parse_lines([Line(1, b"[]"), Line(2, b"x" * 1000)], RULES))
    assert [(line.number, line.reason) for line in found] == [(1, "not-an-object"), (2, "not-json")]
    assert found[1].head == b"x" * 300


def test_a_line_that_could_not_be_had_keeps_its_reason_as_text_that_a_column_holds():
    (found,) = parse_lines([BrokenLine(9, "truncated-gzip", "a\0b\ud800" + "x" * 2000, b"{")], RULES)
    assert found == BrokenLine(9, "truncated-gzip", ("a\ufffdb\\ud800" + "x" * 2000)[:1000], b"{")


def test_a_scan_counts_lines_and_finds_announced_versions(tmp_path):
    create = next(event["json"] for event in stored_events("v6_membership_visibility"))
    path = tmp_path / "in.gz"
    path.write_bytes(gzip.compress(b"\n" + json.dumps(create).encode() + b"\nnot json m.room.create\n"))
    (part,) = parts_of(0, path, 1 << 20)
    found = scan_part(part, 1 << 20)
    assert part == Part(0, str(path), form=Form.GZIP, name=str(path))
    assert (found.lines, found.versions) == (3, {create["room_id"]: "6"})
