"""``manage.py streams`` as it is run: output and exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import timedelta

import pytest
from django.utils import timezone

from streams import registry
from streams.catalog.models import CacheInvalidation
from streams.models import Reader, StoredCursor
from tests.support.session import PROJECT
from tests.support.waiting import DEADLINE_SECONDS
from tests.support.writing import held_open, ids, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)


def append():
    return registry.get("caches").append(CacheInvalidation(cache_name="c", keys=None))


def test_plain_lines_without_a_terminal(run_manage):
    done = run_manage("streams")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("WELL  All is well: ")
    assert "\x1b" not in done.stdout
    assert "caches" in done.stdout


def test_trouble_comes_first_with_exit_status_1(run_manage):
    with held_open():
        done = run_manage("streams", "--now", env={"REPLSITE_BLOCKED_AFTER_SECONDS": "0.001"})
    assert done.returncode == 1
    assert done.stdout.startswith("WRONG  Stream caches is blocked: Database session ")
    assert "manage.py streams abort caches" in done.stdout


def test_storage_is_shown_when_asked_for(run_manage):
    assert "State groups" not in run_manage("streams", "--now").stdout
    shown = run_manage("streams", "--now", "--storage").stdout
    assert "Database" in shown
    assert "State groups" in shown


def test_json_is_one_object(run_manage):
    done = run_manage("streams", "--json")
    assert {stream["name"] for stream in json.loads(done.stdout)["streams"]} == set(registry.names())


def test_positions_are_those_of_now_where_nobody_looks(run_manage):
    """As on a site that serves pages alone, or that only appends."""
    found = run_manage("append", "caches", "--count", "3")
    assert found.returncode == 0
    (stream,) = [
        one for one in json.loads(run_manage("streams", "--json", "--now").stdout)["streams"] if one["name"] == "caches"
    ]
    assert stream["linear_position"] >= ids()[-1]


def test_watch_repeats_until_interrupted(start_manage):
    process = start_manage("streams", "--json", "--watch")
    first, second = (json.loads(process.stdout.readline()) for _ in range(2))
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_SECONDS) == 0
    assert second["as_of"] > first["as_of"]


#: ``manage.py`` in a project where a sign of life is missed after half an hour, not after three seconds.
HEARD_OF_ONCE = """
import sys
import django
from django.conf import settings

django.setup()
settings.REPLSITE_HEARTBEAT_SECONDS = 600
import manage

sys.argv[0] = "manage.py"
manage.main()
"""


def test_a_reader_that_does_not_move_is_found_by_watching_it(run_manage):
    append()
    wait_for_linear(ids()[-1])
    CacheInvalidation.objects.writable().update(received_at=timezone.now() - timedelta(minutes=5))
    Reader.objects.create(key="r", name="r", kind="follower", positions={"caches": {"master": 1}})
    patience = {"REPLSITE_STUCK_AFTER_SECONDS": "0.5"}
    done = run_manage("-c", HEARD_OF_ONCE, "streams", env=patience)
    assert (done.returncode, "stuck" in done.stdout) == (1, True), done.stdout
    assert "watching it" in done.stderr
    assert run_manage("-c", HEARD_OF_ONCE, "streams", "--now", env=patience).returncode == 0


def test_a_stream_that_nobody_knows_is_exit_status_2(run_manage):
    done = run_manage("streams", "abort", "nobody")
    assert done.returncode == 2
    assert "There is no stream 'nobody'" in done.stderr


def test_forget_removes_a_reader_once_that_is_confirmed(run_manage):
    StoredCursor.objects.create(reader="billing", stream="caches", base=7)
    asked = run_manage("streams", "forget", "billing")
    assert asked.returncode == 2
    assert "caches at 7" in asked.stdout
    assert "--yes" in asked.stderr
    assert StoredCursor.objects.count() == 1
    done = run_manage("streams", "forget", "billing", "--yes")
    assert (done.returncode, StoredCursor.objects.count()) == (0, 0), done.stderr
    again = run_manage("streams", "forget", "billing", "--yes")
    assert again.returncode == 2
    assert "no reader 'billing'" in again.stderr


def test_a_reader_that_was_left_behind_is_told_with_exit_status_1(run_manage):
    append()
    wait_for_linear(ids()[-1])
    long_ago = timezone.now() - timedelta(hours=1)
    CacheInvalidation.objects.writable().update(received_at=long_ago)
    StoredCursor.objects.create(reader="billing", stream="caches", base=1, ended_at=long_ago, seen_at=long_ago)
    done = run_manage("streams", "--now")
    assert done.returncode == 1
    assert "billing on caches is left behind: It has not run for" in done.stdout
    assert "manage.py runhandlers billing" in done.stdout


def test_tables_that_are_not_there_are_told_in_one_line(database_url):
    """Also by Django's own ``manage.py``, which prints the trace of any other error."""
    empty = database_url.rpartition("/")[0] + "/postgres"
    environment = {**os.environ, "DATABASE_URL": empty, "DJANGO_SETTINGS_MODULE": "replsite.settings"}
    done = subprocess.run(
        [sys.executable, "-m", "django", "streams"],
        cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    assert "run manage.py migrate" in done.stderr
