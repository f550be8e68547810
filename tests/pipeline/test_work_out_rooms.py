"""Frames of rooms with copies, gaps and contradictions, and of rooms that the live path stores."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from events.reading.timeline import state_at
from pipeline import ROOM_FRAMES, WorkedOutRooms, known_keys, read_events, work_out_rooms
from pipeline.frames import kept
from pipeline.frames import work_out_rooms as module
from pipeline.models import QuarantinedLine
from streams.db.driver import dsn
from tests.integration.events.test_live_is_bulk import generated
from tests.pipeline.frames import STORED, computed, in_order, rows_of, stored
from tests.pipeline.imports import bare_room, run_import, write_lines
from tests.support.persisted_rooms import persist_all
from tests.support.room_data import event_lines

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("spark")]


@pytest.mark.parametrize("as_history", [False, True], ids=["live", "as history"])
def test_histories_with_copies_gaps_and_rooms_of_two_versions_are_as_an_import_stores_them(spark, tmp_path, as_history):
    """Copies are in several files and kinds: an outlier and the event itself, and one that does not fit its hash."""
    rooms = [bare_room(number, 12) for number in range(1, 5)]
    wrapped = [{"json": event, "room_version": "2"} for event in rooms[0]]
    odd = [{"json": event, "room_version": "1" if n in (6, 7) else "2"} for n, event in enumerate(rooms[1])]
    outliers = [{"json": event, "room_version": "2", "outlier": True} for event in rooms[2][3:6]]
    gapped = [{"json": rooms[3][n], "room_version": "2", "stream_ordering": 50 - n} for n in (0, 1, 4, 5, 9, 11)]
    whole = event_lines("v9_restricted")
    altered = [line.replace(b'"body":"', b'"body":"not ', 1) for line in whole if b'"body":"' in line]
    paths = [
        write_lines(tmp_path / "a", *outliers, *wrapped, *odd, *gapped, *altered),
        write_lines(tmp_path / "b", *rooms[2], *reversed(wrapped), b"broken", *whole),
    ]
    outcome = run_import(*paths, as_history=as_history)
    read = read_events(spark, paths)
    worked_out = work_out_rooms(read.events, as_history=as_history, chunk=5).persist()
    for name in ROOM_FRAMES:
        assert computed(worked_out, name) == stored(name), name
    assert outcome.imported == worked_out.events.count() and outcome.duplicates == 15 + len(altered) > 15
    put_aside = [(q.file, q.line, q.reason, q.detail) for q in QuarantinedLine.objects.exclude(reason="not-json")]
    found = rows_of(worked_out.set_aside, "source", "line", "reason", "detail")
    assert len(found) == 2 and [(read.sources[source], *rest) for source, *rest in found] == put_aside
    worked_out.unpersist()


def test_rows_are_what_the_live_path_stores_of_the_same_events(spark, tmp_path):
    """State groups and ranges may be laid out otherwise there, so states and ranges by their ends are compared."""
    made = [generated(seed, room_id=f"!made{seed}:a.test") for seed in range(8)]
    made = list({one.room_id: one for one in made}.values())
    lines = [
        json.dumps({"room_version": event.room_version}).encode()[:-1] + b', "json": ' + event.json + b"}"
        for one in made
        for event in one.events
    ]
    worked_out = work_out_rooms(read_events(spark, [write_lines(tmp_path / "in", *lines)]).events).persist()
    for seed, one in enumerate(made):
        persist_all(one.events, [1, 4, 15, 100][seed % 4])
    equal = set(ROOM_FRAMES) - {"state_groups", "state_group_deltas", "events", "rooms"}
    for name in sorted(equal):
        assert computed(worked_out, name) == stored(name), name
    columns = [name for name in STORED["events"][0].split() if name != "group_number"]
    assert rows_of(worked_out.events, *columns) == in_order(row[:-1] for row in stored("events"))
    states = states_of(worked_out)
    known = rows_of(
        worked_out.events.where("group_number IS NOT NULL"), "room_id", "event_id", "group_number", "rejected_reason"
    )
    for room_id, event_id, group, rejected in known:
        around = state_at(event_id)
        assert states(room_id, group) == (around.before if rejected is not None else around.after), event_id
    worked_out.unpersist()


def states_of(worked_out):
    """The state of a group, the slow and obvious way."""
    prevs = {
        (room, number): prev
        for room, number, prev in rows_of(worked_out.state_groups, "room_id", "number", "prev_number")
    }
    deltas = {}
    for room, group, *key, event_id in rows_of(
        worked_out.state_group_deltas, "room_id", "group_number", "type", "state_key", "event_id"
    ):
        deltas.setdefault((room, group), []).append((tuple(key), event_id))

    def state(room, group):
        found = {}
        while group is not None:
            for key, event_id in deltas.get((room, group), ()):
                found.setdefault(key, event_id)
            group = prevs[room, group]
        return {key: event_id for key, event_id in found.items() if event_id is not None}

    return state


def test_events_of_no_rooms_are_no_rows(spark):
    worked_out = work_out_rooms(read_events(spark, []).events)
    assert {name: frame.count() for name, frame in worked_out.items()} == dict.fromkeys(ROOM_FRAMES, 0)


def killed_once(marker):
    """Passes batches on, and kills its process in the middle of the first task that gets there."""

    def pass_on(batches):
        import os
        import signal
        from pathlib import Path

        for batch in batches:
            yield batch
            if not Path(marker).exists():
                Path(marker).touch()
                os.kill(os.getpid(), signal.SIGKILL)

    return pass_on


def cut_off(rows, marker):
    """The same rows, but the first task that reads some is killed in the middle, when it has given some."""
    read, pass_on = rows.read, killed_once(marker)
    return replace(rows, read=lambda number, columns: pass_on(read(number, columns)))


@pytest.mark.scenario
def test_workers_that_are_killed_and_files_in_between_change_nothing(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "_GROUP_BYTES", 1)  # so that a task that is killed has written some of its rows
    path = write_lines(tmp_path / "in", *bare_room(1, 300), b"broken", *bare_room(2, 100))
    read = read_events(spark, [path])
    expected = {name: rows_of(frame) for name, frame in work_out_rooms(read.events).persist().items()}
    lines = replace(read, rows=cut_off(read.rows, str(tmp_path / "first"))).keep(tmp_path / "lines")
    path.unlink()
    worked_out = work_out_rooms(replace(lines, rows=cut_off(lines.rows, str(tmp_path / "second"))))
    map_bundles, pass_on = worked_out.map_bundles, killed_once(str(tmp_path / "third"))
    killed = replace(worked_out, map_bundles=lambda f, schema: map_bundles(lambda rows: f(pass_on(rows)), schema))
    found = killed.keep(tmp_path / "rooms")
    shutil.rmtree(tmp_path / "lines")
    assert all((tmp_path / name).exists() for name in ("first", "second", "third"))
    assert {name: rows_of(frame) for name, frame in found.items()} == expected and len(expected["events"]) == 400
    assert {name: rows_of(frame) for name, frame in WorkedOutRooms.kept(spark, tmp_path / "rooms").items()} == expected


@pytest.mark.parametrize("better", [0, pytest.param(1, marks=pytest.mark.scenario)])
def test_an_event_id_that_two_rooms_name_counts_in_one_of_them(spark, tmp_path, better, monkeypatch):
    """In rooms of versions 1 and 2, servers name events. The better copy counts, in whatever pack its room is."""
    monkeypatch.setattr(module, "EVENTS_PER_PACK", 5)
    rooms = [bare_room(number, 12) for number in (1, 2)]
    rooms[1][7]["event_id"] = rooms[0][7]["event_id"]
    lines = [
        {"json": event, "room_version": "2", **({"outlier": True} if n == 7 and number != better else {})}
        for number, room in enumerate(rooms)
        for n, event in enumerate(room)
    ]
    path = write_lines(tmp_path / "in", *lines, *lines[3:9])
    run_import(path)
    worked_out = work_out_rooms(read_events(spark, [path])).persist()
    assert worked_out.bundles.rdd.getNumPartitions() > 1
    for name in ROOM_FRAMES:
        assert computed(worked_out, name) == stored(name), name
    left = [20] if better == 0 else [8, 29]
    assert worked_out.events.count() == 23
    assert [row[1:] for row in rows_of(worked_out.set_aside, "room_id", "reason", "line")] == [
        ("wrong-event-id", line) for line in left
    ]
    assert list(QuarantinedLine.objects.order_by("line").values_list("reason", "line")) == [
        ("wrong-event-id", line) for line in left
    ]
    worked_out.unpersist()


def test_events_and_rooms_that_are_stored_are_set_aside(spark, tmp_path):
    """Room 1 is stored but for some events, room 2 is new; an event of room 3 is stored as an outlier."""
    rooms = [bare_room(number, 12) for number in range(1, 4)]
    first = [{"json": event, "room_version": "2"} for event in rooms[0][:8]]
    outlier = {"json": rooms[2][5], "room_version": "2", "outlier": True}
    run_import(write_lines(tmp_path / "before", *first, {"json": rooms[2][0], "room_version": "2"}, outlier))
    of_other = {"json": rooms[1][9] | {"event_id": rooms[0][3]["event_id"]}, "room_version": "2"}
    wrong = {"json": rooms[0][9], "room_version": "1"}
    path = write_lines(
        tmp_path / "in",
        *({"json": event, "room_version": "2"} for room in rooms for event in room if event is not rooms[0][9]),
        *(of_other, wrong, outlier),
    )
    read = read_events(spark, [path])
    with known_keys(dsn()) as known:
        worked_out = work_out_rooms(read, known=known).persist()
        found = rows_of(worked_out.set_aside, "room_id", "event_id", "reason", "line")
        rows = {name: rows_of(frame) for name, frame in worked_out.items()}
        worked_out.unpersist()
    alone = work_out_rooms(read.events.where(f"room_id = '{rooms[1][0]['room_id']}' AND line <= 35")).persist()
    assert rows == {name: rows_of(frame) for name, frame in alone.items()} and len(rows["events"]) == 12
    alone.unpersist()
    room, ids = [one[0]["room_id"] for one in rooms], [[event["event_id"] for event in one] for one in rooms]
    expected = [(room[0], event_id, "event-known", n + 1) for n, event_id in enumerate(ids[0][:8])]
    expected += [(room[0], event_id, "room-known", 9 + n) for n, event_id in enumerate((ids[0][8], *ids[0][10:]))]
    expected += [(room[1], ids[0][3], "wrong-event-id", 36), (room[0], ids[0][9], "room-version-differs", 37)]
    expected += [(room[2], ids[2][0], "event-known", 24), (room[2], ids[2][5], "event-known", 38)]
    expected += [(room[2], event_id, "room-known", 24 + n) for n, event_id in enumerate(ids[2]) if n]
    assert found == in_order(expected)
    # An import sees it the same way. What is set aside here with its room, it stores as live events, or refuses them.
    outcome = run_import(path)
    reasons = [reason for _, _, reason, _ in found]
    assert outcome.duplicates == reasons.count("event-known")
    assert outcome.imported + outcome.quarantined == 12 + len(found) - reasons.count("event-known")
    put_aside = QuarantinedLine.objects.filter(reason="room-version-differs").values_list("line", flat=True)
    assert list(put_aside) == [line for _, _, reason, line in found if reason == "room-version-differs"]


PLAN = re.compile(r"```text\n(MapInArrow .*?)```", re.S)


def operators(plan):
    """The names of a plan's operators from the top to the bottom."""
    lines = [line.lstrip(" +-:") for line in plan.splitlines() if line.strip()]
    return [re.match(r"\w+", line)[0] for line in lines if not line.startswith(("AdaptiveSparkPlan", "=="))]


def test_the_plan_on_the_page_is_the_one_that_spark_carries_out(spark, tmp_path, capsys):
    page = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "dataflow.md"
    told = [line.split()[0] for line in PLAN.search(page.read_text())[1].splitlines()]
    path = write_lines(tmp_path / "in", *event_lines("v9_restricted"))
    work_out_rooms(read_events(spark, [path])).events.explain()
    assert operators(capsys.readouterr().out) == told
