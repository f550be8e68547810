"""Differences of frames of rooms, and damage of stored rooms: each kind of damage has rows, and an undamaged room has none."""

from __future__ import annotations

import json
from contextlib import ExitStack

import pytest
from django.db import connection

from events.integrity import compare
from events.integrity.repair import check_room
from events.models import EventVisibility
from events.persist.room_cache import clear_caches
from pipeline import DAMAGE, ROOM_FRAMES, differences, stored_rooms
from pipeline.frames.differences import DIFFERENCES
from streams.db.driver import dsn
from tests.integration.events import test_room_repair as damage
from tests.integration.events.test_live_is_bulk import generated
from tests.pipeline.frames import in_order, rows_of
from tests.support.persisted_rooms import persist_all
from tests.support.stored_rooms import store_room

pytestmark = pytest.mark.django_db(transaction=True)
KINDS = [kind for kinds in damage.DAMAGE.values() for kind in kinds]
#: Frame and column of one difference that the damage must have.
SHOWN = {
    "wrong_delta": ("state_group_deltas", "event_id"),
    "missing_group": ("state_groups", None),
    "wrong_below": ("state_groups", "prev_number"),
    "wrong_columns": ("events", "sender"),
    "lost_edge": ("edges", None),
    "wrong_auth": ("auth_edges", "auth_event_ids"),
    "lost_auth": ("auth_edges", None),
    "wrong_membership": ("current_state", "membership"),
    "lost_extremity": ("forward_extremities", None),
    "extra_gap": ("backward_extremities", None),
    "wrong_room_flags": ("rooms", "creator"),
    "missing_ranges": ("visibility", None),
    "wrong_visibility_flag": ("rooms", "visibility_unresolved"),
}


@pytest.fixture
def frames(spark):
    """``frames()``: the frames of all rooms as they are now, until the test ends."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(stored_rooms(spark, dsn()))


def made_room(number):
    made = generated(0, room_id=f"!room{number}:a.test")
    persist_all(made.events, 100)
    return made.room_id


def of_rooms(frame):
    """Room -> its differences (frame, key, column, stored, computed)."""
    found = {}
    for room_id, *row in rows_of(frame):
        found.setdefault(room_id, []).append(tuple(row))
    return found


@pytest.mark.scenario
def test_each_kind_of_damage_has_its_row(frames):
    rooms = {kind.__name__: made_room(number) for number, kind in enumerate(KINDS)}
    made_room("-well")
    assert len(rooms) == 27
    before = frames()
    assert {one.name: one.dataType for one in differences(before, before).schema} == {
        one.name: one.dataType for one in DIFFERENCES.spark()
    }
    assert differences(before, before).collect() == []
    for kind in KINDS:
        kind(rooms[kind.__name__])
    found = of_rooms(differences(before, frames()))
    assert set(found) == set(rooms.values())
    for name, (frame, column) in SHOWN.items():
        assert (frame, column) in {(row[0], row[2]) for row in found[rooms[name]]}, name
    (one,) = found[rooms["wrong_membership"]]
    key = {"type": "m.room.member", "state_key": damage.USERS[0]}
    assert (one[0], json.loads(one[1]), one[2], one[3]) == ("current_state", key, "membership", "ban")
    (one,) = found[rooms["extra_edge"]]
    assert json.loads(one[1])["prev_event_id"] == "$other" and one[2:] == (None, "{}", None)
    (one,) = found[rooms["wrong_auth"]]
    assert one[3] == '["$wrong"]' and isinstance(json.loads(one[4]), list)
    (one,) = found[rooms["extra_current_state"]]
    assert one[2:] == (None, '{"event_id":"$extra","membership":null}', None)
    (one,) = [row for row in found[rooms["extra_range"]] if "@spy" in row[1]]
    assert one[0] == "visibility" and one[2] is None and one[4] is None


def test_damage_is_what_check_room_finds(frames, monkeypatch):
    """Every kind of it, with the same values; the frame has all differences, however many a report lists."""
    rooms = {kind.__name__: made_room(number) for number, kind in enumerate(KINDS)}
    made_room("-well")
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO events_room (room_id, room_version) VALUES ('!empty:a.test', '10')")
    assert frames().damage.schema == DAMAGE.spark() and frames().damage.count() == 0
    for kind in KINDS:
        kind(rooms[kind.__name__])
    clear_caches()
    found = of_rooms(frames().damage)
    monkeypatch.setattr(compare, "_MOST_LISTED", 1_000_000)
    told = {room_id: check_room(room_id).differences for room_id in rooms.values()}
    assert found == {room_id: in_order(map(as_row, listed)) for room_id, listed in told.items()}
    assert all(told.values())


def test_damage_is_of_the_moment_of_the_other_frames(frames):
    room_id = made_room(0)
    before = frames()
    damage.missing_ranges(room_id)
    assert before.damage.count() == 0
    (after,) = of_rooms(frames().damage).values()
    assert {(row[0], row[1]) for row in after} == {("visibility", "events_eventvisibility")}


def as_row(found):
    """A difference of a report as a row of the frame has it, without the room."""
    values = (
        None if value is None else json.dumps(value, ensure_ascii=False) for value in (found.stored, found.computed)
    )
    return found.subject, found.table, found.key, found.column, *values, found.mendable


@pytest.mark.scenario
def test_rows_that_mean_the_same_are_differences_and_no_damage(frames):
    """A state group that no event has, a range in two pieces, and a change of the current state that is there twice."""
    room_id = made_room(0)
    before = frames()
    whole = max(
        EventVisibility.objects.filter(room_id=room_id, kind__in=("joined", "shared")),
        key=lambda row: (row.last or 10**9) - row.first,
    )
    EventVisibility.objects.filter(pk=whole.pk).update(last=whole.first + 1)
    EventVisibility.objects.create(
        room_id=room_id, user_id=whole.user_id, kind=whole.kind, first=whole.first + 2, last=whole.last
    )
    columns = "stream_ordering, instance_name, room_id, type, state_key, event_id, prev_event_id"
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO state_stategroup (room_id, prev_group, chain, hops, keys, rows_to_read) "
            "VALUES (%s, NULL, currval(pg_get_serial_sequence('state_stategroup', 'id')), 0, 0, 0)",
            [room_id],
        )
        cursor.execute(
            "SET LOCAL streams.maintenance = on; "
            f"INSERT INTO events_currentstatedelta ({columns}) SELECT {columns} FROM events_currentstatedelta "
            "WHERE room_id = %s LIMIT 1",
            [room_id],
        )
    after = frames()
    assert after.damage.collect() == []
    found = of_rooms(differences(before, after))[room_id]
    assert {row[0] for row in found} == {"state_groups", "visibility", "current_state_deltas"}
    ((_, _, column, stored, computed),) = [row for row in found if row[0] == "current_state_deltas"]
    assert column is None and "event_id" in stored and computed is None


def test_two_databases_with_the_same_room_are_equal(frames):
    """The same room at other positions and with other IDs of state groups, as another site that imported it has it."""
    events = generated(4).events
    store_room(events, first_position=5)
    one = frames()
    with connection.cursor() as cursor:
        for schema in ROOM_FRAMES.values():
            cursor.execute(f"DELETE FROM {schema.table}")
    store_room(events, first_position=900)
    other = frames()
    assert differences(one, other).collect() == []
