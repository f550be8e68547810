"""``manage.py`` itself: how a command ends when the world around it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from replsite.postgres.server import EmbeddedServer
from tests.support import session
from tests.support.full_disk import FULL, needs_full_disk
from tests.support.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.django_db(transaction=True)

#: They write in different ways; what ends a command is one for all (``streams.runtime.command_line.SiteCommand``).
COMMANDS = [("streams", "--now"), ("check_streams", "--json")]


@pytest.mark.cold_start
@pytest.mark.parametrize("command", [pytest.param(COMMANDS[0], marks=pytest.mark.scenario), COMMANDS[1]])
def test_nobody_reads_the_output(command, run_manage):
    read, write = os.pipe()
    os.close(read)
    done = run_manage(*command, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("streams", "--now"),
        *(pytest.param(c, marks=pytest.mark.scenario) for c in (("check_streams",), ("follow", "--help"))),
    ],
)
def test_nobody_reads_the_output_in_a_project_of_its_own(command, database_url):
    """Its ``manage.py`` is Django's."""
    read, write = os.pipe()
    os.close(read)
    environment = {**os.environ, "DATABASE_URL": database_url, "DJANGO_SETTINGS_MODULE": "replsite.settings"}
    given = [sys.executable, "-m", "django", *command]
    done = subprocess.run(
        given, cwd=session.PROJECT, env=environment, stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_the_site_starts_without_django_prometheus(database_url):
    """It is of the extra ``django-metrics``."""
    environment = {**os.environ, "DATABASE_URL": database_url, "DJANGO_SETTINGS_MODULE": "replsite.settings"}
    code = "import sys; sys.modules['django_prometheus'] = None; from django.test import Client; import django; "
    code += "django.setup(); client = Client(headers={'host': 'localhost'}); "
    code += "print(client.get('/health').status_code, client.get('/metrics').status_code)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=session.PROJECT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "200 200\n", done.stdout + done.stderr


@needs_full_disk
@pytest.mark.cold_start
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
    assert done.stderr.startswith(
        'CommandError: column "facts_written" does not exist. All migrations are applied, so it was dropped or'
    )


def test_a_table_that_no_migration_made_yet_is_one_line(run_manage):
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE app = 'streams' AND name >= '0011'")
        cursor.execute("ALTER TABLE streams_sample RENAME TO streams_sample_of_old")
    try:
        done = run_manage("streams", "--now")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE streams_sample_of_old RENAME TO streams_sample")
            recorder = MigrationRecorder(connection)
            for name in sorted(path.stem for path in (session.PROJECT / "migrations/streams").glob("00*.py")):
                if name >= "0011":
                    recorder.record_applied("streams", name)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert 'relation "streams_sample" does not exist' in line
    assert line.endswith("run manage.py migrate.")


def test_a_database_without_tables_is_told_to_migrate(tmp_path):
    """Its first command of all: the embedded server has just been started."""
    events = next((session.PROJECT / "tests/data/rooms").glob("*/events.jsonl.gz"))
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    environment["REPLSITE_DATA_DIR"] = str(tmp_path)
    try:
        for arguments in (("append", "caches", "--count", "1"), ("import_events", str(events)), ("parked",)):
            command = [sys.executable, "manage.py", *arguments]
            done = subprocess.run(
                command, cwd=session.PROJECT, env=environment, capture_output=True, text=True, check=False,
                timeout=2 * DEADLINE_SECONDS,
            )  # fmt: skip
            assert done.returncode == 1, arguments
            assert done.stderr.splitlines()[-1].endswith("run manage.py migrate."), (arguments, done.stderr)
            assert "DATABASE_URL" not in done.stderr
    finally:
        EmbeddedServer(tmp_path).stop()


@pytest.mark.cold_start
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("REPLSITE_HEALTH_SECONDS", "soon"),
        ("REPLSITE_WRITERS", "[1"),
        ("REPLSITE_LOG_LEVEL", "loud"),
    ],
)
def test_a_setting_that_cannot_be_read_is_one_line_and_unusable(run_manage, setting, value):
    done = run_manage("runreplication", "--bind", "127.0.0.1:0", env={setting: value}, timeout=DEADLINE_SECONDS)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("error: a setting cannot be used: ")
    assert setting in line


def test_a_setting_that_a_check_refuses_is_unusable_as_well(run_manage):
    """A service manager does not try again what somebody has to correct."""
    done = run_manage("runjobs", "--once", env={"REPLSITE_JOB_HISTORY_DAYS": "-1"}, timeout=DEADLINE_SECONDS)
    assert "pipeline.E003" in done.stderr
    assert done.returncode == 2


@pytest.mark.cold_start
def test_an_interrupt_is_no_traceback(start_manage):
    process = start_manage(
        "shell", "-v0", "-c", "print('up', flush=True); import time; time.sleep(60)", stderr=subprocess.PIPE
    )
    assert "up" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=DEADLINE_SECONDS)
    assert (process.returncode, said) == (130, "")


_MODULES = """
import sys
from runpy import run_path
sys.argv[0] = "manage.py"
try:
    run_path("manage.py", run_name="__main__")
finally:
    sys.stdout.flush()
    sys.stderr.write("\\nmodules: " + " ".join(sys.modules))
"""
_OF_SERVERS = {
    "ninja", "pydantic", "jinja2", "unittest", "rich", "twisted", "replsite.urls", "replsite.metrics.process", "events.admin",
    "django.contrib.auth.admin",
}  # fmt: skip


@pytest.mark.parametrize(("command", "most"), [("help", 700), ("health", 950), ("streams", 950)])
def test_a_command_imports_only_what_it_uses(command, most, database_url):
    """What is imported is most of a command's start. Modules are counted, because seconds depend on the machine."""
    environment = {**os.environ, "DATABASE_URL": database_url, "PYTHONPATH": "."}
    given = [sys.executable, "-c", _MODULES, command]
    done = subprocess.run(given, cwd=session.PROJECT, env=environment, capture_output=True, text=True, check=False)
    modules = set(done.stderr.partition("modules: ")[2].split())
    assert "django.db.models" in modules, done.stderr
    assert not modules & _OF_SERVERS
    assert len(modules) <= most
