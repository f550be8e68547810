"""Packs of an import are loaded as a whole or by chunks, by processes that may be killed: the rows are the same."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from django.db import connection, transaction

from events.models import Event, Room
from pipeline.frames.packs import pack_events
from pipeline.frames.parse_lines import LineRules, scan_part
from pipeline.frames.read_events import Reading
from pipeline.frames.sources.inputs import open_inputs, parts_of_inputs
from pipeline.frames.sources.parts import lines_before
from pipeline.importing import import_pack as module
from pipeline.importing.import_pack import PackWork, import_pack
from pipeline.importing.read_parts import ReadWork, read_part_once
from pipeline.importing.staging_tables import create_staging, drop_staging, events_done, lines_read, packs_done
from pipeline.loading.load_pack import LoadWork
from pipeline.models import ImportedRoom, Job
from streams.db.driver import dsn
from streams.holds.hold import CHANGE_FACTS
from tests.pipeline.imports import content, write_lines
from tests.support.emptying import empty_tables
from tests.support.room_data import ROOMS, event_lines
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.writing import sessions

pytestmark = pytest.mark.django_db(transaction=True)

FILES = [ROOMS / name / "events.jsonl.gz" for name in ("v10_gap", "v11_redactions", "v12_power_fork", "v9_restricted")]
PACK = 7


@pytest.fixture
def job(transactional_db):
    job = Job.objects.create(kind="import_events").pk
    stage_nothing(job)
    yield job
    with connection.cursor() as cursor:
        drop_staging(cursor, [job])


def stage_nothing(job):
    with transaction.atomic(), connection.cursor() as cursor:
        drop_staging(cursor, [job])
        create_staging(cursor, job)


def begin_anew(job):
    """As if the job had not begun: the tables are empty."""
    empty_tables()
    Job.objects.create(pk=job, kind="import_events")
    stage_nothing(job)


@contextmanager
def reading(job, files):
    inputs = open_inputs([str(file) for file in files])
    with parts_of_inputs(inputs, 2**24) as parts:
        lines = [scan_part(part, 2**20).lines for part in parts]
        yield ReadWork(job, dsn("default"), Reading(parts, lines_before(parts, lines), LineRules()), inputs)


def load(job, files=FILES, *, backward=False, **more):
    """Loads the files as one pack."""
    with reading(job, files) as read:
        batches = [batch for number in range(len(read.reading.parts)) for batch in read_part_once(read, number)]
    with pack_events(batches) as events:
        import_pack(PackWork(LoadWork(dsn("default"), job, "loader"), backward, **more), PACK, events)


def asked(question, job):
    with connection.cursor() as cursor:
        return question(cursor, job)


def staged(job, sql):
    with connection.cursor() as cursor:
        cursor.execute(sql.replace("{", f"pipeline_stage_{job}_").replace("}", ""))
        return cursor.fetchall()


@pytest.mark.parametrize("backward", [False, True], ids=["live", "as history"])
def test_chunks_make_no_difference(job, backward):
    load(job, backward=backward)
    expected = content()
    assert asked(packs_done, job) == [PACK] and asked(events_done, job) == len(expected["events"]) > 500
    assert {row[-1] for row in expected["events"]} == ({-1} if backward else {-1, 1})
    for size in (7, 100):
        begin_anew(job)
        load(job, backward=backward, chunk=size)
        assert content() == expected, size


def test_a_pack_that_is_loaded_is_not_loaded_again(job):
    load(job)
    loaded, rooms = content(), list(ImportedRoom.objects.values())
    load(job)
    assert content() == loaded and list(ImportedRoom.objects.values()) == rooms
    assert staged(job, "SELECT line FROM {event} UNION ALL SELECT line FROM {broken}") == []


def test_an_event_whose_id_a_server_chose_for_another_room_is_known(job):
    """Events of rooms that are new here are not looked up, but for one whose ID is taken after all."""
    load(job)
    taken = Event.objects.filter(type="m.room.message").latest("stream_ordering")
    loaded = {row[0] for row in content()["json"]}
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE taken AS SELECT * FROM events_event WHERE event_id = %s", [taken.event_id])
    begin_anew(job)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            f"{CHANGE_FACTS}; UPDATE taken SET room_id = '!named:a.test'; INSERT INTO events_event TABLE taken"
        )
        cursor.execute("DROP TABLE taken")
    load(job)
    assert {row[0] for row in content()["json"]} == loaded - {taken.event_id}
    assert Event.objects.get(pk=taken.pk).room_id == "!named:a.test"
    assert staged(job, "SELECT reason, detail FROM {broken}") == [
        ("wrong-event-id", f"another room has an event with the ID {taken.event_id}")
    ]
    assert asked(packs_done, job) == [PACK]


@pytest.mark.parametrize("is_here", [True, False])
def test_rooms_that_cannot_be_loaded_are_put_aside_but_for_what_is_here(job, monkeypatch, is_here):
    """Another transaction stores a room with one event, after the pack's task asked; or the room is blocked."""
    lines = event_lines("v9_restricted")
    whole = module.load_in

    def late(cursor, work, pack, step):
        room_id = next(iter(pack.members()))
        cursor.execute("INSERT INTO events_room (room_id, room_version) VALUES (%s, '9')", [room_id])
        if is_here:
            return whole(cursor, work, pack, step)
        done = whole(cursor, work, pack, step)
        cursor.execute("DELETE FROM events_room WHERE room_id = %s", [room_id])
        return done

    monkeypatch.setattr(module, "load_in", late)
    load(job, FILES[3:])
    found = staged(job, "SELECT source, line, reason, detail FROM {broken} ORDER BY line")
    assert [(source, line) for source, line, *_ in found] == [(0, n) for n in range(1, len(lines) + 1)]
    reason, words = ("room-known", "came to be") if is_here else ("room-purged", "purge room --unblock")
    assert {reason} == {row[2] for row in found} and all(words in row[3] for row in found)
    assert ImportedRoom.objects.count() == 0 and Room.objects.count() == is_here


def test_lines_are_counted_once_and_broken_ones_stored_once(job, tmp_path):
    path = write_lines(tmp_path / "in", b"oops", *event_lines("v9_restricted"), b"again")
    for _ in range(2):
        with reading(job, [path]) as read:
            assert sum(batch.num_rows for batch in read_part_once(read, 0)) == len(event_lines("v9_restricted"))
    assert asked(lines_read, job) == len(event_lines("v9_restricted")) + 2
    assert staged(job, "SELECT source, line, reason FROM {broken}") == [(0, 1, "not-json"), (0, 39, "not-json")]


def test_progress_inside_a_large_room_is_told(job, monkeypatch):
    told = []
    plain = module._store_progress
    monkeypatch.setattr(module, "_store_progress", lambda *given: (plain(*given), told.append(asked(events_done, job))))
    load(job, FILES[:1], chunk=20)
    events = asked(events_done, job)
    assert told == sorted(told) and told[0] == 10 and events // 2 - 20 <= told[-1] <= events // 2
    assert events == len(content()["events"])


KILLED = """
from pipeline.importing import import_pack
from tests.pipeline import test_import_pack
plain = import_pack._store_progress
def note(work, number, events):
    plain(work, number, events)
    if events > 40:
        os.kill(os.getpid(), signal.SIGKILL)
import_pack._store_progress = note
test_import_pack.load(int(sys.argv[1]), chunk=20)
"""


def test_a_worker_killed_in_the_middle_of_a_large_room_leaves_nothing_but_its_progress(job, run_script):
    killed = run_script(KILLED, str(job), timeout=2 * DEADLINE_SECONDS)
    assert killed.returncode == -9, killed.stderr
    wait_until(lambda: not sessions("replsite spark%"))
    assert asked(packs_done, job) == [] and not any(content().values()) and asked(events_done, job) > 20
    load(job, chunk=20)
    again = content()
    begin_anew(job)
    load(job)
    assert again == content()
