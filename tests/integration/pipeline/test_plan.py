"""What an import plans to load of the lines that it staged: SQL on staging tables, without Spark."""

from __future__ import annotations

import pytest
from django.db import connection

from events.models import Room
from pipeline.frames.sources.parts import Part
from pipeline.importing import plan
from pipeline.importing.plan import (
    create_staging,
    drop_staging,
    leftover_staging,
    make_plan,
    planned_rooms,
    quarantine_rooms,
    store_broken,
)
from pipeline.importing.stage_lines import sequence_number
from pipeline.importing.staging_tables import table_name
from pipeline.models import Job, JobState, QuarantinedLine

pytestmark = pytest.mark.django_db

JOB = 4712


@pytest.fixture
def cursor():
    with connection.cursor() as cursor:
        create_staging(cursor, JOB)
        yield cursor


def stage(cursor, *events):
    """Lines of a file as they are parsed: (room, event) and what differs from a plain message."""
    for line, (room_id, event_id, more) in enumerate(events, 1):
        told = {
            "seq": sequence_number(0, line), "room_id": room_id, "room_version": "10", "event_id": event_id,
            "type": "m.room.message", "outlier": False, "stream_ordering": None, "json": b"{}", **more,
        }  # fmt: skip
        names, values = ", ".join(told), ", ".join(["%s"] * len(told))
        cursor.execute(f"INSERT INTO {table_name(JOB, 'event')} ({names}) VALUES ({values})", list(told.values()))


def found(cursor, sql):
    cursor.execute(sql.replace("{", f"pipeline_stage_{JOB}_").replace("}", ""))
    return cursor.fetchall()


def planned(cursor, *, as_history=False):
    """(room, its events in order) of every planned room, in the order of loading."""
    make_plan(cursor, JOB, as_history=as_history)
    return found(
        cursor,
        "SELECT room_id, array_agg(event_id ORDER BY stream_ordering NULLS LAST, seq) FROM {kept} "
        "GROUP BY room_no, room_id ORDER BY room_no",
    )


def put_aside(cursor):
    return found(cursor, "SELECT seq, reason, detail FROM {broken} ORDER BY seq")


def store(room_id, *events):
    """A room that the site has, with events of (ID, whether it is an outlier)."""
    Room.objects.get_or_create(room_id=room_id, defaults={"room_version": "10"})
    with connection.cursor() as cursor:
        cursor.executemany(
            "SET LOCAL streams.maintenance = on; "
            "INSERT INTO events_event (stream_ordering, instance_name, event_id, room_id, outlier, type, sender, "
            "topological_ordering, origin_server_ts) VALUES (%s, 'w', %s, %s, %s, 't', '@u:a', 1, 1)",
            [(number, event_id, room_id, outlier) for number, (event_id, outlier) in enumerate(events, 1)],
        )


def test_of_equal_ids_the_first_that_has_a_place_is_taken(cursor):
    stage(cursor, ("!r", "$a", {"outlier": True}), ("!r", "$a", {"stream_ordering": 7}), ("!r", "$a", {}))
    assert planned(cursor) == [("!r", ["$a"])]
    assert found(cursor, "SELECT stream_ordering FROM {kept}") == [(7,)]


def test_rooms_come_in_the_given_order_and_else_in_that_of_the_lines(cursor):
    stage(cursor, ("!late", "$c", {}), ("!b", "$b", {"stream_ordering": 9}), ("!late", "$d", {}),
          ("!a", "$a", {"stream_ordering": 8}), ("!b", "$e", {"stream_ordering": 2}))  # fmt: skip
    assert planned(cursor) == [("!b", ["$e", "$b"]), ("!a", ["$a"]), ("!late", ["$c", "$d"])]
    assert [(room.room_no, room.room_id, room.events) for room in planned_rooms(cursor, JOB)] == [
        (1, "!b", 2), (2, "!a", 1), (3, "!late", 2),
    ]  # fmt: skip


def test_a_room_has_the_version_of_its_create_event_though_most_name_another(cursor):
    stage(cursor, ("!r", "$a", {"room_version": "9"}), ("!r", "$b", {"room_version": "9"}),
          ("!r", "$c", {"type": "m.room.create"}), ("!s", "$d", {"room_version": "9"}), ("!s", "$e", {}),
          ("!s", "$f", {}))  # fmt: skip
    assert planned(cursor) == [("!r", ["$c"]), ("!s", ["$e", "$f"])]
    assert [(seq % 100, reason) for seq, reason, _ in put_aside(cursor)] == [
        (sequence_number(0, line) % 100, "room-version-differs") for line in (1, 2, 4)
    ]
    assert put_aside(cursor)[0][2] == "said to be of version 9, but room !r has version 10"


def test_what_is_here_is_left_out_but_for_an_outlier_that_comes_with_its_place(cursor):
    store("!r", ("$here", False), ("$outlier", True), ("$still", True), ("$far", True))
    stage(cursor, ("!r", "$here", {}), ("!r", "$outlier", {}), ("!r", "$still", {"outlier": True}),
          ("!other", "$here", {}), ("!other", "$far", {}))  # fmt: skip
    assert planned(cursor) == []
    assert found(cursor, "SELECT event_id FROM {known} JOIN {event} USING (seq)") == [("$outlier",)]


@pytest.mark.parametrize(("as_history", "order"), [(False, "defcabg"), (True, "gbacdef")])
def test_history_of_known_rooms_comes_first_from_its_newest_event(cursor, as_history, order):
    store("!r")
    given = {"a": 4, "b": None, "c": 3, "d": -2, "e": -5, "f": -7, "g": None}
    stage(cursor, *[("!r", f"${name}", {"stream_ordering": place}) for name, place in given.items()])
    assert planned(cursor, as_history=as_history) == []
    known = found(cursor, "SELECT event_id, backward FROM {known} JOIN {event} USING (seq) ORDER BY place")
    assert "".join(event_id[1] for event_id, _ in known) == order
    assert [backward for _, backward in known] == [name in "def" or as_history for name in order]


def test_a_plan_that_was_made_stays(cursor):
    stage(cursor, ("!r", "$a", {}))
    assert planned(cursor) == planned(cursor) == [("!r", ["$a"])]
    create_staging(cursor, JOB)  # as a job that goes on
    assert planned(cursor) == [("!r", ["$a"])]


def test_rooms_that_somebody_else_made_are_put_aside_but_for_what_is_here(cursor):
    stage(cursor, ("!r", "$a", {}), ("!r", "$b", {}), ("!s", "$c", {}))
    make_plan(cursor, JOB, as_history=False)
    store("!r", ("$a", False))
    quarantine_rooms(cursor, JOB, ["!r"])
    assert put_aside(cursor) == [
        (sequence_number(0, 2), "room-known", "room !r came to be while this import worked; import it again")
    ]
    assert found(cursor, "SELECT event_id FROM {kept}") == [("$c",)]


def test_rooms_that_nobody_may_make_are_put_aside_with_the_way_out(cursor):
    stage(cursor, ("!r", "$a", {}))
    make_plan(cursor, JOB, as_history=False)
    quarantine_rooms(cursor, JOB, ["!r"])
    ((_, reason, detail),) = put_aside(cursor)
    assert reason == "room-purged" and "room !r was purged and is blocked (manage.py purge room --unblock)" in detail


def test_the_first_lines_that_are_put_aside_are_written_down_and_all_are_counted(cursor, monkeypatch):
    monkeypatch.setattr(plan, "MOST_QUARANTINED", 3)
    job = Job.objects.create(pk=JOB, kind="import_events", state=JobState.RUNNING, arguments={})
    parts = [Part(0, "/a", name="a"), Part(0, "/a", 5, name="a"), Part(1, "/b", name="b"), Part(1, "/b", 5, name="b")]
    for part, line in ((3, 1), (1, 2), (0, 4), (2, 1), (3, 2)):
        cursor.execute(
            f"INSERT INTO {table_name(JOB, 'broken')} VALUES (%s, 'not-json', NULL, %s)",
            [sequence_number(part, line), b"x" * 5],
        )
    assert store_broken(cursor, JOB, parts, [10, 7, 20, 2]) == 5
    assert store_broken(cursor, JOB, parts, [10, 7, 20, 2]) == 5  # of a job that goes on
    lines = QuarantinedLine.objects.filter(job=job).order_by("file", "line")
    assert [(one.file, one.line, one.detail) for one in lines] == [("a", 4, ""), ("a", 12, ""), ("b", 1, "")]


def test_tables_of_a_job_are_not_those_of_one_whose_number_begins_alike(cursor):
    create_staging(cursor, JOB * 10)
    drop_staging(cursor, [JOB])
    tables = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'pipeline\\_stage\\_%s\\_%%'"
    counts = []
    for job in (JOB, JOB * 10):
        cursor.execute(tables % job)
        counts.append(cursor.fetchone()[0])
    assert counts[0] == 0 < counts[1]


@pytest.mark.parametrize(
    ("state", "left"),
    [(JobState.CANCELLED, [JOB]), (JobState.DONE, [JOB]), (JobState.FAILED, []), (JobState.RUNNING, [])],
)
def test_what_nobody_goes_on_with_is_left_over(cursor, state, left):
    Job.objects.create(pk=JOB, kind="import_events", state=state, arguments={})
    assert leftover_staging(cursor, "import_events") == left
    assert leftover_staging(cursor, "export") == []
