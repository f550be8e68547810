"""Storage: sizes from the catalog, groups that nothing needs, growth from history, big rooms."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from django.db import connection
from django.utils import timezone

from events.models import Event, RoomSummary
from replsite.live_rows import storage as storage_rows
from replsite.live_rows.storage import DATABASE, MOST_ROOMS, MOST_TABLES, RoomSizeView, read_storage
from state.models import StateGroup
from streams.models import Sample

pytestmark = pytest.mark.django_db


def storage():
    with connection.cursor() as cursor:
        return read_storage(cursor, timezone.now())


def group(number, prev=None):
    return StateGroup(id=number, room_id="!r:x", prev_group=prev, chain=number, hops=0, keys=1, rows_to_read=1)


def event(number, state_group):
    return Event(stream_ordering=number, event_id=f"${number}", room_id="!r:x", type="m", sender="@a:x", topological_ordering=1,
                 origin_server_ts=1, instance_name="master", state_group=state_group)  # fmt: skip


@pytest.fixture
def groups():
    """1 <- 2 (an event has it), 1 <- 3 (nothing needs it), 4 stands alone."""
    StateGroup.objects.bulk_create([group(1), group(2, 1), group(3, 1), group(4)])
    Event.objects.writable().bulk_create([event(1, 2)])


def test_largest_tables_come_first_and_are_bounded():
    found = storage()
    assert len(found.tables) == MOST_TABLES
    sizes = [table.size_bytes for table in found.tables]
    assert sizes == sorted(sizes, reverse=True)
    assert found.database.size_bytes > sum(sizes)


def test_groups_that_no_event_has_and_nothing_is_built_on_are_counted(groups):
    found = storage()
    assert (found.unreferenced_groups, found.unreferenced_exact) == (2, True)


def test_among_many_groups_a_sample_is_looked_at(groups, monkeypatch):
    monkeypatch.setattr(storage_rows, "GROUPS_SAMPLED", 3)
    with connection.cursor() as cursor:
        found, exact = storage_rows._unreferenced(cursor, 4)
    assert not exact
    assert found >= 0


def test_growth_is_against_the_first_sample_of_the_last_day():
    now = timezone.now()
    for hours, size in ((30, 1), (23, 1_000), (2, 5_000)):
        Sample.objects.create(step_seconds=120, stream="", reader=DATABASE, at=now - timedelta(hours=hours), position=size,
                              waiting=0, seconds=0, severity=0, word="")  # fmt: skip
    database = storage().database
    assert database.grown_bytes == database.size_bytes - 1_000
    assert database.grown_since == now - timedelta(hours=23)


def test_without_history_nothing_is_said_of_growth():
    assert storage().database.grown_bytes is None


def test_biggest_rooms_are_bounded_and_in_order():
    never, on = datetime.fromtimestamp(0, UTC), date(2026, 1, 1)
    RoomSummary.objects.bulk_create(
        RoomSummary(room_id=f"!{n}:x", words="", events=n, size=n // 4, joined=n, active_at=never, active_on=on)
        for n in range(MOST_ROOMS + 5)
    )
    assert [room.events for room in storage().rooms] == list(range(MOST_ROOMS + 4, 4, -1))
    assert storage().rooms[0] == RoomSizeView(f"!{MOST_ROOMS + 4}:x", MOST_ROOMS + 4, MOST_ROOMS + 4, None)


def test_it_takes_a_handful_of_queries(groups, django_assert_max_num_queries):
    with django_assert_max_num_queries(5):
        storage()


def test_slots_of_standbys_are_told_and_not_those_of_a_backup_that_runs():
    with connection.cursor() as cursor:
        for name, temporary in (("slot_of_a_test", False), ("slot_of_a_backup", True)):
            cursor.execute("SELECT pg_create_physical_replication_slot(%s, true, %s)", [name, temporary])
        try:
            assert dict(storage().standbys).items() >= {("slot_of_a_test", False)}
            assert "slot_of_a_backup" not in dict(storage().standbys)
        finally:
            for name in ("slot_of_a_test", "slot_of_a_backup"):
                cursor.execute("SELECT pg_drop_replication_slot(%s)", [name])
