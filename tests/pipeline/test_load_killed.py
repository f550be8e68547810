"""Whoever dies while a pack is loaded, and when: its rooms are stored once or not at all, and positions go on."""

from __future__ import annotations

import json
import os
import pickle
import signal
import threading
from contextlib import suppress
from functools import partial

import pytest

from events.models import Event
from pipeline.errors import LoadRefused, PackIncomplete
from pipeline.loading import load_pack as loading
from pipeline.loading.load_pack import PackLoaded, load_pack
from pipeline.loading.reserver import Reserver
from pipeline.models import ImportedRoom, Job, PackRequest
from streams import registry
from streams.writing.dead_writers import resolve_writer
from streams.writing.process import current_writer, retire_all
from tests.pipeline.imports import bare_room, content
from tests.pipeline.loads import bundles_of, pack_of, work_of
from tests.support.emptying import empty_tables
from tests.support.room_data import event_lines
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import in_thread, linear, session

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("own_writer")]

WORKER = """
import pickle
from pipeline.loading import load_pack as loading
from pipeline.loading.pack_rows import Pack

dsn, job, writer, key, path, at = sys.argv[1:]

def step(name):
    if name == at:
        os.kill(os.getpid(), signal.SIGKILL)

if at == "in the middle of events":
    whole = loading.copy_batches
    def half(cursor, table, batches):
        def some():
            for batch in batches:
                yield batch
                step(at)
        whole(cursor, table, some() if table == "events_event" else batches)
    loading.copy_batches = half
pack = Pack()
with open(path, "rb") as file:
    for name, content in pickle.load(file):
        pack.add(name, content)
loading.load_pack(loading.LoadWork(dsn, int(job), writer, int(key)), pack, step)
"""
DRIVER = """
import time
from pipeline.loading.reserver import Reserver
from streams.writing.process import current_writer, use_instance

job, at = sys.argv[1:]

def step(name):
    if name == at:
        os.kill(os.getpid(), signal.SIGKILL)

use_instance("loader")
current_writer("default").hold()
with Reserver(int(job), "loader", "default", step):
    while True:
        time.sleep(0.1)
"""
EVERY_STEP = [
    "rooms", "copied event_json", "copied", "locked", "asked", "answered", "in the middle of events", "copied visibility",
    "noted",
]  # fmt: skip


@pytest.fixture(scope="module")
def bundles():
    """A pack of four rooms. Some of their events have given positions, and some are history."""
    plain = [{"json": event} for event in bare_room(1, 12)]
    given = [{"json": event, "stream_ordering": 100 - n} for n, event in enumerate(bare_room(2, 6))]
    history = [{"json": event, "stream_ordering": n - 40} for n, event in enumerate(bare_room(3, 8))]
    made = (plain, given, history)
    rooms = [[json.dumps({**line, "room_version": "2"}).encode() for line in room] for room in made]
    return bundles_of(*rooms, event_lines("v9_restricted"))


@pytest.fixture
def job(transactional_db):
    return Job.objects.create(kind="import_events", arguments={}).pk


@pytest.fixture(scope="module")
def clean(bundles, module_database):
    """What one clean load gives."""
    job = Job.objects.create(kind="import_events", arguments={}).pk
    with loader(job) as work:
        done = load_pack(work, pack_of(bundles))
    assert (done.rooms, done.events, done.left_out) == (4, Event.objects.count(), [])
    found = content()
    assert len(found["events"]) == done.events and len(found["groups"]) > 10
    nothing_waits()
    assert retire_all()
    empty_tables()
    return found


class loader:
    """This process as the one that loads: the parameters for its tasks."""

    def __init__(self, job):
        self._job = job

    def __enter__(self):
        writer = current_writer("default")
        writer.hold()
        self._reserver = Reserver(self._job, writer.name, "default")
        self._reserver.__enter__()
        return work_of(self._job, writer.name)

    def __exit__(self, *error):
        self._reserver.__exit__(*error)


def pending():
    return [number for tracker in current_writer("default").trackers.values() for number in tracker.pending]


def highest():
    return {
        name: max(
            [row.stream_ordering * sign for row in Event.objects.all() if row.stream_ordering * sign > 0], default=0
        )
        for name, sign in (("events", 1), ("backfill", -1))
    }


def reached():
    """The positions up to which every fact is complete, by stream."""
    return {name: linear(name) for name in ("events", "backfill")}


def nothing_waits():
    """Until no ID is pending, and readers have reached everything."""
    wait_until(lambda: not pending(), what="nothing pending")
    wait_until(lambda: all(reached()[name] >= at for name, at in highest().items()), what="positions go on")


@pytest.fixture
def killed_task(run_script, bundles, tmp_path):
    path = tmp_path / "bundles"
    path.write_bytes(pickle.dumps(bundles))

    def kill(work, step):
        done = run_script(WORKER, work.dsn, str(work.job), work.writer, str(work.append_key), str(path), step)
        assert done.returncode == -signal.SIGKILL, done.stderr

    return kill


@pytest.mark.parametrize("step", [*EVERY_STEP, "committed"])
def test_a_task_that_is_killed_leaves_all_or_nothing(step, job, clean, bundles, killed_task):
    with loader(job) as work:
        killed_task(work, step)
        wait_until(lambda: not PackRequest.objects.exists(), what="the request to be over")
        assert content() == (clean if step == "committed" else {name: [] for name in clean})
        nothing_waits()
        done = load_pack(work, pack_of(bundles))
        assert content() == clean and done.left_out == [] and (done.rooms == 0) == (step == "committed")
        nothing_waits()
    assert ImportedRoom.objects.count() == 4


def test_no_position_is_announced_before_the_commit_and_other_writes_go_on(job, bundles):
    seen = []

    def step(name):
        if name in ("answered", "noted"):
            seen.append((name, reached(), bool(pending())))
            in_thread(partial(registry.get("caches").append, cache_name="c", keys=["k"])).join()

    with loader(job) as work:
        load_pack(work, pack_of(bundles), step)
        nothing_waits()
    lowest = {name: min(row.stream_ordering * sign for row in Event.objects.all() if row.stream_ordering * sign > 0)
              for name, sign in (("events", 1), ("backfill", -1))}  # fmt: skip
    assert [name for name, _, _ in seen] == ["answered", "noted"] and all(there for *_, there in seen)
    assert all(at[name] < lowest[name] for _, at, _ in seen for name in lowest)


def test_two_tasks_with_one_pack_load_it_once(job, clean, bundles):
    done = []
    with loader(job) as work:
        both = [in_thread(lambda: done.append(load_pack(work, pack_of(bundles)))) for _ in range(2)]
        for one in both:
            one.join()
    assert content() == clean
    assert sorted((one.rooms, list(one.left_out)) for one in done) == [(0, []), (4, [])]


def test_a_room_of_another_transaction_is_left_out(job, clean, bundles, rows):
    room = clean["rooms"][0][0]
    rows("INSERT INTO events_room (room_id, room_version) VALUES (%s, '10') RETURNING 1", room)
    with loader(job) as work:
        done = load_pack(work, pack_of(bundles))
    assert (done.rooms, done.left_out) == (3, [room])
    assert {one[0] for one in content()["order"]} == {one[0] for one in clean["order"]} - {room}
    assert room not in ImportedRoom.objects.values_list("room_id", flat=True)


def test_a_writer_that_leaves_gives_no_ids_and_says_so(job, bundles):
    with loader(job) as work:
        current_writer("default").begin_drain()
        with pytest.raises(LoadRefused, match="leaving its streams"):
            load_pack(work, pack_of(bundles))
    assert not any(content().values())


def test_a_lease_that_ends_before_the_rows_are_written_makes_the_task_begin_anew(job, clean, bundles, rows):
    """The writer does not know it yet, and gives IDs that another process may have passed."""
    steps = []

    def step(name):
        steps.append(name)
        if name == "asked" and steps.count("asked") == 1:
            rows("UPDATE streams_instance SET lease = lease + 1 WHERE name = %s RETURNING 1", work.writer)

    with loader(job) as work:
        done = load_pack(work, pack_of(bundles), step)
        assert content() == clean and done.rooms == 4 and steps.count("asked") > 1
        nothing_waits()


# --- the process that loads -------------------------------------------------------------------------------------------


@pytest.fixture
def start_driver(run_script):
    """Begin a process that loads as ``loader`` and is killed at a step; it is killed in any case at the end."""
    started = []

    def start(job, step):
        ended = []
        begun = threading.Thread(
            target=lambda: ended.append(run_script(DRIVER, str(job), step, timeout=4 * DEADLINE_SECONDS))
        )
        begun.start()
        started.append(begun)
        wait_until(lambda: ended or _holder() is not None, what="the process to hold its name")
        assert not ended, ended[0].stderr
        return begun

    yield start
    while any(one.is_alive() for one in started):
        _kill(process_of_loader())
        for one in started:
            one.join(timeout=1)


def _kill(process):
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def process_of_loader():
    with session() as cursor:
        cursor.execute("SELECT process_id FROM streams_instance WHERE name = 'loader'")
        return cursor.fetchone()[0]


def _holder():
    """The session that holds the name ``loader``, if there is one."""
    with session() as cursor:
        cursor.execute(
            "SELECT pid FROM streams_instance i JOIN pg_stat_activity a ON a.pid = i.lock_backend_pid "
            "WHERE i.name = 'loader' AND a.datname = current_database()"
        )
        return cursor.fetchone()


def resolve():
    with session() as cursor:
        return resolve_writer(cursor, "loader", "test")


def test_a_loader_that_is_killed_before_it_answers_is_waited_for(job, clean, bundles, start_driver):
    start_driver(job, "reserved")
    done = []
    task = in_thread(lambda: done.append(load_pack(work_of(job, "loader"), pack_of(bundles))))
    wait_until(lambda: _holder() is None, what="the process to be killed")
    assert Event.objects.count() == 0
    start_driver(job, "")
    task.join()
    assert done == [PackLoaded(4, len(clean["events"]), [])] and content() == clean


def test_a_loader_that_starts_while_a_task_takes_the_lock_is_waited_for(job, clean, bundles, start_driver):
    """It has the name, and waits for those that hold the lock. So the task must not wait for it with the lock."""
    work, done, steps = work_of(job, "loader"), [], []

    with session() as earlier:

        def step(name):
            steps.append(name)
            if name == "copied" and steps.count(name) == 1:
                # What an earlier process left open keeps the new one waiting until the task has the lock, too.
                earlier.execute("SELECT pg_advisory_lock_shared(%s)", [work.append_key])
                _kill(process_of_loader())
                wait_until(lambda: _holder() is None, what="the first process to be gone")
                start_driver(job, "")
            if name == "asked" and steps.count(name) == 1:
                earlier.execute("SELECT pg_advisory_unlock_shared(%s)", [work.append_key])

        start_driver(job, "")
        task = in_thread(lambda: done.append(load_pack(work, pack_of(bundles), step)))
        task.join()
    assert done == [PackLoaded(4, len(clean["events"]), [])] and content() == clean and steps.count("asked") == 2


def test_a_loader_is_gone_although_another_session_got_its_number():
    """Its tasks would wait for IDs, with the rooms locked, for as long as that session lasts."""
    current_writer("default").hold()
    with session() as asking, session() as other:
        wait_until(lambda: loading._writer(asking.connection, "master")[1], what="the first heartbeat")
        other.execute("SELECT pg_backend_pid()")
        asking.execute("UPDATE streams_instance SET lock_backend_pid = %s WHERE name = 'master'", [other.fetchone()[0]])
        assert not loading._writer(asking.connection, "master")[1]


def test_a_pack_that_is_not_whole_is_refused(job, bundles):
    for frame in ("events", "state_groups", "rooms"):
        part = [(name, found) for name, found in bundles if name != frame]
        with loader(job) as work, pytest.raises(PackIncomplete, match=r"Nothing of (the pack|it) was loaded"):
            load_pack(work, pack_of(part))
    assert not any(content().values())


def resolved_at(killed, name, found):
    """A step of a task at which the killed process is looked at, as other writers do."""

    def at(step):
        if step == name:
            killed.join()
            wait_until(lambda: _holder() is None, what="the session of the killed process to end")
            found.append(resolve())

    return at


@pytest.mark.parametrize("step", ["answered", "ended"])
def test_a_loader_that_is_killed_after_it_answered_is_retired_once_the_task_has_ended(
    step, job, clean, bundles, start_driver
):
    """Not before: its transaction may still commit."""
    killed, before = start_driver(job, step), []
    at = resolved_at(killed, "copied events" if step == "answered" else "", before)
    done = load_pack(work_of(job, "loader"), pack_of(bundles), at)
    killed.join()
    assert before == [[]] * (step == "answered") and done.rooms == 4 and content() == clean
    wait_until(resolve, what="the killed process to be retired")
    assert reached() == highest()
    with loader(job) as work:
        assert load_pack(work, pack_of(bundles)) == PackLoaded(0, 0, [])
    assert not PackRequest.objects.exists() and content() == clean


def test_ids_of_a_loader_that_was_killed_and_looked_at_are_not_used(job, clean, bundles, start_driver, monkeypatch):
    monkeypatch.setattr(loading, "_AWAY_SECONDS", 0.1)
    killed, before = start_driver(job, "answered"), []
    with pytest.raises(LoadRefused, match="is gone"):
        load_pack(work_of(job, "loader"), pack_of(bundles), resolved_at(killed, "answered", before))
    assert before == [[]] and not any(content().values()) and resolve()
    with loader(job) as work:
        assert load_pack(work, pack_of(bundles)).rooms == 4
        nothing_waits()
    assert content() == clean
