"""Whoever dies while a pack is loaded, and when: its rooms are stored once or not at all, and readers miss nothing."""

from __future__ import annotations

import json
import pickle
import signal
import threading
from collections import Counter
from contextlib import closing, contextmanager
from functools import partial

import pytest

from events.models import CurrentStateDelta, Event
from pipeline.errors import PackIncomplete
from pipeline.loading.load_pack import PackLoaded, load_pack
from pipeline.models import ImportedRoom, Job
from streams import registry
from streams.core.tokens import VectorToken
from streams.follow import Begin, Handler, View
from streams.follow.table_source import TableSource
from streams.holds.look import holders
from streams.load_generator import generator
from tests.pipeline.imports import bare_room, content
from tests.pipeline.loads import bundles_of, pack_of, work_of
from tests.support.emptying import empty_tables
from tests.support.room_data import event_lines
from tests.support.waiting import wait_until
from tests.support.writing import in_thread, linear, looked, store_positions

pytestmark = pytest.mark.django_db(transaction=True)

WORKER = """
import pickle
import pyarrow as pa
from pipeline.frames.schemas import ROOM_FRAMES
from pipeline.loading import load_pack as loading
from pipeline.loading.pack_rows import Pack

dsn, job, writer, path, at = sys.argv[1:]

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
        pack.add(name, pa.ipc.read_record_batch(content, ROOM_FRAMES[name].arrow()))
loading.load_pack(loading.LoadWork(dsn, int(job), writer), pack, step)
"""
EVERY_STEP = [
    "rooms", "copied event_json", "copied", "taken", "in the middle of events", "copied visibility", "noted",
]  # fmt: skip
STREAMS = {"events": 1, "backfill": -1}


@pytest.fixture(scope="module")
def bundles():
    """A pack of four rooms. Some of their events have given positions, and some are history."""
    plain = [{"json": event} for event in bare_room(1, 12)]
    given = [{"json": event, "stream_ordering": 100 - n} for n, event in enumerate(bare_room(2, 6))]
    history = [{"json": event, "stream_ordering": n - 40} for n, event in enumerate(bare_room(3, 8))]
    rooms = [lines_of(room) for room in (plain, given, history)]
    return bundles_of(*rooms, event_lines("v9_restricted"))


def lines_of(room):
    return [json.dumps({**line, "room_version": "2"}).encode() for line in room]


@pytest.fixture
def job(transactional_db):
    return Job.objects.create(kind="import_events", arguments={}).pk


@pytest.fixture(scope="module")
def clean(bundles, module_database):
    """What one clean load gives."""
    job = Job.objects.create(kind="import_events", arguments={}).pk
    done = load_pack(work_of(job), pack_of(bundles))
    assert (done.rooms, done.events, done.left_out) == (4, Event.objects.count(), [])
    found = content()
    assert len(found["events"]) == done.events and len(found["groups"]) > 10
    empty_tables()
    return found


def ids_of(name):
    """The IDs of the stream's events, positive and ascending."""
    sign = STREAMS[name]
    return sorted(row * sign for row in Event.objects.values_list("stream_ordering", flat=True) if row * sign > 0)


def nothing_waits():
    """Until nobody holds a stream back, and readers have reached everything."""
    wait_until(lambda: not looked(holders), what="no open append")
    assert all(linear(name) >= max(ids_of(name), default=0) for name in STREAMS)


@pytest.fixture
def killed_task(run_script, tmp_path):
    """``killed_task(work, bundles, step)``: load a pack in another process, which is killed at that step."""

    def kill(work, bundles, step):
        path = tmp_path / "bundles"
        path.write_bytes(pickle.dumps(bundles))
        done = run_script(WORKER, work.dsn, str(work.job), work.writer, str(path), step)
        assert done.returncode == -signal.SIGKILL, done.stderr

    return kill


@contextmanager
def live_writers(count):
    """Threads that each append events to a room of their own during the block. Yields the list of the IDs."""
    ended, ids = threading.Event(), []

    def append(number):
        load = generator("events", number)
        while not ended.is_set():
            ids.extend(load.append(1))

    threads = [in_thread(partial(append, number)) for number in range(count)]
    try:
        yield ids
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("step", [*EVERY_STEP, "committed"])
def test_a_task_that_is_killed_leaves_all_or_nothing(step, job, clean, bundles, killed_task):
    work = work_of(job)
    killed_task(work, bundles, step)
    wait_until(lambda: not looked(holders), what="the session of the killed task to end")
    assert content() == (clean if step == "committed" else {name: [] for name in clean})
    nothing_waits()
    done = load_pack(work, pack_of(bundles))
    assert content() == clean and done.left_out == [] and (done.rooms == 0) == (step == "committed")
    nothing_waits()
    assert ImportedRoom.objects.count() == 4


def test_positions_wait_for_a_pack_from_its_ids_to_its_commit_and_live_appends_never_do(job, bundles):
    """Before it takes its IDs, a pack copies most of its rows, and holds up no reader."""
    live, seen = [], {}

    def step(name):
        if name in ("copied", "taken", "noted"):
            in_thread(lambda: live.extend(generator("events", 0).append(1))).join()  # ends: it waits for nobody
            seen[name] = {stream: linear(stream) for stream in STREAMS}

    load_pack(work_of(job), pack_of(bundles), step)
    nothing_waits()
    lowest = {name: min(set(ids_of(name)) - set(live)) for name in STREAMS}
    assert len(live) == 3 and seen["copied"]["events"] >= live[0]
    for name in ("taken", "noted"):
        assert all(seen[name][stream] < lowest[stream] for stream in STREAMS)
    assert linear("events") >= live[-1]


def test_ids_ascend_in_the_order_of_the_events_whoever_takes_some_between(job):
    """Over all rooms of a pack, as the source orders them; history the other way."""
    rooms = [
        [{"json": event, "stream_ordering": base + 3 * n} for n, event in enumerate(bare_room(number, 40), 1)]
        for number, base in ((1, 0), (2, 1), (3, -1000))
    ]
    with live_writers(1):
        load_pack(work_of(job), pack_of(bundles_of(*map(lines_of, rooms))))
    given = sorted((line["stream_ordering"], line["json"]["event_id"]) for room in rooms for line in room)
    loaded = {event_id for _, event_id in given}
    stored = Event.objects.filter(event_id__in=loaded).order_by("stream_ordering").values_list("event_id", flat=True)
    assert list(stored) == [event_id for _, event_id in given]


def test_two_tasks_with_one_pack_load_it_once(job, clean, bundles):
    done = []
    both = [in_thread(lambda: done.append(load_pack(work_of(job), pack_of(bundles)))) for _ in range(2)]
    for one in both:
        one.join()
    assert content() == clean
    assert sorted((one.rooms, list(one.left_out)) for one in done) == [(0, []), (4, [])]


def test_a_task_that_comes_late_loads_nothing_and_takes_no_id(job, clean, bundles):
    load_pack(work_of(job), pack_of(bundles))
    given = {name: registry.get(name).current() for name in STREAMS}
    assert load_pack(work_of(job), pack_of(bundles)) == PackLoaded(0, 0, [])
    assert content() == clean and {name: registry.get(name).current() for name in STREAMS} == given


def test_a_room_of_another_transaction_is_left_out(job, clean, bundles, rows):
    room = clean["rooms"][0][0]
    rows("INSERT INTO events_room (room_id, room_version) VALUES (%s, '10') RETURNING 1", room)
    done = load_pack(work_of(job), pack_of(bundles))
    assert (done.rooms, done.left_out) == (3, [room])
    assert {one[0] for one in content()["order"]} == {one[0] for one in clean["order"]} - {room}
    assert room not in ImportedRoom.objects.values_list("room_id", flat=True)


def test_a_pack_that_is_not_whole_is_refused(job, bundles):
    for frame in ("events", "state_groups", "rooms"):
        part = [(name, found) for name, found in bundles if name != frame]
        with pytest.raises(PackIncomplete, match=r"Nothing of (the pack|it) was loaded"):
            load_pack(work_of(job), pack_of(part))
    assert not any(content().values())


# --- readers ----------------------------------------------------------------------------------------------------------


class Reading:
    """A reader in a thread, which notes each fact that it gets, until it has those that were there at the end."""

    def __init__(self, view):
        self._handler = Handler("events", f"r-{view.value}", print, begin=Begin.OLDEST, view=view)
        self._ended = threading.Event()
        self.found = []
        self._thread = in_thread(self._read)

    def _read(self):
        with closing(TableSource(self._handler, "default")) as source:
            cursor, more = VectorToken(0), True
            while more:
                is_last = self._ended.is_set()
                store_positions()
                batch = source.next(cursor)
                cursor, more = batch.cursor, bool(batch.rows) or not is_last
                self.found += [(row.token, row.instance) for row in batch.rows]

    def end(self):
        self._ended.set()
        self._thread.join()


def test_readers_get_every_fact_once_and_in_order_while_packs_load_beside_live_writers(job, killed_task):
    packs = [bundles_of(lines_of([{"json": event} for event in bare_room(number, 30)])) for number in range(1, 7)]
    readers = {view: Reading(view) for view in (View.LINEAR, View.WRITER)}

    def step(name):
        if name in ("taken", "noted"):  # others get higher IDs, and commit before
            before = len(live)
            wait_until(lambda: len(live) >= before + 20)

    try:
        with live_writers(2) as live:
            killed_task(work_of(job), packs[0], "taken")
            killed_task(work_of(job), packs[1], "noted")
            tasks = [in_thread(partial(load_pack, work_of(job), pack_of(pack), step)) for pack in (*packs, packs[0])]
            for task in tasks:
                task.join()
    finally:
        for reader in readers.values():
            reader.end()
    facts = [
        (row.stream_ordering, row.instance_name) for model in (Event, CurrentStateDelta) for row in model.objects.all()
    ]
    assert ImportedRoom.objects.count() == 6 and len(facts) > len(live) + 180
    assert readers[View.LINEAR].found == sorted(facts)
    by_writer = readers[View.WRITER].found
    assert Counter(by_writer) == Counter(facts)
    for name in {writer for _, writer in facts}:
        tokens = [token for token, writer in by_writer if writer == name]
        assert tokens == sorted(tokens)
