"""Lines become rows for staging, or reasons."""

from __future__ import annotations

import gzip

from pipeline.lines import parts_of
from pipeline.parts import BrokenLine, Form, Line, Part
from pipeline.stage_lines import LINES_PER_PART, LineWork, _batches, _text, scan_part, sequence_number
from pipeline.staging import BROKEN, STAGED_EVENTS, table_name
from tests.room_data import event_lines, stored_events

WORK = LineWork(1, "", 1 << 20)


def rows_of(*lines):
    given = [line if isinstance(line, BrokenLine) else Line(n, line) for n, line in enumerate(lines, 1)]
    ((events, broken),) = _batches(WORK, 2, given)
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


def test_details_fit_a_text_column():
    assert _text("a\0b\ud800") == "a\\0b\\ud800"


def test_many_lines_come_in_bounded_batches():
    lines = [Line(n, b"?") for n in range(1, 5001)]
    sizes = [len(events) + len(broken) for events, broken in _batches(WORK, 0, lines)]
    assert sum(sizes) == 5000 and max(sizes) <= 2000


def test_a_scan_counts_lines_and_finds_announced_versions(tmp_path):
    import json

    create = next(event["json"] for event in stored_events("v6_membership_visibility"))
    path = tmp_path / "in.gz"
    path.write_bytes(gzip.compress(b"\n" + json.dumps(create).encode() + b"\nnot json m.room.create\n"))
    (part,) = parts_of(0, path, 1 << 20)
    found = scan_part(part, 1 << 20)
    assert part == Part(0, str(path), form=Form.GZIP, name=str(path))
    assert (found.lines, found.versions) == (3, {create["room_id"]: "6"})


def test_staging_tables_carry_the_jobs_number():
    assert STAGED_EVENTS.ddl(12).startswith(f"CREATE UNLOGGED TABLE {table_name(12, 'event')} (")
    assert '"room_id" text COLLATE "C"' in STAGED_EVENTS.ddl(
        12
    ) and '"auth_event_ids" text[] COLLATE "C"' in STAGED_EVENTS.ddl(12)
