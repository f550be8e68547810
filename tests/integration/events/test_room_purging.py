"""Deleting rooms whole: nothing of them is left in any table, nobody else is touched, and an archive brings them back."""

import io
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from events.errors import UnknownRoom
from events.maintenance.purge_lock import purge_lock
from events.models import CurrentState, Event, EventAuth, EventEdge, EventJson, PurgedRoom, Room
from events.operations import purge_room
from events.reading.timeline import timeline
from pipeline.archive.format import read_manifest
from pipeline.models import Job
from pipeline.operations import restore as restore_kind
from state.models import StateGroup, StateGroupDelta
from streams.catalog.models import CacheInvalidation, Receipt
from tests.integration.events.test_purging import check_groups, states, talked_room
from tests.integration.pipeline.test_archive import purge
from tests.integration.pipeline.test_restore import assert_same, everything, found_wrong, restore, stored
from tests.support.made_rooms import BOB, MadeRoom
from tests.support.persisted_rooms import current_state, incoming, persist, persist_all

pytestmark = pytest.mark.django_db(transaction=True)
_COLUMNS = """
SELECT c.table_name FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name)
WHERE c.column_name = 'room_id' AND t.table_type = 'BASE TABLE' AND c.table_schema = 'public'
"""
_ROWS_READ = """
SELECT sum(seq_tup_read + idx_tup_fetch)::int FROM pg_stat_user_tables WHERE relname IN ('events_event', 'events_eventedge')
"""
#: What was done to rooms is remembered.
_REMEMBERED = {"events_purgedroom", "pipeline_importedroom", "pipeline_mendedroom"}


@pytest.fixture(autouse=True)
def _server(settings):
    settings.REPLSITE_SERVER_NAME = "nobody.test"


def tables_that_name(room_id):
    """Every table with a row of the room."""
    found = set()
    with connection.cursor() as cursor:
        cursor.execute(_COLUMNS)
        for (table,) in cursor.fetchall():
            cursor.execute(f'SELECT EXISTS (SELECT FROM "{table}" WHERE room_id = %s)', [room_id])
            if cursor.fetchone()[0]:
                found.add(table)
    return found


def surround(room_id):
    """Rows of a room in other tables."""
    Receipt.objects.writable().bulk_create(
        [
            Receipt(stream_id=5, instance_name="w", room_id=room_id, receipt_type="m.read", user_id=BOB, event_id="$x"),
        ]
    )


# --- gone -------------------------------------------------------------------------------------------------------------


def test_nothing_is_left_in_any_table(monkeypatch):
    monkeypatch.setattr(purge_room, "_EVENTS_PER_TRANSACTION", 3)
    monkeypatch.setattr(purge_room, "_GROUPS_PER_TRANSACTION", 2)
    made, other = talked_room(5), talked_room(3, "!other:a.test")
    surround(made.room_id)
    kept = states([event.event_id for event in other.events])
    foreseen = purge("room", made.room_id, "--dry-run")
    assert tables_that_name(made.room_id) > {"events_event", "state_stategroup", "streams_receipt"}
    outcome = purge("room", made.room_id)
    assert {table: before for table, (before, _) in outcome["tables"].items()} == {
        table: before for table, (before, _) in foreseen["tables"].items()
    }
    assert {after for _, after in [*outcome["tables"].values(), *foreseen["tables"].values()]} == {0}
    assert tables_that_name(made.room_id) == {"events_purgedroom"}
    others = {event.event_id for event in other.events}
    for model in (EventJson, EventAuth, EventEdge):
        assert set(model.objects.values_list("event_id", flat=True)) <= others
    groups = set(StateGroup.objects.values_list("id", flat=True))
    assert set(StateGroupDelta.objects.values_list("state_group", flat=True)) <= groups
    assert states([event.event_id for event in other.events]) == kept
    check_groups(other.room_id)


def test_others_are_told_and_the_room_is_gone_at_once():
    made = talked_room(3)
    told = CacheInvalidation.objects.count()
    one = purge_room.RoomPurge(made.room_id, "default")
    one.start("ann", block=False, force=False)
    caches = set(CacheInvalidation.objects.order_by("stream_id")[told:].values_list("cache_name", flat=True))
    assert "stored_event" in caches and len(caches) > 1
    assert not Room.objects.exists() and not CurrentState.objects.exists()
    with pytest.raises(UnknownRoom):
        timeline(made.room_id)
    assert Event.objects.count() == len(made.events)


def test_the_room_may_be_made_again_afterwards():
    made = talked_room(3)
    purge("room", made.room_id)
    outcome = persist([incoming(event) for event in made.events])
    assert (len(outcome.stored), outcome.refused) == (len(made.events), [])
    assert current_state(made.room_id) == made.state_after(made.events[-1].event_id)


# --- refused ----------------------------------------------------------------------------------------------------------


def test_local_users_have_to_leave_first(settings):
    settings.REPLSITE_SERVER_NAME = "a.test"
    made = talked_room(2)
    before = Event.objects.count()
    for more in ((), ("--dry-run",)):
        with pytest.raises(CommandError, match="Users of this server are joined") as raised:
            purge("room", made.room_id, *more)
        assert raised.value.returncode == 1
    assert Event.objects.count() == before and Room.objects.exists()
    assert purge("room", made.room_id, "--force")["tables"]["events_event"] == [before, 0]


def test_unknown_rooms_and_one_at_a_time():
    made = talked_room(1)
    with pytest.raises(CommandError, match="There is no room"):
        purge("room", "!nowhere:a.test")
    with purge_lock(made.room_id, "default"), pytest.raises(CommandError, match="is being purged already"):
        purge("room", made.room_id)


def test_a_blocked_room_is_not_made_again():
    made = talked_room(2)
    purge("room", made.room_id, "--block")
    refused = persist([incoming(event) for event in made.events]).refused
    assert {one.error.reason.value for one in refused} == {"unknown-room"}
    assert not Room.objects.exists() and not Event.objects.exists()
    out = io.StringIO()
    call_command("purge", "room", made.room_id, "--unblock", stdout=out)
    assert "may be made again" in out.getvalue()
    with pytest.raises(CommandError, match="is not blocked"):
        call_command("purge", "room", made.room_id, "--unblock")
    assert not persist([incoming(event) for event in made.events]).refused


# --- stopped, and beside others ---------------------------------------------------------------------------------------


def test_stopped_and_run_again(monkeypatch, tmp_path):
    """Killed at any call of the database: ``test_jobs_killed_anywhere``."""
    made, done, plain = talked_room(15), [], purge_room.RoomPurge._step

    def step(self, *arguments):
        found = plain(self, *arguments)
        done.append(1)
        if len(done) == 3:
            raise OSError("stopped")
        return found

    monkeypatch.setattr(purge_room, "_EVENTS_PER_TRANSACTION", 3)
    monkeypatch.setattr(purge_room.RoomPurge, "_step", step)
    with pytest.raises(CommandError, match="stopped"):
        purge("room", made.room_id)
    monkeypatch.undo()
    assert 0 < Event.objects.count() < len(made.events) and not Room.objects.exists()
    refused = persist([incoming(event) for event in made.events]).refused
    assert refused and not Room.objects.exists()  # nobody makes it again before the rest is gone
    with pytest.raises(CommandError, match="cannot be archived any more"):
        purge("room", made.room_id, "--archive", str(tmp_path))
    purge("room", made.room_id)
    assert tables_that_name(made.room_id) == {"events_purgedroom"}
    assert PurgedRoom.objects.get().finished_at is not None
    assert not persist([incoming(event) for event in made.events]).refused


# --- archived and back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["v11_gap", "v9_restricted"])
def test_an_archived_room_comes_back_whole(name, tmp_path):
    room_id = stored(name)
    before, wrong = everything(room_id), found_wrong(room_id)
    outcome = purge("room", room_id, "--archive", str(tmp_path))
    assert tables_that_name(room_id) == {"events_purgedroom"}
    found = restore(outcome["archive"]["folder"])
    assert (found["room"], found["restored"]) == ("back", len(before["events"]))
    assert_same(everything(room_id), before)
    assert found_wrong(room_id) == wrong
    check_groups(room_id)
    assert not PurgedRoom.objects.exists()


def rows_read():
    """How many rows of events and edges were read since the statistics began."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute(_ROWS_READ)
        return cursor.fetchone()[0]


def test_a_room_comes_back_by_index_when_its_tables_were_found_empty(tmp_path):
    """Autovacuum has analyzed the tables after the purge, so their statistics say that joining them costs nothing."""
    made = talked_room(200)
    folder = purge("room", made.room_id, "--archive", str(tmp_path))["archive"]["folder"]
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE events_event, events_eventedge, events_timelinegap, events_forwardextremity")
    before = rows_read()
    restore(folder)
    assert (rows_read() - before) / len(made.events) < 20


def test_others_are_told_of_a_room_that_comes_back_at_the_end_only(tmp_path, monkeypatch):
    made = talked_room(6)
    folder = purge("room", made.room_id, "--archive", str(tmp_path))["archive"]["folder"]
    monkeypatch.setattr(restore_kind, "EVENTS_PER_TRANSACTION", 2)
    told = CacheInvalidation.objects.count()
    plain, seen = restore_kind.restore_events, []

    def restore_and_look(*arguments, **more):
        plain(*arguments, **more)
        seen.append(CacheInvalidation.objects.count())

    monkeypatch.setattr(restore_kind, "restore_events", restore_and_look)
    restore(folder)
    assert len(seen) > 3 and set(seen) == {told}  # a position that is reserved keeps followers waiting
    caches = CacheInvalidation.objects.order_by("stream_id")[told:].values_list("cache_name", flat=True)
    assert "stored_event" in caches and len(set(caches)) > 1


def test_a_room_that_came_back_goes_on(tmp_path):
    made = talked_room(3)
    folder = Path(purge("room", made.room_id, "--block", "--archive", str(tmp_path))["archive"]["folder"])
    assert read_manifest(folder).cut is None
    restore(folder)
    join, message = made.member(BOB, "join"), made.message(sender=BOB)
    assert not persist([incoming(join), incoming(message)]).refused
    assert current_state(made.room_id) == made.state_after(message.event_id)


def test_a_room_that_was_made_again_gets_the_rest_of_its_archive(tmp_path):
    made = talked_room(4)
    folder = Path(purge("room", made.room_id, "--archive", str(tmp_path))["archive"]["folder"])
    persist_all(made.events[:5])
    found = restore(folder)
    assert (found["here"], found["restored"], found["room"]) == (5, len(made.events) - 5, "was here")
    assert [entry.event_id for entry in timeline(made.room_id)] == [event.event_id for event in reversed(made.events)]
    assert current_state(made.room_id) == made.state_after(made.events[-1].event_id)


def test_a_room_that_changed_meanwhile_is_not_deleted(tmp_path):
    made = talked_room(2)
    one = purge_room.RoomPurge(made.room_id, "default")
    with pytest.raises(Exception, match="has changed since it was archived"):
        one.start("ann", block=False, force=False, positions=(1, 2))
    assert Room.objects.exists() and not PurgedRoom.objects.exists()


def test_words_for_people_and_the_job():
    made = MadeRoom("10")
    persist([incoming(event) for event in made.events])
    out = io.StringIO()
    call_command("purge", "room", made.room_id, stdout=out, stderr=io.StringIO())
    assert (
        ": the whole room with 2 events: deleted; no archive" in out.getvalue() and "events_event: " in out.getvalue()
    )
    job = Job.objects.latest("pk")
    assert (job.kind, job.state, job.after["events_event"]) == ("purge room", "done", 0)
