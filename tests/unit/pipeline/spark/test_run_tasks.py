"""What is told of a failed task."""

from __future__ import annotations

from pipeline.spark.run_tasks import error_summary


def test_of_a_remote_traceback_the_error_and_its_place_are_told():
    text = """An exception was thrown:
      File "/x/worker.py", line 3, in main
        rows()
      File "/x/pipeline/frames/room_rows.py", line 97, in room_rows
        ^^^^^^
    AttributeError: no such thing
     SQLSTATE: 38000
    \tat org.apache.spark.Task.run(Task.scala:1)"""
    assert (
        error_summary(text)
        == 'AttributeError: no such thing File "/x/pipeline/frames/room_rows.py", line 97, in room_rows'
    )


def test_of_a_database_error_the_class_is_told_not_its_last_line():
    text = "psycopg2.errors.DiskFull: could not extend file\nHINT:  Check free disk space.\nCONTEXT:  COPY t, line 5"
    assert error_summary(text) == "psycopg2.errors.DiskFull: could not extend file"
