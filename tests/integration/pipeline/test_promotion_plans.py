"""A large room is loaded as fast after many small ones: what PostgreSQL believes of the staging tables does not matter."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import pairwise

import pytest
from django.db import connection, transaction

from events.models import Event
from pipeline.importing import load_rooms
from pipeline.importing.load_rooms import LoadedRoom, load_batch
from pipeline.importing.plan import analyze_results, create_staging, drop_staging
from pipeline.importing.staging_tables import table_name
from pipeline.models import Job
from state.models import StateGroup

LARGE = 5_000
GROUPS = 20_000
EVENTS = 2_000
JOINED = (
    "INSERT INTO state_stategroup ",
    "INSERT INTO state_stategroupdelta ",
    "INSERT INTO import_ordering ",
    "INSERT INTO events_event ",
    "INSERT INTO events_currentstatedelta ",
    "INSERT INTO events_eventvisibility ",
)


@pytest.fixture
def job(transactional_db, new_tables):
    """The number of a job that has its staging tables; no statement may take long."""
    job = Job.objects.create(kind="import_events").pk
    with connection.cursor() as cursor, transaction.atomic():
        create_staging(cursor, job)
    with connection.cursor() as cursor:
        yield job
        cursor.execute("RESET statement_timeout")
        drop_staging(cursor, [job])


def stage(cursor, job, first, last, groups):
    """Rooms without events, each with a chain of groups."""
    cursor.execute(
        f"INSERT INTO {table_name(job, 'result_room')} SELECT n, '!' || n, '10', '@a:b', '$c' || n, false, false, 0, 0, 0, 0, %s "
        "FROM generate_series(%s, %s) n",
        [groups, first, last],
    )
    cursor.execute(
        f"INSERT INTO {table_name(job, 'result_group')} SELECT n, g, nullif(g, 0) - 1, g / 100 * 100, g %% 100, 1, 1 "
        "FROM generate_series(%s, %s) n, generate_series(0, %s) g",
        [first, last, groups - 1],
    )


def stage_events(cursor, job, first, last, count):
    """Messages of rooms, given in the order of their numbers."""
    columns = (
        "room_no, index, seq, given, backward, event_id, type, sender, topological_ordering, origin_server_ts, outlier"
    )
    cursor.execute(
        f"INSERT INTO {table_name(job, 'result_event')} ({columns}, soft_failed, state_unresolved) "
        "SELECT room, n, n, NULL, false, '$' || n, 'm.room.message', '@a:b', n, 1, false, false, true "
        "FROM generate_series(%s, %s) room, generate_series(0, %s) n",
        [first, last, count - 1],
    )


@contextmanager
def plans_of_joins():
    """Plans of what is loaded by joining a room's rows with each other, as PostgreSQL chooses them at that moment."""
    found = []

    def explain(execute, sql, params, many, context):
        if sql.strip().startswith(JOINED):
            execute(f"EXPLAIN {sql}", params, many, context)
            found.append("\n".join(line for (line,) in context["cursor"].fetchall()))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explain):
        yield found


@pytest.mark.parametrize("small", [0, 1, 50, 1_000])
def test_rows_of_a_large_room_are_not_compared_each_with_each(job, small):
    with connection.cursor() as cursor:
        stage(cursor, job, 1, small, 10)
        analyze_results(cursor, job)
        stage(cursor, job, LARGE, LARGE, GROUPS)
        cursor.execute(
            "SET statement_timeout = '30s'"
        )  # each with each takes minutes, by hashes it is a tenth of a second
    with plans_of_joins() as plans:
        assert load_batch(job, [LoadedRoom(LARGE, f"!{LARGE}", 0, 0)], "default") == set()
    assert StateGroup.objects.filter(room_id=f"!{LARGE}").count() == GROUPS
    assert len(plans) == len(JOINED) - 1  # no events, so no orderings
    assert not [plan for plan in plans if "Nested Loop" in plan]


def test_ids_with_holes_between_them_are_given_out_in_order_and_not_compared_each_with_each(job, monkeypatch):
    whole = load_rooms.reserve_ids

    def with_holes(counts, using):
        writer, taken = whole([(stream, 2 * count) for stream, count in counts], using)
        return writer, [ids[::2] for ids in taken]

    monkeypatch.setattr(load_rooms, "reserve_ids", with_holes)
    with connection.cursor() as cursor:
        stage(cursor, job, 1, 1_000, 1)
        stage_events(cursor, job, 1, 1_000, 1)
        analyze_results(cursor, job)
        stage(cursor, job, LARGE, LARGE, 1)
        stage_events(cursor, job, LARGE, LARGE, EVENTS)
    with plans_of_joins() as plans:
        load_batch(job, [LoadedRoom(LARGE, f"!{LARGE}", EVENTS, 0)], "default")
    assert not [plan for plan in plans if "Nested Loop" in plan]
    stored = Event.objects.order_by("stream_ordering").values_list("stream_ordering", "event_id")
    assert [event_id for _, event_id in stored] == [f"${number}" for number in range(EVENTS)]
    orderings = [ordering for ordering, _ in stored]
    assert {above - below for below, above in pairwise(orderings)} == {2}
