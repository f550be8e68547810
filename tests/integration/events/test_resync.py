"""``manage.py room check`` and ``resync``: what they say, what they mend, and that they may be called beside writers."""

import contextlib
import io
import json

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from events.declarations import EVENTS
from events.integrity.repair import check_room
from events.models import Event, EventVisibility, ForwardExtremity, Room
from events.persist.room_cache import clear_caches
from events.sending.send import create_room
from pipeline.models import Job
from streams.catalog.models import CacheInvalidation
from tests.integration.events.test_live_is_bulk import generated
from tests.integration.events.test_room_repair import (
    answers,
    lost_extremity,
    missing_current_state,
    missing_ranges,
    wrong_delta,
    wrong_redacted_by,
)
from tests.support.persisted_rooms import persist_all
from tests.support.room_talker import talkers
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
ANN, BOB = "@ann:site", "@bob:site"


def run(*arguments):
    """The object printed, and the exit status."""
    out, status = io.StringIO(), 0
    try:
        call_command(*arguments, "--json", stdout=out, stderr=io.StringIO())
    except SystemExit as end:
        status = end.code
    except CommandError as error:
        status = error.returncode
    return json.loads(out.getvalue() or "null"), status


def shown(*arguments):
    """The lines for a person."""
    out = io.StringIO()
    with contextlib.suppress(SystemExit, CommandError):
        call_command(*arguments, stdout=out, stderr=io.StringIO())
    return out.getvalue()


@pytest.fixture
def made():
    room = generated(2)
    persist_all(room.events, 100)
    return room


# --- room check -------------------------------------------------------------------------------------------------------


def test_clean_room(made):
    found, status = run("room", "check", made.room_id)
    assert (found["clean"], found["total"], found["differences"], status) == (True, 0, [], 0)
    assert shown("room", "check", made.room_id) == f"{made.room_id}: {len(made.events)} events, clean\n"


def test_differences_are_listed_and_what_mends_them_is_said(made):
    lost_extremity(made.room_id)
    with CaptureQueriesContext(connection) as queries:
        found, status = run("room", "check", made.room_id)
    assert not any(q["sql"].lstrip().upper().startswith(("UPDATE", "INSERT", "DELETE")) for q in queries)
    assert status == 1 and found["totals"] == {"extremities events_forwardextremity": 1}
    assert found["differences"][0]["table"] == "events_forwardextremity" and found["differences"][0]["stored"] is None
    assert f"1 in events_forwardextremity: resync extremities {made.room_id}" in shown("room", "check", made.room_id)


def test_list_is_bounded_and_totals_are_whole(made):
    ForwardExtremity.objects.bulk_create(
        ForwardExtremity(room_id=made.room_id, event_id=f"$extra{number}") for number in range(1_000)
    )
    found, _ = run("room", "check", made.room_id)
    assert len(found["differences"]) == 200 and found["total"] == 1_000


@pytest.mark.parametrize("room_id", ["!no:x", "!a\0:x"])
def test_unknown_room_is_an_unusable_argument(room_id):
    assert run("room", "check", room_id) == (None, 2)


# --- resync -----------------------------------------------------------------------------------------------------------


def test_every_subject_mends_its_part(made):
    before = answers(made.room_id)
    for damage in (wrong_delta, missing_current_state, wrong_redacted_by, lost_extremity, missing_ranges):
        damage(made.room_id)
    clear_caches()
    for subject in (
        "extremities",
        "state",
        "visibility",
    ):  # what is seen is not mended by a current state that is wrong
        dry, status = run("resync", subject, made.room_id, "--dry-run")
        assert status == 1 and dry["before"] == dry["after"] != {}
        found, status = run("resync", subject, "--all")
        assert status == 0 and (found["before"], found["after"], found["left"]) == (dry["before"], {}, 0)
        assert found["rooms_wrong"] == 1 and found["differences"]
    assert run("room", "check", made.room_id)[1] == 0 and answers(made.room_id) == before


def test_resync_is_a_job_with_figures(made):
    lost_extremity(made.room_id)
    found, _ = run("resync", "extremities", made.room_id)
    job = Job.objects.get()
    assert (job.kind, job.before, job.after) == ("resync", {"events_forwardextremity": 1}, {})
    assert job.summary == found and job.arguments["rooms"] == [made.room_id]


def test_clean_room_is_never_locked(made):
    with CaptureQueriesContext(connection) as queries:
        assert run("resync", "state", made.room_id)[1] == 0
    assert not any("FROM events_room WHERE" in q["sql"] and "FOR UPDATE" in q["sql"] for q in queries)


def test_caches_of_others_are_told(made):
    generation = Room.objects.get().content_generation
    missing_current_state(made.room_id)
    run("resync", "state", made.room_id)
    assert Room.objects.get().content_generation > generation
    told = CacheInvalidation.objects.count()
    assert told > 0
    assert run("resync", "caches", made.room_id) == (
        {"what": "caches", "dry_run": False, "rooms": 1, "unknown": [], "left": 0}, 0,
    )  # fmt: skip
    assert CacheInvalidation.objects.count() > told and Room.objects.get().content_generation > generation + 1


def test_sequence_that_is_behind_moves_forward(made):
    assert run("resync", "positions", "--dry-run") == (
        {"what": "positions", "dry_run": True, "before": {}, "after": {}, "left": 0}, 0,
    )  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute("SELECT setval(%s, 1)", [EVENTS.sequence])
    found, status = run("resync", "positions", "--dry-run")
    assert (found["left"], status) == (1, 1)
    found, status = run("resync", "positions")
    assert (list(found["before"]), found["after"], status) == (["events"], {}, 0)
    assert persist_all([made.message()])[0].refused == []


def test_user_is_answered_in_full():
    found, status = run("resync", "user", ANN)
    assert status == 0 and found["user"] == ANN
    assert CacheInvalidation.objects.filter(cache_name="resync_user", keys=[ANN]).count() == 1
    assert run("resync", "user", "")[1] == 2


@pytest.mark.parametrize("arguments", [["state"], ["state", "!a:b", "--all"], ["caches"], ["state", "!no:x"]])
def test_unusable_arguments(arguments):
    assert run("resync", *arguments)[1] == 2


# --- beside writers ---------------------------------------------------------------------------------------------------


def test_rooms_are_mended_while_others_write(database_url):
    """A process goes on talking in the room that is damaged and mended again and again."""
    room = create_room("@u0:x")
    room.join("@u1:x")
    for _ in range(20):
        room.send("@u0:x", "m.room.message", {"body": "x"})
    with talkers(database_url, "one") as (talker,):
        for number in range(60):
            talker.tell("send", room.room_id, f"@u{number % 2}:x")
        for subject, damage in 3 * [
            ("state", missing_current_state_of),
            ("visibility", missing_ranges),
            ("state", wrong_flag),
        ]:
            damage(room.room_id)
            assert run("resync", subject, room.room_id)[1] == 0
        positions = [talker.answer()[0] for _ in range(60)]
    assert len(set(positions)) == 60
    wait_until(lambda: Event.objects.filter(stream_ordering=positions[-1]).exists())
    assert check_room(room.room_id).totals == {} and EventVisibility.objects.filter(room_id=room.room_id).exists()


def missing_current_state_of(room_id):
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM events_currentstate WHERE room_id = %s AND type = 'm.room.join_rules'", [room_id])


def wrong_flag(room_id):
    first = Event.objects.filter(room_id=room_id, outlier=False).order_by("stream_ordering")[2]
    Event.objects.writable().filter(pk=first.pk).update(redacted_by="$nothing")
