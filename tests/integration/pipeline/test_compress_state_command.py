"""``compress_state`` as a command and as a job."""

import io
import json

import pytest
from django.core.management import CommandError, call_command

from events.maintenance.group_compaction import RoomCompaction, group_rows
from events.maintenance.purge_lock import purge_lock
from events.models import Event
from pipeline.models import Job, JobState
from pipeline.operations.compress_state import CompressState
from state.models import StateGroup
from streams.jobs.errors import JobCancelled
from streams.jobs.job_run import JobRun
from streams.jobs.run import queue_job, run_job
from tests.oracle.answers import parsed
from tests.support.foreign_groups import store_as
from tests.support.stored_rooms import store_room

pytestmark = pytest.mark.django_db(transaction=True)


def foreign(name="v9_restricted", first=2):
    room_id = store_room(parsed(name), first).room_id
    return room_id, store_as(room_id, "copied")


def run(*arguments):
    out = io.StringIO()
    call_command("room", "compress", *arguments, stdout=out, stderr=io.StringIO())
    return out.getvalue()


def outcome(*arguments):
    return json.loads(run(*arguments, "--json"))


def rows(room_id):
    return group_rows(room_id, "default").total


def test_a_dry_run_tells_the_figures_of_the_real_run_and_changes_nothing():
    room_id, stored = foreign()
    dry = outcome(room_id, "--dry-run")
    assert rows(room_id) == stored == dry["rows"][0]
    done = outcome(room_id)
    assert done == {**dry, "dry_run": False}
    assert (done["compressed"], done["events_moved"]) == (1, Event.objects.filter(state_group__isnull=False).count())
    assert rows(room_id) == done["rows"][1] < stored


def test_all_rooms_are_compressed_and_those_that_would_not_shrink_are_skipped():
    room_id, _ = foreign()
    other = store_room(parsed("v11_redactions"), 5_000).room_id
    before = rows(other)
    done = outcome("--all")
    assert (done["rooms"], done["compressed"], done["skipped"]) == (2, 1, 1)
    assert rows(other) == before
    assert outcome("--all")["skipped"] == 2, room_id


def test_a_room_that_would_save_too_little_is_skipped():
    room_id, stored = foreign()
    assert outcome(room_id, "--least-saving", "99")["skipped"] == 1
    assert rows(room_id) == stored


def test_it_says_what_it_did():
    room_id, stored = foreign()
    assert f"1 of 1 rooms shrank: {stored:,} -> " in run(room_id)
    assert "0 of 1 rooms would shrink" in run(room_id, "--dry-run")


def test_the_job_has_figures_before_and_after():
    room_id, stored = foreign()
    run(room_id)
    job = Job.objects.get(kind=CompressState.name)
    assert job.state == JobState.DONE
    assert sum(job.before.values()) == stored
    assert sum(job.after.values()) == rows(room_id)


def test_it_can_be_queued():
    room_id, stored = foreign()
    queue_job(CompressState.name, {"rooms": [room_id]}, by="a timer")
    call_command("runjobs", "--once", stdout=io.StringIO(), stderr=io.StringIO())
    assert Job.objects.get().state == JobState.DONE
    assert rows(room_id) < stored


def test_a_cancelled_job_leaves_no_more_rows_than_before(monkeypatch):
    room_id, stored = foreign()
    monkeypatch.setattr(JobRun, "step", lambda _run: (_ for _ in ()).throw(JobCancelled("by a test")))
    with pytest.raises(JobCancelled):
        run_job(CompressState.name, {"rooms": [room_id]}, stream=io.StringIO())
    assert rows(room_id) <= stored


def test_a_room_that_is_being_purged_is_left_and_told():
    room_id, stored = foreign()
    with purge_lock(room_id, "default"), pytest.raises(CommandError, match="left as they are") as raised:
        run(room_id)
    assert raised.value.returncode == 1
    assert rows(room_id) == stored


def test_a_room_whose_writers_use_old_groups_again_and_again_is_told(monkeypatch):
    """After each pass, before the old groups are deleted, an event has one of them again."""
    room_id, _ = foreign()
    old = dict(Event.objects.filter(state_group__isnull=False).values_list("pk", "state_group"))
    last, real, passes = max(old), RoomCompaction.clean_up, []

    def clean_up(work):
        passes.append(Event.objects.get(pk=last).state_group)
        Event.objects.writable().filter(pk=last).update(state_group=old[last])
        return real(work)

    monkeypatch.setattr(RoomCompaction, "clean_up", clean_up)
    done = outcome(room_id)
    assert len(passes) == 3 and old[last] not in passes
    assert done["unfinished"] == [room_id] and done["compressed"] == 1
    assert list(CompressState().lines(done))[1:] == [
        f"{room_id}: events came to use old state groups meanwhile, which stay; run it again when less is stored"
    ]
    monkeypatch.undo()
    assert outcome(room_id, "--least-saving", "0")["unfinished"] == []
    assert not StateGroup.objects.filter(pk=old[last]).exists()


def test_a_damaged_room_does_not_hold_up_the_others():
    room_id, _ = foreign()
    broken, _ = foreign("v11_redactions", 5_000)
    second = StateGroup.objects.filter(room_id=broken, prev_group__isnull=False).order_by("id").first()
    StateGroup.objects.filter(pk=second.prev_group).delete()
    with pytest.raises(CommandError) as raised:
        run("--all")
    assert raised.value.returncode == 1
    assert RoomCompaction(room_id, "default").planned.saving == 0
    job = Job.objects.get()
    assert job.summary["compressed"] == 1
    assert "room check" in job.summary["failed"][broken]


def test_a_room_that_is_not_here_is_told():
    with pytest.raises(CommandError, match="There is no room") as raised:
        run("!nobody:a.test")
    assert raised.value.returncode == 2
