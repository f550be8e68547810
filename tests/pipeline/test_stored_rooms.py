"""The frames of stored rooms hold what the tables hold, all in one snapshot, and show the password to nobody."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections import defaultdict

import psycopg2
import pytest
from django.db import connection

from events.format.parsing import parse_line
from events.models import Event, Room
from pipeline import EVENTS, ROOM_FRAMES, differences, stored_rooms, work_out_rooms
from pipeline.frames.event_columns import event_arrays
from pipeline.frames.stored import _lists, _ranges
from pipeline.frames.stored_sql import RoomPart
from streams.db.driver import dsn
from streams.jobs.errors import UnusableArguments
from tests.integration.events import test_room_repair as damage
from tests.integration.events.test_live_is_bulk import generated
from tests.pipeline.frames import in_order, rows_of
from tests.pipeline.imports import ALL_ROOMS, SHIPPED, run_import
from tests.support.emptying import empty_tables
from tests.support.persisted_rooms import persist_all
from tests.support.room_data import event_lines
from tests.support.session import PROJECT
from tests.support.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.django_db

EVENT = (
    "event_id, type, state_key, sender, topological_ordering, origin_server_ts, membership, redacts, relates_to, outlier, "
    "rejected_reason, soft_failed, redacted_by, state_unresolved"
)


@pytest.fixture(scope="module", params=SHIPPED)
def paths(request):
    return request.param


@pytest.fixture(scope="module")
def imported(spark, module_database, paths):
    empty_tables()  # of the other parameter
    run_import(*paths)
    Room.objects.create(room_id="!empty:x", room_version="10")
    with connection.cursor() as cursor:  # a room ID that SQL could take for something else
        cursor.execute("INSERT INTO events_room (room_id, room_version) VALUES ('!''{e}\\:x', '10')")
        cursor.execute(
            "INSERT INTO events_timelinegap (room_id, stream_ordering, instance_name) SELECT room_id, place, 'test' FROM "
            "(SELECT room_id, unnest(ARRAY[min(stream_ordering), 10000000]) AS place FROM events_event GROUP BY room_id) AS e "
            "ON CONFLICT DO NOTHING"
        )
        cursor.execute(
            "INSERT INTO events_backwardextremity (room_id, event_id) SELECT room_id, '$gone' FROM events_room"
        )
    return dsn()


def ask(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


def numbers(sql):
    """(room, value) -> its number within the room, by rows (room, value)."""
    found = defaultdict(set)
    for room_id, value in ask(sql):
        found[room_id].add(value)
    return {(room_id, None): None for room_id in found} | {
        (room_id, value): number for room_id, values in found.items() for number, value in enumerate(sorted(values))
    }


def from_tables():
    """All frames of rooms, made here from whole tables."""
    event = numbers("SELECT room_id, stream_ordering FROM events_event")
    group = numbers("SELECT room_id, id FROM state_stategroup")
    room_of = dict(ask("SELECT event_id, room_id FROM events_event"))
    room_of_chain = dict(ask("SELECT chain, room_id FROM state_stategroup"))
    found = {
        "rooms": ask(
            "SELECT room_id, room_version, creator, create_event_id, current_state_unresolved, visibility_unresolved "
            "FROM events_room"
        ),
        "events": [
            (room, event[room, place], place, place < 0, None, None, *own, group[room, at])
            for room, place, at, *own in ask(f"SELECT room_id, stream_ordering, state_group, {EVENT} FROM events_event")
        ],
        "event_json": [
            (room_of[event_id], event_id, version, bytes(json))
            for event_id, version, json in ask("SELECT event_id, room_version, json FROM events_eventjson")
        ],
        "edges": [(room_of[one], one, prev) for one, prev in ask("SELECT * FROM events_eventedge")],
        "auth_edges": [(room_of[one], one, tuple(auth)) for one, auth in ask("SELECT * FROM events_eventauth")],
        "forward_extremities": ask("SELECT room_id, event_id FROM events_forwardextremity"),
        "backward_extremities": ask("SELECT room_id, event_id FROM events_backwardextremity"),
        "timeline_gaps": [
            (room, event.get((room, place)), place)
            for room, place in ask("SELECT room_id, stream_ordering FROM events_timelinegap")
        ],
        "state_groups": [
            (room, group[room, own], group[room, prev], group[room, chain], *more)
            for room, own, prev, chain, *more in ask(
                "SELECT room_id, id, prev_group, chain, hops, keys, rows_to_read FROM state_stategroup"
            )
        ],
        "state_group_deltas": [
            (room_of_chain[chain], group[room_of_chain[chain], chain], group[room_of_chain[chain], own], *more)
            for chain, own, *more in ask(
                "SELECT chain, state_group, type, state_key, event_id FROM state_stategroupdelta"
            )
        ],
        "current_state": ask("SELECT room_id, type, state_key, event_id, membership FROM events_currentstate"),
        "current_state_deltas": [
            (room, event[room, place], place, *more)
            for room, place, *more in ask(
                "SELECT room_id, stream_ordering, type, state_key, event_id, prev_event_id FROM events_currentstatedelta"
            )
        ],
        "visibility": [
            (room, user, kind, event.get((room, first)), event.get((room, last)), first, last)
            for room, user, kind, first, last in ask(
                "SELECT room_id, user_id, kind, first, last FROM events_eventvisibility"
            )
        ],
    }
    return {name: in_order(rows) for name, rows in found.items()}


@pytest.fixture(scope="module")
def tables(imported):
    found = from_tables()
    assert [name for name in ROOM_FRAMES if not found[name]] == []
    return found


@pytest.mark.parametrize("events_per_part", [50_000, pytest.param(500, marks=pytest.mark.scenario)])
def test_frames_of_all_rooms_are_the_tables(spark, imported, tables, events_per_part):
    with stored_rooms(spark, imported, events_per_part=events_per_part) as stored:
        for name, frame in stored.items():
            assert frame.schema == ROOM_FRAMES[name].spark()
            assert rows_of(frame) == tables[name], name
        parts = stored.event_json.rdd.getNumPartitions(), stored.events.rdd.getNumPartitions()
    assert (parts == (1, 1)) == (events_per_part == 50_000) and parts[0] >= parts[1]


def test_frames_of_named_rooms(spark, imported, tables):
    names = sorted({room_id for room_id, *_ in tables["edges"]})[:2]
    as_frame = spark.createDataFrame([(name,) for name in names], "room_id string")
    for rooms in ([*names, names[0], "!no:x", "!a\0:x"], as_frame):
        with stored_rooms(spark, imported, rooms, events_per_part=100) as stored:
            for name in ("rooms", "edges", "visibility"):
                assert rows_of(getattr(stored, name)) == [row for row in tables[name] if row[0] in names]


def test_rooms_without_events_and_no_rooms(spark, imported):
    with stored_rooms(spark, imported, ["!empty:x", "!'{e}\\:x"]) as stored:
        assert rows_of(stored.rooms, "room_id") == [("!'{e}\\:x",), ("!empty:x",)]
        assert stored.events.count() == stored.source_events.count() == stored.state_groups.count() == 0
    with stored_rooms(spark, imported, []) as stored:
        assert stored.rooms.count() == 0
    with pytest.raises(TypeError, match="a single string"):
        stored_rooms(spark, imported, "!empty:x")


def test_source_events_are_the_events_that_were_imported(spark, imported, paths):
    """With the verdicts that the tables have, which tests/pipeline/test_import_history.py holds against a real server's."""
    verdicts = {event.event_id: event for event in Event.objects.all()}
    expected = []
    for path in paths:
        for line in event_lines(path.parent.name):
            parsed = parse_line(line)
            row = {name: array.to_pylist()[0] for name, array in event_arrays([parsed]).items()}
            one = verdicts[parsed.event_id]
            row |= {
                "source": None, "line": None, "stream_ordering": one.stream_ordering, "outlier": one.outlier,
                "rejected_reason": one.rejected_reason, "soft_failed": one.soft_failed, "soft_failure_given": True,
                "rejection_given": not (one.state_unresolved and one.state_group is None and one.rejected_reason is None),
                "content_hash_matches": True,
            }  # fmt: skip
            expected.append(tuple(tuple(v) if isinstance(v, list) else v for v in (row[n] for n in EVENTS.names)))
    with stored_rooms(spark, imported, events_per_part=500) as stored:
        assert stored.source_events.schema == EVENTS.spark()
        assert rows_of(stored.source_events) == in_order(expected)


def test_the_rows_that_follow_from_the_stored_events_are_the_stored_rows(spark, imported):
    """But for what the fixture has added: rooms without events, and missing events that nothing refers to."""
    with stored_rooms(spark, imported) as stored:
        computed = work_out_rooms(stored.source_events).persist()
        found = rows_of(differences(computed, stored), "room_id", "frame", "stored")
        computed.unpersist()
        wrong = rows_of(stored.damage, "room_id", "table")
    rooms = [room_id for (room_id,) in ask("SELECT room_id FROM events_room")]
    assert [row[:2] for row in found if row[1] == "rooms"] == [("!'{e}\\:x", "rooms"), ("!empty:x", "rooms")]
    assert sorted(row[0] for row in found if row[1] == "backward_extremities") == sorted(rooms)
    assert {frame for _, frame, _ in found} == {"rooms", "backward_extremities", "timeline_gaps"}
    assert wrong == [(room_id, "events_backwardextremity") for room_id in sorted(rooms)]


def test_no_plan_shows_the_password(spark, imported):
    with pytest.raises(psycopg2.OperationalError) as failed:
        stored_rooms(spark, f"{imported} password='ba nana' host=127.0.0.1 port=1")
    assert "nana" not in str(failed.value)
    with pytest.raises(UnusableArguments, match="not repeated here") as refused:
        stored_rooms(spark, f"{imported} password='ba' nana")  # of which libpq would tell a piece
    assert "nana" not in str(refused.value) and refused.value.__suppress_context__
    marked = f"{imported} application_name=nobody"  # travels with the string, as the password does
    with stored_rooms(spark, marked, ["!empty:x"]) as stored:
        plan = stored.rooms._jdf.queryExecution().toString()
        assert "MapInArrow" in plan and "nobody" not in plan + repr(stored)


def test_a_frame_without_its_snapshot_says_so(spark, imported):
    with stored_rooms(spark, imported, ["!empty:x"]) as stored:
        frame = stored.rooms
    with pytest.raises(Exception, match="has ended"):
        frame.collect()


@pytest.mark.scenario
def test_a_program_without_django_or_settings(imported, tmp_path):
    script = """
        import os, sys
        from pathlib import Path
        from pipeline import read_events, stored_rooms
        from pipeline.spark.session import spark_session

        folder, where, *files = sys.argv[1:]
        with spark_session("notebook", folder=Path(folder)) as spark, stored_rooms(spark, where) as stored:
            read = read_events(spark, files)
            print(stored.rooms.count(), read.events.count(), read.broken_lines.count(), "django" in sys.modules)
    """
    path = next(path for path in ALL_ROOMS if path.parent.name == "v9_restricted")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path), imported, str(path)],
        cwd=PROJECT, capture_output=True, text=True, timeout=4 * DEADLINE_SECONDS, check=False,
    )  # fmt: skip
    assert done.stdout == f"{Room.objects.count()} {len(event_lines('v9_restricted'))} 0 False\n", done.stderr


# --- parts ------------------------------------------------------------------------------------------------------------


def test_ranges_leave_no_gap():
    sizes = [("!a", 3), ("!b", 4), ("!c", 30), ("!d", 1), ("!e", 9), ("!f", 10)]
    assert list(_ranges(sizes, 10)) == [
        (7, RoomPart(upto="!b"), None),
        (30, RoomPart(after="!b", upto="!c"), "!c"),
        (10, RoomPart(after="!c", upto="!e"), None),
        (10, RoomPart(after="!e"), None),
    ]
    assert list(_ranges([], 10)) == [(0, RoomPart(), None)]
    assert list(_ranges([("!a", 11)], 10)) == [(11, RoomPart(upto="!a"), "!a"), (0, RoomPart(after="!a"), None)]


def test_lists_hold_each_room_once():
    assert list(_lists([("!a", 3), ("!b", 30), ("!c", 7), ("!d", 1), ("!e", 0)], 10)) == [
        (30, RoomPart(rooms=("!b",)), "!b"),
        (10, RoomPart(rooms=("!a", "!c")), None),
        (1, RoomPart(rooms=("!d", "!e")), None),
    ]


# --- what writers do --------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_all_frames_are_of_one_moment_whatever_writers_do(spark):
    made = generated(3)
    persist_all(made.events[:30], 10)
    with stored_rooms(spark, dsn(), [made.room_id]) as stored:
        before = {name: rows_of(frame) for name, frame in stored.items()}
        persist_all(made.events[30:], 10)
        damage.missing_ranges(made.room_id)
        assert {name: rows_of(frame) for name, frame in stored.items()} == before
    with stored_rooms(spark, dsn(), [made.room_id]) as stored:
        assert stored.events.count() == len(made.events) > 30 and stored.visibility.count() == 0


@pytest.mark.django_db(transaction=True)
def test_a_damaged_room_has_the_rows_that_it_has_and_the_numbers_of_before(spark):
    made = generated(2)
    persist_all(made.events, 100)
    with stored_rooms(spark, dsn(), [made.room_id]) as stored:
        before = {name: rows_of(frame) for name, frame in stored.items()}
    room_id = made.room_id
    for kind in (damage.missing_row_of_a_group, damage.lost_edge, damage.wrong_columns, damage.extra_range):
        kind(room_id)
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM events_eventjson WHERE event_id = %s", [made.events[7].event_id])
        cursor.execute("UPDATE events_eventjson SET json = '{' WHERE event_id = %s", [made.events[8].event_id])
    with stored_rooms(spark, dsn(), [made.room_id]) as stored:
        after = {name: rows_of(frame) for name, frame in stored.items()}
        lost = rows_of(stored.source_events.where("length(json) = 0 OR json = '{'"), "event_id", "prev_event_ids")
    changed = {name for name in ROOM_FRAMES if before[name] != after[name]}
    assert changed == {"events", "event_json", "edges", "state_groups", "visibility"}
    (gone,) = set(before["state_groups"]) - set(after["state_groups"])
    assert set(after["state_groups"]) < set(before["state_groups"])
    assert any(row[-1] == gone[1] for row in after["events"])  # the event still names it
    assert ("@spy:d.test", None) in {(row[1], row[4]) for row in after["visibility"]}
    expected = [(event.event_id, tuple(event.prev_event_ids)) for event in made.events[7:9]]
    assert lost == in_order(expected)
