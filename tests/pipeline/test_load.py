"""Loading frames of rooms: the tables are those of an import, whatever is loaded twice or at once."""

from __future__ import annotations

import pytest

from events.format.strict_json import decode_event
from events.integrity.repair import check_room
from pipeline import ROOM_FRAMES, differences, read_events, stored_rooms, work_out_rooms
from pipeline.errors import RoomsKnown, SparkFailed
from pipeline.frames import work_out_rooms as module
from pipeline.loading import load as driver
from pipeline.models import ImportedRoom, Job
from streams.db.driver import dsn
from tests.pipeline.frames import computed, stored
from tests.pipeline.imports import SHIPPED, bare_room, content, run_import, write_lines
from tests.pipeline.loads import run_load
from tests.support.emptying import empty_tables
from tests.support.made_rooms import BOB, public_room

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("spark")]

SUMMARIES = (
    "SELECT room_id, name, alias, words, events, size, joined, invited, active_at FROM events_roomsummary ORDER BY 1"
)
LEDGER = "SELECT room_id, imported, rejected, unresolved FROM pipeline_importedroom ORDER BY 1"
DROPPED = "SELECT cache_name, keys FROM streams_cacheinvalidation ORDER BY keys"


def everything(rows):
    """What is in all tables that both ways write."""
    return content() | {sql: rows(sql) for sql in (SUMMARIES, LEDGER, DROPPED)}


@pytest.mark.scenario
@pytest.mark.parametrize("paths", SHIPPED)
def test_the_shipped_rooms_are_stored_as_an_import_stores_them(spark, rows, monkeypatch, paths):
    run_import(*paths)
    imported = everything(rows)
    frames = {name: stored(name) for name in ROOM_FRAMES}
    empty_tables()
    monkeypatch.setattr(module, "EVENTS_PER_PACK", 500)
    worked_out = work_out_rooms(read_events(spark, paths).events).persist()
    loaded = run_load(worked_out)
    assert {name: stored(name) for name in ROOM_FRAMES} == frames
    found = everything(rows)
    for name, values in imported.items():
        assert found[name] == values, name
    assert (loaded.rooms, loaded.events) == (len(imported["rooms"]), len(imported["events"])) and not loaded.left_out
    for name in ROOM_FRAMES:
        assert computed(worked_out, name) == frames[name], name
    with stored_rooms(spark, dsn()) as read_back:
        assert differences(worked_out, read_back).count() == 0
    worked_out.unpersist()
    assert Job.objects.first().summary["events"] == loaded.events


@pytest.mark.parametrize("as_history", [False, True], ids=["live", "as history"])
def test_gaps_given_positions_and_history_are_stored_as_an_import_stores_them(spark, tmp_path, as_history):
    """Out of files, in which packs are not whole partitions."""
    rooms = [[{"json": event, "room_version": "2"} for event in bare_room(number, 12)] for number in range(1, 4)]
    gapped = [line | {"stream_ordering": 50 - n} for n, line in enumerate(rooms[1]) if n not in (2, 3, 7)]
    history = [line | {"stream_ordering": n - 40} for n, line in enumerate(rooms[2]) if n != 5]
    path = write_lines(tmp_path / "in", *rooms[0][6:], *gapped, *history, *rooms[0][:6])
    run_import(path, as_history=as_history)
    imported, frames = content(), {name: stored(name) for name in ROOM_FRAMES}
    empty_tables()
    worked_out = work_out_rooms(read_events(spark, [path]).events, as_history=as_history).keep(tmp_path / "rooms")
    loaded = run_load(worked_out)
    assert {name: stored(name) for name in ROOM_FRAMES} == frames and content() == imported
    assert loaded.events == len(imported["events"]) and bool(frames["timeline_gaps"]) != as_history


def test_who_left_before_the_first_live_event_is_cut_below_it(spark, tmp_path, rows):
    made = public_room("11")
    made.member(BOB, "join")
    made.member(BOB, "leave")
    old = len(made.events)
    made.message()
    path = write_lines(
        tmp_path / "in",
        *(
            {"json": decode_event(event.json), "room_version": "11", "stream_ordering": n - old if n < old else n}
            for n, event in enumerate(made.events)
        ),
    )
    run_import(path)
    assert rows("SELECT user_id, first, last FROM events_eventvisibility WHERE kind = 'cut'") == [(BOB, 0, None)]
    report = check_room(made.room_id)
    assert report.clean, report.differences
    imported = content()
    empty_tables()
    worked_out = work_out_rooms(read_events(spark, [path]).events)
    assert run_load(worked_out).events == len(made.events) and content() == imported
    with stored_rooms(spark, dsn()) as read_back:
        assert differences(worked_out, read_back).count() == 0


def test_rooms_that_are_stored_are_refused_before_anything_is(spark, tmp_path, rows):
    path = write_lines(tmp_path / "in", *bare_room(1, 5), *bare_room(2, 5))
    worked_out = work_out_rooms(read_events(spark, [path]).events)
    rows("INSERT INTO events_room (room_id, room_version) VALUES ('!made2:example.org', '2') RETURNING 1")
    with pytest.raises(RoomsKnown, match=r"1 of 2 rooms are stored already: !made2:example\.org\. Nothing was loaded"):
        run_load(worked_out)
    assert rows("SELECT count(*) FROM events_event") == [(0,)] and Job.objects.get().state == "failed"
    assert not worked_out.bundles.storageLevel.useDisk


def jobs_of_spark(spark):
    """The number of Spark jobs of the newest job."""
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(f"replsite job {Job.objects.latest('pk').pk}"))


def test_rows_in_files_are_read_once_by_the_tasks_that_load_them(spark, tmp_path):
    path = write_lines(tmp_path / "in", *bare_room(1, 5), *bare_room(2, 5))
    kept = work_out_rooms(read_events(spark, [path]).events).keep(tmp_path / "rooms")
    assert run_load(kept).rooms == 2
    assert jobs_of_spark(spark) == 1


def killed_before_commit(marker, *, always):
    """Tasks of which one kills its process before its commit, once or in each attempt."""

    def task(work):
        def load_them(batches):
            import os
            import signal
            from functools import partial
            from pathlib import Path

            from pipeline.loading import load_pack as loading

            def step(name):
                if name == "noted":
                    Path(marker).touch()
                    os.kill(os.getpid(), signal.SIGKILL)

            some = list(batches)
            if some and some[0].column("pack")[0].as_py() == 1 and (always or not Path(marker).exists()):
                loading.load_pack = partial(loading.load_pack, step=step)
            return loading.load_packs(work, iter(some))

        return load_them

    return task


@pytest.mark.parametrize(
    "always", [False, pytest.param(True, marks=pytest.mark.scenario)], ids=["once", "in each attempt"]
)
def test_what_a_killed_worker_leaves_is_loaded_by_the_next_attempt_or_the_next_run(
    spark, tmp_path, monkeypatch, always
):
    monkeypatch.setattr(module, "EVENTS_PER_PACK", 20)
    path = write_lines(tmp_path / "in", *(event for number in range(1, 5) for event in bare_room(number, 30 - number)))
    worked_out = work_out_rooms(read_events(spark, [path]).events).persist()
    expected = {name: computed(worked_out, name) for name in ROOM_FRAMES}
    with monkeypatch.context() as patch:
        patch.setattr(driver, "_task", killed_before_commit(str(tmp_path / "killed"), always=always))
        if always:
            with pytest.raises(SparkFailed):
                run_load(worked_out)
            assert ImportedRoom.objects.count() < 4
        else:
            loaded = run_load(worked_out)
    assert (tmp_path / "killed").exists()
    if always:
        loaded = run_load(worked_out, resume=True)
    assert (loaded.rooms, loaded.events, loaded.left_out) == (4, len(expected["events"]), [])
    assert {name: stored(name) for name in ROOM_FRAMES} == expected
    worked_out.unpersist()
