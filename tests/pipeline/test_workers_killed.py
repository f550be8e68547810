"""Python workers of Spark killed with -9 in the middle of their tasks: these are tried again, and the result is the same."""

from __future__ import annotations

import io
import os
import signal
import threading
from contextlib import contextmanager, suppress

import psutil
import pytest

from events.integrity.repair import check_room
from pipeline.models import Job, JobState
from streams.db.driver import direct_connection
from streams.jobs.run import run_job
from tests.integration.events import test_room_repair as damage
from tests.pipeline.imports import SMALL_ROOMS, content, run_import, staging_tables
from tests.pipeline.test_many_rooms import LOCAL, made_room, plant
from tests.support.emptying import empty_tables
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import waiting_sessions

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("spark"), pytest.mark.slow]


def is_daemon(process: psutil.Process) -> bool:
    return not {"pyspark.daemon", "warm_spark_daemon"}.isdisjoint(process.cmdline())


def workers() -> list[psutil.Process]:
    """Spark's daemon starts them; it is below the JVM, which is below this process."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if is_daemon(process) and (parent := process.parent()) is not None and is_daemon(parent):
                found.append(process)
    return found


@contextmanager
def workers_are_killed(lock: str, *values: object):
    """What the statement locks stops a task in its middle; all workers are killed then, and the lock is let go."""
    killed: list[int] = []
    holding = direct_connection("default", application_name="test lock")
    with holding.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(lock, values)

    def kill() -> None:
        try:
            wait_until(lambda: waiting_sessions("replsite spark%"), what="a task that waits for the lock")
            for worker in workers():
                os.kill(worker.pid, signal.SIGKILL)
                killed.append(worker.pid)
        finally:
            holding.close()

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        thread.join(2 * DEADLINE_SECONDS)


def test_a_resync_whose_worker_is_killed_mends_every_room():
    rooms = [made_room(number) for number in range(3)]
    for room_id in rooms:
        plant(damage.lost_extremity, room_id)
    with workers_are_killed("SELECT FROM events_room WHERE room_id = %s FOR UPDATE", rooms[0]) as killed:
        found = run_job("resync", {"what": "rooms", "master": LOCAL}, stream=io.StringIO())
    assert killed and not any(worker.pid in killed for worker in workers())
    assert (found["rooms"], found["rooms_wrong"], found["left"]) == (3, 3, 0)
    assert all(check_room(room_id).clean for room_id in rooms)
    assert Job.objects.get().state == JobState.DONE


def test_an_import_whose_worker_is_killed_ends_like_a_clean_one():
    paths = SMALL_ROOMS[:4]
    clean, expected = run_import(*paths), content()
    empty_tables()
    blocked, killed = [], []

    def pause(step: str) -> None:
        if step == "read":
            blocked.append(workers_are_killed("LOCK TABLE events_room IN ACCESS EXCLUSIVE MODE"))
            killed.append(blocked[0].__enter__())
        elif step == "load":
            blocked[0].__exit__(None, None, None)

    outcome = run_import(*paths, pause=pause)
    assert killed[0] and not any(worker.pid in killed[0] for worker in workers())
    assert (outcome.imported, outcome.rooms, outcome.quarantined) == (clean.imported, clean.rooms, clean.quarantined)
    assert content() == expected and staging_tables() == []
