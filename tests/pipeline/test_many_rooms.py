"""Many rooms checked and mended on Spark: the same answers as one by one in process, and whoever keeps something is told."""

import io
import json
import signal
import subprocess
import sys

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.utils import timezone

from events.integrity.repair import check_room
from events.persist.room_cache import clear_caches
from pipeline.errors import JavaMissing
from pipeline.maintenance import many_rooms, room_progress, room_tasks
from pipeline.maintenance.many_rooms import announce_repaired
from pipeline.maintenance.resync_executor import RoomsWork, resync_rooms
from pipeline.maintenance.room_progress import RoomProgress
from pipeline.maintenance.room_tasks import SizedRoom, pack
from pipeline.models import ComparedRooms, Job, JobState, MendedRoom
from pipeline.operations.resync_and_room_mend import Resync
from pipeline.spark import site_session as site
from streams.catalog.models import CacheInvalidation
from streams.jobs.errors import JobCancelled, UnusableArguments
from streams.jobs.run import run_job
from tests.integration.events import test_room_repair as damage
from tests.integration.events.test_live_is_bulk import generated
from tests.support.persisted_rooms import persist_all
from tests.support.session import PROJECT
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
LOCAL = "local[2]"
KINDS = [
    damage.wrong_delta, damage.missing_group, damage.extra_range, damage.lost_extremity, damage.missing_current_state,
    damage.lost_edge, damage.wrong_columns, damage.lost_redacted_by, damage.wrong_room_flags,
]  # fmt: skip


def resync(*arguments):
    """The object printed, and the exit status."""
    out, status = io.StringIO(), 0
    try:
        call_command("resync", *arguments, "--json", stdout=out, stderr=io.StringIO())
    except CommandError as error:
        status = error.returncode
    return json.loads(out.getvalue() or "null"), status


def made_room(number):
    made = generated(3, room_id=f"!room{number}:a.test")
    persist_all(made.events, 100)
    return made.room_id


def plant(kind, room_id):
    kind(room_id)
    clear_caches()


def told():
    return CacheInvalidation.objects.count()


def test_planted_corruption_is_found_and_mended_on_spark_as_in_process(spark):
    rooms = [made_room(number) for number in range(len(KINDS))]
    before = {room_id: damage.answers(room_id) for room_id in rooms}
    for kind, room_id in zip(KINDS, rooms, strict=True):
        plant(kind, room_id)
    alone = [check_room(room_id) for room_id in rooms]
    assert not any(report.clean for report in alone)
    dry, status = resync("rooms", "--all", "--dry-run", "--master", LOCAL)
    assert (status, dry["rooms"], dry["rooms_wrong"]) == (1, len(rooms), len(rooms))
    assert sum(dry["before"].values()) == sum(sum(report.totals.values()) for report in alone) == dry["left"]
    facts = told()
    found, status = resync("rooms", "--all", "--master", LOCAL)
    assert (status, found["before"], found["after"], found["left"]) == (0, dry["before"], {}, 0)
    assert {room_id: damage.answers(room_id) for room_id in rooms} == before
    assert all(check_room(room_id).clean for room_id in rooms)
    assert told() > facts and not MendedRoom.objects.exists()


def test_named_rooms_on_spark_and_one_that_is_unknown(spark):
    rooms = [made_room(number) for number in range(3)]
    for room_id in rooms:
        plant(damage.lost_extremity, room_id)
    found, status = resync("extremities", *rooms[:2], "!no:x", "--master", LOCAL)
    assert (status, found["rooms"], found["unknown"]) == (2, 2, ["!no:x"])
    assert [check_room(room_id).clean for room_id in rooms] == [True, True, False]


def test_only_what_was_asked_for_is_mended_on_spark(spark):
    room_id = made_room(0)
    for kind in (damage.wrong_delta, damage.lost_extremity):
        plant(kind, room_id)
    assert resync("extremities", room_id, "--master", LOCAL)[1] == 0
    assert {subject for subject, _ in check_room(room_id).totals} == {"state"}


def test_cancelled_job_ends_between_two_answers_and_keeps_what_was_mended(spark, monkeypatch):
    rooms = [made_room(number) for number in range(4)]
    for room_id in rooms:
        plant(damage.lost_extremity, room_id)
    monkeypatch.setattr(room_tasks, "_ROOMS_PER_TASK", 1)
    monkeypatch.setattr("streams.jobs.job_run._CHECK_SECONDS", 0.0)
    monkeypatch.setattr(many_rooms, "announce_repaired", lambda using: Job.objects.update(cancel_asked_by="ann"))
    with pytest.raises(JobCancelled):
        run_job("resync", {"what": "rooms", "master": LOCAL}, stream=io.StringIO())
    assert Job.objects.get().state == JobState.CANCELLED
    monkeypatch.undo()
    assert resync("rooms", "--all")[1] == 0 and all(check_room(room_id).clean for room_id in rooms)


# --- without Spark ----------------------------------------------------------------------------------------------------


def test_what_a_killed_run_mended_is_told_by_the_next(database_url):
    """The task's transaction stands, the driver never heard of it."""
    room_id = made_room(0)
    plant(damage.missing_current_state, room_id)
    (answer,) = resync_rooms(RoomsWork(database_url, "rooms", mend=True), [room_id])
    assert answer.before.totals and answer.after.clean
    row, facts = MendedRoom.objects.get(), told()
    assert (row.room_id, row.user_ids, str(row)) == (room_id, [damage.USERS[0]], room_id)
    assert resync("rooms", room_id)[1] == 0
    assert told() > facts and not MendedRoom.objects.exists()


KILLED = """
import sys
from pipeline.maintenance.resync_executor import RoomsWork, resync_rooms
resync_rooms(RoomsWork(sys.argv[1], "rooms", mend=True), sys.argv[2:])
"""


def test_a_task_that_is_killed_leaves_rooms_mended_or_as_they_were(database_url):
    """It is killed while it waits for the lock of the second room; the first one stays mended, and is told."""
    rooms = [made_room(number) for number in range(3)]
    for room_id in rooms:
        plant(damage.missing_current_state, room_id)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT FROM events_room WHERE room_id = %s FOR UPDATE", [rooms[1]])
        task = subprocess.Popen([sys.executable, "-c", KILLED, database_url, *rooms], cwd=PROJECT)
        try:
            wait_until(MendedRoom.objects.exists)
        finally:
            task.kill()
            task.wait()
    assert [check_room(room_id).clean for room_id in rooms] == [True, False, False]
    facts = told()
    found, status = resync("rooms", "--all")
    assert (status, found["rooms_wrong"], found["left"]) == (0, 2, 0)
    assert told() > facts and not MendedRoom.objects.exists()


def test_a_room_is_told_once_however_many_tell():
    MendedRoom.objects.bulk_create(MendedRoom(room_id=f"!{number}:x", user_ids=[]) for number in range(3))
    assert [announce_repaired("default"), announce_repaired("default")] == [3, 0]


def test_task_that_is_repeated_finds_nothing_to_do(database_url):
    room_id, work = made_room(0), RoomsWork(database_url, "rooms", mend=True)
    plant(damage.wrong_delta, room_id)
    first, second = resync_rooms(work, [room_id]), resync_rooms(work, [room_id, "!no:x"])
    assert first[0].before.totals and first[0].after.clean
    assert second[0].before.clean and second[0].before is second[0].after and second[1].before is None


def test_task_that_only_checks_changes_nothing(database_url):
    room_id = made_room(0)
    plant(damage.missing_ranges, room_id)
    (answer,) = resync_rooms(RoomsWork(database_url, "rooms", mend=False), [room_id])
    assert answer.before.totals == check_room(room_id).totals != {} and answer.before is answer.after


def test_spark_is_taken_for_many_events_and_done_without_where_there_is_no_java(monkeypatch):
    rooms = [made_room(number) for number in range(2)]
    asked = []

    def no_java(name, master, **told):
        asked.append(master)
        raise JavaMissing("There is no Java.")

    monkeypatch.setattr(site, "site_session", no_java)
    assert resync("rooms", "--all")[1] == 0 and asked == []
    monkeypatch.setattr(many_rooms, "EVENTS_IN_PROCESS", 10)
    plant(damage.lost_extremity, rooms[0])
    said = io.StringIO()
    found = run_job("resync", {"what": "rooms"}, stream=said)
    assert asked == [None] and "There is no Java. Going on in this process." in said.getvalue()
    assert (found["rooms"], found["rooms_wrong"], found["left"]) == (2, 1, 0)
    assert resync("rooms", "--all", "--master", LOCAL) == (None, 1)  # it was asked for


# --- killed, and gone on with -----------------------------------------------------------------------------------------

DIES = """
from pipeline.maintenance import many_rooms
from pipeline.maintenance import room_progress
from streams.jobs.run import run_job

work = many_rooms.resync_room
def until(room_id, *rest, **more):
    if room_id == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)
    return work(room_id, *rest, **more)
many_rooms.resync_room, room_progress._WRITE_SECONDS = until, 0.0
many_rooms._ROOMS_AT_ONCE = int(sys.argv[2])
run_job("resync", {"what": "rooms"})
"""


def rooms_worked_at(monkeypatch):
    worked = []
    work = many_rooms.resync_room
    monkeypatch.setattr(
        many_rooms, "resync_room", lambda room, *more, **told: worked.append(room) or work(room, *more, **told)
    )
    return worked


@pytest.mark.parametrize("at_once", [100, 2])
def test_a_run_that_is_killed_goes_on_with_the_rooms_that_are_left(run_script, monkeypatch, at_once):
    rooms = [made_room(number) for number in range(5)]
    for room_id in rooms:
        plant(damage.lost_extremity, room_id)
    done = run_script(DIES, rooms[3], str(at_once))
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [check_room(room_id).clean for room_id in rooms] == [True] * 3 + [False] * 2
    worked = rooms_worked_at(monkeypatch)
    monkeypatch.setattr(many_rooms, "_ROOMS_AT_ONCE", at_once)
    found, status = resync("rooms", "--all", "--resume")
    assert (worked, status) == (rooms[3:], 0)
    assert (found["rooms"], found["rooms_wrong"], found["left"], found["events"]) == (5, 5, 0, 5 * 53)
    assert found["before"] == {"events_forwardextremity": 5} and len(found["differences"]) == 5
    assert all(check_room(room_id).clean for room_id in rooms)
    assert Job.objects.get().state == JobState.DONE and not ComparedRooms.objects.exists()


def test_a_queued_run_goes_on_by_itself_after_its_process_was_killed(run_script, monkeypatch):
    rooms = [made_room(number) for number in range(3)]
    done = run_script(DIES, rooms[2], "100")
    assert done.returncode == -signal.SIGKILL, done.stderr
    Job.objects.update(queued_at=timezone.now(), attempts=1)
    worked = rooms_worked_at(monkeypatch)
    call_command("runjobs", "--once", stdout=io.StringIO())
    assert worked == rooms[2:] and Job.objects.get().summary["rooms"] == 3


def test_a_new_run_begins_with_the_first_room_and_so_does_one_with_other_options(run_script, monkeypatch):
    rooms = [made_room(number) for number in range(2)]
    assert run_script(DIES, rooms[1], "100").returncode == -signal.SIGKILL
    worked = rooms_worked_at(monkeypatch)
    resync("rooms", "--all")
    resync("rooms", "--all", "--dry-run", "--resume")
    resync("rooms", *rooms, "--resume")
    assert worked == rooms * 3
    assert resync("rooms", "--all", "--resume")[0]["rooms"] == 2 and worked == [*rooms * 3, rooms[1]]


def test_what_is_written_down_is_bounded_and_only_the_newest_row_has_figures(monkeypatch):
    monkeypatch.setattr(room_progress, "_WRITE_SECONDS", 0.0)
    job = Job.objects.create(kind="resync")
    progress = RoomProgress(job.pk, "default")
    progress.counts_by(lambda: {"rooms": 1})
    for number in range(4):
        progress.add(f"!{number}")
    assert [row.counted for row in ComparedRooms.objects.all()] == [None] * 3 + [{"rooms": 1}]
    assert "!3" in RoomProgress(job.pk, "default") and "!4" not in RoomProgress(job.pk, "default")
    progress.all_done("!9")
    row = ComparedRooms.objects.get()
    assert (row.through, row.room_ids, str(row)) == ("!9", [], f"job {job.pk}: 0 rooms behind !9")
    assert RoomProgress(job.pk, "default").through == "!9"


def test_rooms_are_written_down_at_most_every_second():
    progress = RoomProgress(Job.objects.create(kind="resync").pk, "default")
    for number in range(100):
        progress.add(f"!{number}")
    assert not ComparedRooms.objects.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        {"what": "state", "master": "nowhere"},
        {"what": "state", "master": "sc://x"},
        {"what": "caches", "master": LOCAL},
        {"what": "state", "rooms": ["!a\0b"]},
        {"what": "state", "rooms": "!a:b"},
        {"what": "nothing"},
    ],
)
def test_unusable_arguments(arguments):
    with pytest.raises(UnusableArguments):
        Resync().check(arguments)


def test_rooms_are_given_out_part_by_part(monkeypatch):
    rooms = [made_room(number) for number in range(5)]
    monkeypatch.setattr(many_rooms, "_ROOMS_AT_ONCE", 2)
    assert resync("rooms", "--all")[0]["rooms"] == 5
    assert resync("rooms", *rooms, *rooms)[0]["rooms"] == 5
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM events_event")
        assert resync("rooms", "--all")[0]["events"] == cursor.fetchone()[0]


def test_tasks_are_of_about_equal_size_with_the_largest_first():
    rooms = [SizedRoom(f"!{number}", events) for number, events in enumerate([3, 50, 2, 9, 1])]
    assert [[room.size for room in task] for task in pack(rooms, 10)] == [[50], [9], [3, 2, 1]]
    assert list(pack([], 10)) == [] and len(list(pack([SizedRoom("!x", 0)] * 1_001, 10))) == 3


# --- room check -------------------------------------------------------------------------------------------------------


def check(*arguments):
    """The lines printed, and the exit status."""
    out, status = io.StringIO(), 0
    try:
        call_command("room", "check", *arguments, stdout=out, stderr=io.StringIO())
    except SystemExit as end:
        status = end.code
    except CommandError as error:
        status = error.returncode
    return out.getvalue().splitlines(), status


def test_all_rooms_are_checked_on_spark_and_nothing_is_changed(spark):
    rooms = [made_room(number) for number in range(3)]
    assert check("--all", "--master", LOCAL) == (["3 rooms, 159 events: 0 rooms differ, in 0 places"], 0)
    plant(damage.lost_extremity, rooms[1])
    lines, status = check("--all", "--master", LOCAL)
    assert status == 1 and lines[0] == f"{rooms[1]}: 53 events, 1 differences"
    assert lines[-1] == "3 rooms, 159 events: 1 rooms differ, in 1 places"
    assert Job.objects.latest("pk").arguments["dry_run"] and not check_room(rooms[1]).clean


def test_several_rooms_are_checked_as_a_job():
    rooms = [made_room(number) for number in range(2)]
    plant(damage.wrong_delta, rooms[0])
    lines, status = check(*rooms, "--json")
    found = {one["room_id"]: one["clean"] for one in map(json.loads, lines)}
    assert (found, status) == ({rooms[0]: False, rooms[1]: True}, 1)
    assert check(rooms[1], "!no:x")[1] == 2 and check("--all", rooms[0]) == check() == ([], 2)
