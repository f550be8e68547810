"""Lines that cannot be imported are put aside with file, line and reason; everything else goes in."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime

import pytest

from events.integrity.repair import check_room
from events.models import Event, PurgedRoom, Room
from events.sending.finish import finish_event
from pipeline.errors import UnusableSource
from pipeline.models import Job, QuarantinedLine
from tests.pipeline.imports import bare_room, content, run_import, write_lines
from tests.support.made_rooms import ALICE, BOB, MadeRoom
from tests.support.room_data import event_lines, stored_events

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("spark")]


def quarantine():
    return [(line.file, line.line, line.reason) for line in QuarantinedLine.objects.all()]


def test_each_kind_of_broken_line_is_named_with_its_place(tmp_path):
    good = event_lines("v9_restricted")
    broken = {
        b'{"json": {': "not-json",
        b"\xff\xfe\x00": "not-json",
        b'"a string"': "not-an-object",
        b'{"json": [], "room_version": "10"}': "not-an-object",
        b'{"json": {"type": "m.room.message"}, "room_version": "10"}': "missing-key",
        good[3].replace(b'"depth":', b'"depth":"x","Depth":', 1).replace(b'"json":{', b'"json":{"depth":"x",', 1): None,
        b'{"json": ' + b'"x' + b"y" * 1_100_000 + b'"}': "line-too-long",
        b'{"a": "' + b"\x00" * 10 + b'"}': "not-json",
    }
    path = write_lines(tmp_path / "mixed.jsonl", *good[:5], *broken, *good[5:])
    outcome = run_import(path)
    assert (outcome.imported, outcome.quarantined, outcome.duplicates) == (len(good), len(broken), 0)
    expected = [(str(path), 6 + n, reason) for n, reason in enumerate(broken.values())]
    found = quarantine()
    assert [place[:2] for place in found] == [place[:2] for place in expected]
    assert all(reason in (None, place[2]) for reason, place in zip(broken.values(), found, strict=True)), found


def test_the_line_itself_is_kept_shortened(tmp_path):
    run_import(write_lines(tmp_path / "in", b"\x00\xff" + b"z" * 10_000))
    assert bytes(QuarantinedLine.objects.get().content) == (b"\x00\xff" + b"z" * 10_000)[:300]


def test_lines_of_a_file_that_is_read_in_parts_have_their_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.importing.job.PART_BYTES", 5_000)
    events = bare_room(1, 100)
    path = write_lines(tmp_path / "in", *events[:70], b"broken", *events[70:], b"also broken")
    assert run_import(path).imported == 100
    assert [line for _, line, _ in quarantine()] == [71, 102]


def test_events_that_name_another_room_version_do_not_spoil_the_room(tmp_path):
    events = [{"json": event, "room_version": "2"} for event in bare_room(1, 10)]
    events[6]["room_version"] = "1"
    outcome = run_import(write_lines(tmp_path / "in", *events))
    assert (outcome.imported, outcome.quarantined) == (9, 1)
    assert [(line, reason) for _, line, reason in quarantine()] == [(7, "room-version-differs")]


def test_a_room_that_was_purged_and_blocked_does_not_come_back_by_an_import(tmp_path):
    room_id = bare_room(1, 1)[0]["room_id"]
    PurgedRoom.objects.create(
        room_id=room_id, asked_by="ann", blocked=True, lowest_position=0, highest_position=0, highest_group=0,
        finished_at=datetime.now(UTC),
    )  # fmt: skip
    outcome = run_import(write_lines(tmp_path / "in", *bare_room(1, 3), *bare_room(2, 4)))
    assert (outcome.imported, outcome.quarantined, outcome.rooms) == (4, 3, 1)
    assert {reason for *_, reason in quarantine()} == {"room-purged"}
    assert not Room.objects.filter(pk=room_id).exists() and not Event.objects.filter(room_id=room_id).exists()


def test_an_event_that_comes_twice_counts_once(tmp_path):
    events = bare_room(1, 10)
    outcome = run_import(write_lines(tmp_path / "a", *events), write_lines(tmp_path / "b", *events[3:], *events[:2]))
    assert (outcome.read, outcome.imported, outcome.duplicates) == (19, 10, 9)


def test_the_same_rooms_twice_are_all_duplicates(tmp_path):
    path = write_lines(tmp_path / "in", *event_lines("v11_redactions"))
    first, before = run_import(path), content()
    again = run_import(path)
    assert (again.imported, again.duplicates, again.quarantined, again.rooms) == (0, first.imported, 0, 0)
    assert content() == before


def test_bare_events_find_the_version_of_their_create_event_in_any_file(tmp_path):
    create, *others = (event["json"] for event in stored_events("v10_rejected") if not event["rejected_reason"])
    rest = write_lines(tmp_path / "rest", *(json.dumps(event, ensure_ascii=False).encode() for event in others))
    outcome = run_import(rest, write_lines(tmp_path / "create", create))
    assert (outcome.quarantined, outcome.imported) == (0, len(others) + 1)


def test_history_goes_to_the_backward_stream_in_the_given_order(tmp_path, rows):
    events = stored_events("v9_restricted")
    run_import(write_lines(tmp_path / "in", *event_lines("v9_restricted")), as_history=True)
    found = rows("SELECT event_id FROM events_event WHERE stream_ordering < 0 ORDER BY stream_ordering")
    assert [event_id for (event_id,) in found] == [event["event_id"] for event in events]
    assert rows("SELECT count(*) FROM events_event WHERE stream_ordering > 0") == [(0,)]
    assert rows("SELECT count(*) > 0 FROM streams_cacheinvalidation") == [(True,)]


def test_byte_order_marks_are_ignored_wherever_files_were_joined(tmp_path):
    mark, lines = b"\xef\xbb\xbf", event_lines("v11_gap")
    outcome = run_import(write_lines(tmp_path / "in", mark + lines[0], *lines[1:5], mark + lines[5], *lines[6:], mark))
    assert (outcome.imported, outcome.quarantined) == (len(lines), 0)


def test_a_file_of_another_form_is_refused_before_anything_begins(tmp_path):
    with pytest.raises(UnusableSource, match="is a JSON array"):
        run_import(write_lines(tmp_path / "in", b"[" + b",".join(event_lines("v11_gap")) + b"]"))
    assert not Job.objects.exists()


def test_a_file_without_events_is_no_error(tmp_path):
    outcome = run_import(write_lines(tmp_path / "in"))
    assert (outcome.read, outcome.imported, outcome.rooms) == (0, 0, 0)


def rejected_room(version, about, told=None):
    """Lines of a room whose create event the rules refuse (``about`` changes it), or the source (``told``)."""
    made = MadeRoom(version, f"!r{next(_NUMBERS)}:a.test", ruled=True)
    create = json.loads(made.create.json) | about
    bare = {key: value for key, value in create.items() if key not in ("hashes", "signatures")}
    first = finish_event(bare, version)
    member = made.send({**_MEMBER, "room_id": first.room_id}, prev=[first])
    return [
        {"json": json.loads(first.json), "room_version": version, **(told or {})},
        *[{"json": json.loads(event.json), "room_version": version} for event in (member, made.message())],
    ]


_NUMBERS = itertools.count()
_MEMBER = {"type": "m.room.member", "state_key": ALICE, "content": {"membership": "join"}}


def test_a_room_whose_create_event_is_rejected_is_as_its_check_expects(tmp_path):
    content = {"content": {"room_version": "77", "creator": ALICE}}
    rooms = [
        rejected_room(version, about, told)
        for version in ("4", "10", "11")
        for about, told in (
            ({"sender": BOB}, None),
            (content, None),
            ({}, {"rejected_reason": "no"}),
            ({}, {"rejected_reason": "no", "soft_failed": True}),
            ({}, {"rejected_reason": "no", "outlier": True}),
        )
    ]
    alone = [lines[:1] for lines in (rejected_room("10", {"sender": BOB}), rejected_room("10", {}, {"outlier": True}))]
    lines = [line for room in (*rooms, *alone) for line in room]
    assert run_import(write_lines(tmp_path / "in", *lines)).imported == len(lines)
    reports = [check_room(room_id) for room_id in Room.objects.values_list("room_id", flat=True)]
    assert len(reports) == len(rooms) + len(alone)
    assert [report.differences for report in reports if not report.clean] == []
