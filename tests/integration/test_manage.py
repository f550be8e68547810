"""``manage.py`` itself: how a command ends when the world around it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from django.db import connection

from tests import session
from tests.full_disk import FULL, needs_full_disk

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.cold_start]

COMMANDS = [("streams", "--now"), ("health",), ("check_streams", "--json"), ("append", "caches", "--count", "1")]


@pytest.mark.parametrize("command", COMMANDS)
def test_nobody_reads_the_output(command, run_manage):
    read, write = os.pipe()
    os.close(read)
    done = run_manage(*command, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


@needs_full_disk
@pytest.mark.parametrize("command", COMMANDS)
def test_the_disk_is_full(command, run_manage):
    with FULL.open("w") as full:
        done = run_manage(*command, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "error: the output cannot be written: the disk is full"
    assert "Traceback" not in done.stderr


def test_there_is_no_output_at_all(database_url):
    """A supervisor may start a command with standard output closed."""
    command = f"exec {sys.executable} manage.py check_streams >&-"
    environment = {**os.environ, "DATABASE_URL": database_url}
    done = subprocess.run(
        ["sh", "-c", command], cwd=session.PROJECT, env=environment, stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_tables_of_an_earlier_version_are_one_line(run_manage):
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE streams_streamposition RENAME COLUMN facts_written TO facts_of_old")
    try:
        done = run_manage("streams", "--now")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE streams_streamposition RENAME COLUMN facts_of_old TO facts_written")
    assert done.returncode == 1
    assert done.stderr.startswith("error: the database lacks tables of this version (")
    assert done.stderr.endswith("): run manage.py migrate\n")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("REPLSITE_HEALTH_SECONDS", "soon"),
        ("REPLSITE_WRITERS", "[1"),
        ("REPLSITE_LOG_LEVEL", "loud"),
    ],
)
def test_a_setting_that_cannot_be_read_is_one_line_and_unusable(run_manage, setting, value):
    done = run_manage("runreplication", "--bind", "127.0.0.1:0", env={setting: value}, timeout=60)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("error: a setting cannot be used: ")
    assert setting in line


def test_a_setting_that_a_check_refuses_is_unusable_as_well(run_manage):
    """A service manager does not try again what somebody has to correct."""
    done = run_manage("runjobs", "--once", env={"REPLSITE_JOB_HISTORY_DAYS": "-1"}, timeout=60)
    assert "pipeline.E004" in done.stderr
    assert done.returncode == 2


def test_an_interrupt_is_no_traceback(start_manage):
    process = start_manage(
        "shell", "-v0", "-c", "print('up', flush=True); import time; time.sleep(60)", stderr=subprocess.PIPE
    )
    assert "up" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=10)
    assert (process.returncode, said) == (130, "")


def test_a_database_that_is_away_is_told_in_one_line(run_manage, free_port):
    done = run_manage("parked", env={"DATABASE_URL": f"postgres://a:b@127.0.0.1:{free_port}/x"}, timeout=30)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "the database cannot be used" in line
