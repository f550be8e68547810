"""Archives go back in: byte for byte but for what was redacted or censored since, with states, graph and visibility."""

import io
import json
import shutil
import signal
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from events.integrity.repair import check_room
from events.models import (
    BackwardExtremity,
    CurrentState,
    Event,
    EventEdge,
    EventJson,
    EventVisibility,
    ForwardExtremity,
    Room,
    TimelineGap,
)
from events.operations.censor import censor
from events.persist.room_cache import clear_caches
from events.reading.timeline import timeline
from pipeline.archive import write
from pipeline.archive.format import read_manifest, write_manifest
from pipeline.models import Job
from pipeline.operations import restore as restore_kind
from state.models import StateGroup
from state.rules.room_versions import room_version
from streams import registry
from streams.catalog.models import CacheInvalidation
from streams.core.tokens import VectorToken
from streams.db.sequences import move_forward
from streams.jobs import throttle
from streams.jobs.rows import killed_jobs
from tests.integration.events.test_purging import (
    assert_it_is_well,
    check_groups,
    middle,
    states,
    talked_room,
    under_a_low_one,
    visible,
)
from tests.integration.pipeline.test_archive import purge
from tests.oracle.answers import parsed
from tests.support.made_rooms import ALICE, BOB, public_room
from tests.support.persisted_rooms import extremities, incoming, persist
from tests.support.ranges import stored_ranges
from tests.support.signed_events import event_is_signed
from tests.support.stored_rooms import store_room
from tests.support.syncing import ids, only, since
from tests.support.waiting import DEADLINE_SECONDS, wait_until

pytestmark = pytest.mark.django_db(transaction=True)
ROOMS = ["v10_gap", "v10_rejected", "v11_redactions", "v12_power_fork"]
_RAW = """
SELECT event_id, stream_ordering, instance_name, received_at, type, state_key, sender, topological_ordering, origin_server_ts,
    membership, redacts, relates_to, outlier, rejected_reason, soft_failed, redacted_by, state_unresolved, censored_at
FROM events_event ORDER BY event_id
"""


@pytest.fixture(autouse=True)
def _server(settings):
    settings.REPLSITE_SERVER_NAME = "nobody.test"
    yield
    clear_caches()


def stored(name):
    """A room of the shipped ones; the sequences stand where an append would have left them."""
    room_id = store_room(parsed(name)).room_id
    with connection.cursor() as cursor:
        for stream in ("events", "backfill"):
            move_forward(cursor, registry.get(stream).declaration.sequence, 100_000)
    return room_id


def test_a_leaf_comes_back_whose_state_is_not_known(tmp_path):
    """The room's state was known without it, and is not with it: nothing of either stays."""
    made = public_room()
    below = made.message()
    made.send({"type": "m.room.message", "depth": 4}, prev=["$" + "x" * 43])
    cut = made.message(prev=[below])
    for _ in range(5):
        made.message()
    room_id = store_room(made.events).room_id
    with connection.cursor() as cursor:
        for stream in ("events", "backfill"):
            move_forward(cursor, registry.get(stream).declaration.sequence, 100_000)
    outcome = purge("history", room_id, "--before", cut.event_id, "--archive", str(tmp_path / "a"))
    assert outcome["leaves_removed"] == 1 and CurrentState.objects.count() == 4 and check_room(room_id).clean
    restore(outcome["archive"]["folder"])
    room = Room.objects.get()
    assert room.current_state_unresolved and room.visibility_unresolved
    assert not CurrentState.objects.exists() and not EventVisibility.objects.exists()
    dropped = CacheInvalidation.objects.filter(cache_name="cs_cache_fake").latest("stream_id").keys
    assert dropped[0] == room_id and ALICE in dropped
    assert check_room(room_id).clean


def restore(folder):
    clear_caches()
    out = io.StringIO()
    call_command("room", "restore", str(folder), "--json", stdout=out, stderr=io.StringIO())
    return json.loads(out.getvalue())


def everything(room_id):
    """All that is stored of a room, groups by the states that they mean."""
    clear_caches()
    with connection.cursor() as cursor:
        cursor.execute(_RAW)
        rows = cursor.fetchall()
    return {
        "events": rows,
        "json": sorted((j.event_id, bytes(j.json), j.room_version) for j in EventJson.objects.all()),
        "edges": sorted(EventEdge.objects.values_list("event_id", "prev_event_id")),
        "states": states([row[0] for row in rows]),
        "leaves": sorted(ForwardExtremity.objects.values_list("event_id", flat=True)),
        "gaps": sorted(BackwardExtremity.objects.values_list("event_id", flat=True)),
        "holes": sorted(TimelineGap.objects.values_list("stream_ordering", "instance_name")),
        "current": sorted(CurrentState.objects.values_list("type", "state_key", "event_id", "membership")),
        "ranges": stored_ranges(room_id),
    }


def found_wrong(room_id):
    report = check_room(room_id)
    return [str(difference) for difference in report.differences]


def assert_same(after, before):
    for what, rows in before.items():
        assert after[what] == rows, what


@pytest.fixture
def small_steps(monkeypatch):
    monkeypatch.setattr(write, "EVENTS_PER_FILE", 40)
    monkeypatch.setattr(write, "GROUPS_PER_FILE", 15)
    monkeypatch.setattr(restore_kind, "EVENTS_PER_TRANSACTION", 13)
    monkeypatch.setattr(throttle, "_REST", 0)


# --- as it was --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROOMS)
def test_history_comes_back_as_it_was(name, tmp_path, small_steps):
    room_id = stored(name)
    before, wrong = everything(room_id), found_wrong(room_id)
    users = sorted(CurrentState.objects.filter(type="m.room.member").values_list("state_key", flat=True))[:4]
    seen = {user: visible(room_id, user, 0) for user in users}
    cut = middle(room_id, 0.6)
    outcome = purge("history", room_id, "--before-token", f"t{cut}-0", "--archive", str(tmp_path))
    found = restore(outcome["archive"]["folder"])
    assert (found["restored"], found["placed"]) == (outcome["deleted"], outcome["became_outliers"])
    assert_same(everything(room_id), before)
    check_groups(room_id)
    assert found_wrong(room_id) == wrong
    assert {user: visible(room_id, user, 0) for user in users} == seen
    assert found["visibility"] == "as archived"
    groups = StateGroup.objects.count()
    again = restore(outcome["archive"]["folder"])
    assert (again["restored"], again["placed"], again["state_groups"]) == (0, 0, 0)
    assert StateGroup.objects.count() == groups
    assert_same(everything(room_id), before)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name, holes", [("v12_power_fork", 0), ("v10_gap", 2)])
def test_two_archives_of_a_room_come_back_in_any_order(name, holes, backwards, tmp_path, small_steps):
    """A hole stays right above a cut where the event below came by backfill."""
    room_id = stored(name)
    before = everything(room_id)
    first = purge("history", room_id, "--before-token", f"t{middle(room_id, 0.3)}-0", "--archive", str(tmp_path))
    second = purge("history", room_id, "--before-token", f"t{middle(room_id, 0.6)}-0", "--archive", str(tmp_path))
    folders = [outcome["archive"]["folder"] for outcome in (first, second)]
    for folder in reversed(folders) if backwards else folders:
        restore(folder)
    after = everything(room_id)
    assert (before.pop("holes"), len(after["holes"])) == ([], holes)
    assert_same(after, before)
    check_groups(room_id)


def test_signatures_verify_and_bytes_are_the_same(tmp_path, small_steps):
    room_id = stored("v11_redactions")
    keys = json.loads((Path(__file__).parents[2] / "data" / "rooms" / "server_keys.json").read_text())
    texts = {j.event_id: (bytes(j.json), j.room_version) for j in EventJson.objects.all()}
    signed = {event_id for event_id, text in texts.items() if is_signed_by_sender(text, keys)}
    assert len(signed) > len(texts) / 2
    outcome = purge("history", room_id, "--before-token", f"t{middle(room_id, 0.9)}-0", "--archive", str(tmp_path))
    restore(outcome["archive"]["folder"])
    back = {j.event_id: (bytes(j.json), j.room_version) for j in EventJson.objects.all()}
    assert back == texts
    assert {event_id for event_id, text in back.items() if is_signed_by_sender(text, keys)} == signed


def is_signed_by_sender(text, keys):
    event = json.loads(text[0])
    server = event["sender"].partition(":")[2]
    return event_is_signed(event, room_version(text[1]), server, keys.get(server, {}))


def test_a_sync_sees_the_events_again(tmp_path):
    made = talked_room(5)
    place = Event.objects.get(event_id=made.events[-4].event_id).stream_ordering
    outcome = purge(
        "history", made.room_id, "--before", made.events[-1].event_id, "--delete-local", "--archive", str(tmp_path)
    )
    assert only(since(ALICE, VectorToken(place)).joined).limited
    restore(outcome["archive"]["folder"])
    after = only(since(ALICE, VectorToken(place)).joined)
    assert (after.limited, ids(after.timeline)) == (False, [event.event_id for event in made.events[-3:]])


def test_a_shallow_leaf_comes_back_and_the_state_is_that_of_all(tmp_path):
    made = talked_room(4)
    fork = made.state("m.room.topic", "", {"topic": "a fork"}, prev=[made.events[2]])
    persist([incoming(fork)])
    before = everything(made.room_id)
    assert len(before["leaves"]) == 2
    outcome = purge("history", made.room_id, "--before", made.events[-2].event_id, "--archive", str(tmp_path))
    assert outcome["leaves_removed"] == 1 and not CurrentState.objects.filter(type="m.room.topic").exists()
    restore(outcome["archive"]["folder"])
    after = everything(made.room_id)
    assert (after["leaves"], after["current"]) == (before["leaves"], before["current"])


# --- what happened since ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["accepted", "rejected"])
def test_leaf_below_what_comes_back_is_none_any_more(kind, tmp_path):
    """An event on top of it said to be less deep, and was purged."""
    made, left = under_a_low_one(kind)
    before = extremities(made.room_id)
    outcome = purge("history", made.room_id, "--before-token", "t7-0", "--delete-local", "--archive", str(tmp_path))
    assert extremities(made.room_id) == sorted([*before, left.event_id])
    restore(outcome["archive"]["folder"])
    assert extremities(made.room_id) == before
    assert_it_is_well(made)


def test_what_was_redacted_and_censored_since_stays_so(tmp_path):
    made = talked_room(3)
    topic = made.state("m.room.topic", "", {"topic": "secret"})
    message = made.message()
    last = made.message()
    persist([incoming(topic), incoming(message), incoming(last)])
    outcome = purge("history", made.room_id, "--before", last.event_id, "--delete-local", "--archive", str(tmp_path))
    gone = [made.send({"type": "m.room.redaction", "redacts": target.event_id}) for target in (topic, message)]
    persist([incoming(event) for event in gone])
    for _ in censor(timedelta(0), "default"):
        pass
    found = restore(outcome["archive"]["folder"])
    assert (found["redacted"], Event.objects.get(event_id=topic.event_id).outlier) == (1, False)
    assert b"secret" not in bytes(EventJson.objects.get(pk=topic.event_id).json)
    flags = dict(Event.objects.filter(redacted_by__isnull=False).values_list("event_id", "redacted_by"))
    assert flags == {topic.event_id: gone[0].event_id, message.event_id: gone[1].event_id}
    for _ in censor(timedelta(0), "default"):
        pass
    assert bytes(EventJson.objects.get(pk=message.event_id).json) != message.json


def test_what_came_back_by_backfill_stays(tmp_path):
    made = talked_room(5)
    outcome = purge(
        "history", made.room_id, "--before", made.events[-1].event_id, "--delete-local", "--archive", str(tmp_path)
    )
    persist([incoming(event, backfilled=True) for event in made.events[4:-1]])
    found = restore(outcome["archive"]["folder"])
    assert (found["here"], found["restored"] + found["placed"]) == (4, 4)
    assert BackwardExtremity.objects.count() == 0
    assert Event.objects.filter(outlier=True).count() == 0
    assert len(timeline(made.room_id)) == len(made.events)


def test_new_events_above_stay_and_go_on(tmp_path):
    made = talked_room(4)
    outcome = purge("history", made.room_id, "--before", made.events[-1].event_id, "--archive", str(tmp_path))
    persist([incoming(made.member(BOB, "join")), incoming(made.message(sender=BOB))])
    restore(outcome["archive"]["folder"])
    persist([incoming(made.message(sender=BOB))])
    assert [entry.event_id for entry in timeline(made.room_id)] == [event.event_id for event in reversed(made.events)]
    assert found_wrong(made.room_id) == []


def test_ranges_that_were_lost_are_made_anew(tmp_path):
    made = talked_room(4)
    before = stored_ranges(made.room_id)
    outcome = purge("history", made.room_id, "--before", made.events[-1].event_id, "--archive", str(tmp_path))
    EventVisibility.objects.all().delete()
    assert restore(outcome["archive"]["folder"])["visibility"] == "made anew"
    assert stored_ranges(made.room_id) == before


# --- what can go wrong ------------------------------------------------------------------------------------------------


def test_rows_that_damage_left_of_purged_events_are_replaced(tmp_path):
    room_id = stored("v10_gap")
    before = everything(room_id)
    outcome = purge("history", room_id, "--before-token", f"t{middle(room_id)}-0", "--archive", str(tmp_path / "a"))
    purged = {row[0] for row in before["events"]} - set(Event.objects.values_list("event_id", flat=True))
    left = sorted(purged)[0]
    EventJson.objects.create(event_id=left, room_version="10", json=b"{}")
    restore(outcome["archive"]["folder"])
    assert_same(everything(room_id), before)


def test_a_damaged_archive_changes_nothing(tmp_path):
    made = talked_room(4)
    outcome = purge("history", made.room_id, "--before", made.events[-1].event_id, "--archive", str(tmp_path))
    before, folder = everything(made.room_id), Path(outcome["archive"]["folder"])
    copy = shutil.copytree(folder, tmp_path / "copy")
    file = next(folder.glob("event-*.parquet"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)
    with pytest.raises(CommandError, match="is not as it was written") as raised:
        restore(folder)
    assert raised.value.returncode == 1
    assert_same(everything(made.room_id), before)
    assert restore(copy)["placed"] == outcome["became_outliers"]


def of_events(**changes):
    """A change of the manifest: other values in the entries of the files of events."""
    return lambda found: {"files": tuple(replace(f, **changes) if f.table == "event" else f for f in found.files)}


@pytest.mark.parametrize(
    "forged",
    [
        lambda _: {"room_id": "!a\0:a.test"},
        lambda _: {"room_version": "99"},
        lambda _: {"room_version": "9"},
        lambda _: {"positions": ("a", "b")},
        lambda _: {"files": ()},
        of_events(rows=-1),
        of_events(rows=10**12),
        of_events(rows="many"),
        of_events(digest="0" * 64),
    ],
)
def test_a_forged_manifest_is_refused_before_anything_changes(forged, tmp_path):
    made = talked_room(2)
    outcome = purge("history", made.room_id, "--before", made.events[-1].event_id, "--archive", str(tmp_path))
    before, folder = everything(made.room_id), Path(outcome["archive"]["folder"])
    manifest = read_manifest(folder)
    write_manifest(folder, replace(manifest, **forged(manifest)))
    with pytest.raises(CommandError, match="Take another copy of the archive") as raised:
        restore(folder)
    assert raised.value.returncode == 1 and str(folder) in str(raised.value)
    assert_same(everything(made.room_id), before)


@pytest.mark.parametrize("stop_after", [1, 2, 5])
def test_stopped_anywhere_and_run_again_gives_the_same_end(stop_after, tmp_path, small_steps, monkeypatch):
    monkeypatch.setattr(restore_kind, "EVENTS_PER_TRANSACTION", 5)
    room_id = stored("v11_redactions")
    before = everything(room_id)
    outcome = purge("history", room_id, "--before-token", f"t{middle(room_id, 0.7)}-0", "--archive", str(tmp_path))
    plain, calls = restore_kind.restore_events, []

    def stops(*arguments, **more):
        calls.append(1)
        if len(calls) > stop_after:
            raise KeyboardInterrupt
        plain(*arguments, **more)

    monkeypatch.setattr(restore_kind, "restore_events", stops)
    with suppress(KeyboardInterrupt):
        restore(outcome["archive"]["folder"])
    groups = StateGroup.objects.count()
    assert purge("orphans")["state_groups_deleted"] >= 0
    check_groups(room_id)
    monkeypatch.setattr(restore_kind, "restore_events", plain)
    restore(outcome["archive"]["folder"])
    assert_same(everything(room_id), before)
    check_groups(room_id)
    assert StateGroup.objects.count() <= 2 * groups


_KILLED = """
import os, signal, sys
import django
django.setup()
from pipeline.archive import parts as archive_parts
from pipeline.operations import restore as restore_kind
from streams.jobs.folders import any_folder
from streams.jobs.run import run_job
kind, room_id, folder = sys.argv[1:]
plain, done = (archive_parts._write, []) if kind == "archive" else (restore_kind.restore_events, [])
def dies(*arguments, **more):
    plain(*arguments, **more)
    done.append(1)
    if len(done) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
archive_parts._write = restore_kind.restore_events = dies
restore_kind.EVENTS_PER_TRANSACTION = 5
with any_folder():
    arguments = {"room": room_id, "folder": folder} if kind == "archive" else {"archive": folder}
    run_job(kind, arguments)
"""


def test_kill_nine_while_archiving_and_while_restoring(tmp_path, run_manage, monkeypatch):
    monkeypatch.setattr(throttle, "_REST", 0)
    made = talked_room(30)
    before = everything(made.room_id)
    kill(run_manage, "archive", made.room_id, tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".partial"]
    outcome = purge(
        "history", made.room_id, "--before", made.events[-1].event_id, "--delete-local", "--archive", str(tmp_path)
    )
    folder = outcome["archive"]["folder"]
    assert [str(path) for path in tmp_path.iterdir()] == [folder]
    kill(run_manage, "restore", made.room_id, folder)
    half = Event.objects.filter(outlier=False).count()
    assert 1 < half < len(made.events)
    assert found_wrong(made.room_id) == []
    groups = StateGroup.objects.count()
    restore(folder)
    assert_same(everything(made.room_id), before)
    assert StateGroup.objects.count() == groups  # those that the killed run copied are used
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_class WHERE relname LIKE 'pipeline_restore%%'")
        assert cursor.fetchone() == (0,)


def kill(run_manage, kind, room_id, folder):
    environment = {"REPLSITE_SERVER_NAME": "nobody.test", "REPLSITE_WRITER": "killed"}
    killed = run_manage("-c", _KILLED, kind, room_id, str(folder), env=environment, timeout=2 * DEADLINE_SECONDS)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    wait_until(lambda: killed_jobs("default"))


def test_positions_that_are_taken_are_refused(tmp_path):
    made = talked_room(3)
    last = made.events[-1]
    outcome = purge("history", made.room_id, "--before", last.event_id, "--delete-local", "--archive", str(tmp_path))
    with connection.cursor() as cursor:
        cursor.execute(
            "SET LOCAL streams.maintenance = on; UPDATE events_event SET stream_ordering = stream_ordering - 1 WHERE NOT outlier"
        )
    with pytest.raises(CommandError, match="the archive is of another database"):
        restore(outcome["archive"]["folder"])


def test_an_archive_of_another_database_is_refused(tmp_path):
    made = talked_room(3)
    outcome = purge(
        "history", made.room_id, "--before", made.events[-1].event_id, "--delete-local", "--archive", str(tmp_path)
    )
    folder = Path(outcome["archive"]["folder"])
    manifest = read_manifest(folder)
    write_manifest(folder, replace(manifest, positions=(1, 10**12)))
    with pytest.raises(CommandError, match="has not given out yet"):
        restore(folder)
    write_manifest(folder, replace(manifest, room_id="!gone:a.test"))
    with pytest.raises(CommandError, match="Restore an archive of the whole room first"):
        restore(folder)


@pytest.mark.parametrize("folder", ["", "/nowhere"])
def test_unusable_arguments(folder):
    with pytest.raises(CommandError) as raised:
        call_command("room", "restore", folder, stderr=io.StringIO())
    assert raised.value.returncode == 2


def test_words_for_people(tmp_path):
    made = talked_room(2)
    outcome = purge("history", made.room_id, "--before", made.events[-1].event_id, "--archive", str(tmp_path))
    out = io.StringIO()
    call_command("room", "restore", outcome["archive"]["folder"], stdout=out, stderr=io.StringIO())
    assert "given their place again" in out.getvalue()
    assert Job.objects.latest("pk").summary["placed"] == outcome["became_outliers"]
