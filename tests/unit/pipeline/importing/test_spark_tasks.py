"""How work is cut into tasks, and what is told of a failed one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.importing.plan import PlannedRoom
from pipeline.importing.spark_tasks import pack_rooms
from pipeline.spark.run_tasks import error_summary


def sizes(packs):
    return [[room.events for room in pack] for pack in packs]


def rooms_of(*events):
    return [PlannedRoom(number, f"!{number}", count) for number, count in enumerate(events)]


def test_the_largest_room_is_begun_first_and_alone():
    assert sizes(pack_rooms(rooms_of(3, 50, 4, 3), events=10)) == [[50], [4, 3, 3]]


def test_no_rooms_make_no_tasks():
    assert pack_rooms([]) == []


@given(st.lists(st.integers(1, 30)), st.integers(1, 20))
def test_every_room_is_in_one_task_and_tasks_are_bounded(events, limit):
    packs = pack_rooms(rooms_of(*events), limit)
    assert sorted(count for pack in sizes(packs) for count in pack) == sorted(events)
    assert all(len(pack) == 1 or sum(pack) <= limit for pack in sizes(packs))


def test_of_a_remote_traceback_the_error_and_its_place_are_told():
    text = """An exception was thrown:
      File "/x/worker.py", line 3, in main
        rooms()
      File "/x/pipeline/importing/work_out_rooms.py", line 97, in _work_out
        ^^^^^^
    AttributeError: no such thing
     SQLSTATE: 38000
    \tat org.apache.spark.Task.run(Task.scala:1)"""
    assert (
        error_summary(text)
        == 'AttributeError: no such thing File "/x/pipeline/importing/work_out_rooms.py", line 97, in _work_out'
    )


def test_of_a_database_error_the_class_is_told_not_its_last_line():
    text = "psycopg2.errors.DiskFull: could not extend file\nHINT:  Check free disk space.\nCONTEXT:  COPY t, line 5"
    assert error_summary(text) == "psycopg2.errors.DiskFull: could not extend file"
