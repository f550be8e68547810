"""A report is bounded, sorted by what is worst, and says the same in every form."""

from __future__ import annotations

import json

from pipeline.doctor.report import MOST_SHOWN, Finding, Reason, Report, RoomResult, RoomSize, StreamState, quoted
from pipeline.doctor.sections import by_reason, finding_lines, sections, summary


def report(*findings):
    made = Report("postgresql://db/synapse", 94, "2026-11-29T12:00:00+00:00")
    for finding in findings:
        made.add(finding)
    return made


def differs(number):
    return Finding(Reason.STATE_DIFFERS, "!r:s", f"number {number}", event_id=f"${number:05}", rule="a rule")


def test_nothing_found_is_well():
    assert report().is_well and report().headline() == "Nothing is wrong."
    left = report()
    left.left_out.append("sizes: no time")
    assert (
        left.is_well and "could not be examined" in left.headline() and "Left out: sizes: no time." in [*summary(left)]
    )


def test_many_findings_of_one_reason_are_counted_not_kept():
    made = report(*map(differs, range(MOST_SHOWN + 50)))
    assert len(made.findings) == MOST_SHOWN and made.found == MOST_SHOWN + 50
    assert made.headline() == "150 things are wrong."
    room = RoomResult("!r:s")
    for number in range(MOST_SHOWN + 1):
        room.add(differs(number))
    made.add_room(room)
    assert made.found == 2 * MOST_SHOWN + 51 and made.checked.rooms == 1
    assert [(found.reason, found.total) for found in by_reason(made)] == [("state-differs", 2 * MOST_SHOWN + 51)]


def test_the_worst_comes_first_in_any_order_of_tasks():
    behind = Finding(Reason.SEQUENCE_BEHIND_TABLE, "events", "behind")
    made, other = report(differs(2), differs(1), behind), report(behind, differs(1), differs(2))
    made.sort()
    other.sort()
    assert made.findings == other.findings == [behind, differs(1), differs(2)]


def test_a_room_that_could_not_be_examined_is_named():
    made = report()
    made.add_room(RoomResult("!r:s", failure="KeyError '$x'"))
    (finding,) = made.findings
    assert (finding.reason, finding.where) == (Reason.ROOM_UNREADABLE, "!r:s") and "KeyError '$x'" in finding.text
    assert not made.is_well


def test_json_has_what_the_sections_show():
    made = report(differs(1))
    made.rooms = [RoomSize("!r:s", "a name", events=10, event_bytes=1, json_bytes=2, state_rows=5, state_bytes=4)]
    made.streams = [
        StreamState("a", "a_seq", 5, 5, 5, {"w1": 5, "w2": 3}, "ok"),
        StreamState("b", "b_seq", 1, 2, None, {}, "behind table", "SELECT 1;"),
    ]
    found = json.loads(json.dumps(made.as_json()))
    assert (found["well"], found["found"], found["rooms"][0]["bytes"]) == (False, 1, 7)
    shown = {section.title: section.rows for section in sections(made)}
    assert [row[0] for row in shown["Streams"]] == ["b", "a"] and shown["Streams"][1][5] == "w2 (-2), w1"
    assert shown["Largest rooms"][0][-1] == "0.5"
    assert "event: $00001" in [*finding_lines(differs(1))]


def test_a_text_is_one_literal_of_sql():
    assert quoted("$a';DROP TABLE events;--") == "'$a'';DROP TABLE events;--'"
