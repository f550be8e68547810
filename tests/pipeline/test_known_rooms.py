"""New events of rooms that the site has: they end as if the room had been imported at once, by the rules of live events."""

from __future__ import annotations

import json

import pytest

from events.integrity.repair import check_room
from pipeline.importing import extend_rooms
from pipeline.models import ImportedRoom, QuarantinedLine
from streams.jobs.job_run import Count
from tests.integration.events.test_given_states import told
from tests.pipeline.imports import content, run_import, staging_tables, write_lines
from tests.support.emptying import empty_tables
from tests.support.impatient_server import impatient
from tests.support.made_rooms import ALICE, BOB, public_room
from tests.support.persisted_rooms import incoming, persist, persist_all
from tests.support.room_data import event_lines, stored_events

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("spark")]

ROOM = "v10_visibility_walk"
#: What does not depend on how the events came in: groups may be chained otherwise, and the changes of state be fewer.
SAME = ("events", "order", "json", "edges", "auth", "forward", "backward", "current", "visibility")


@pytest.fixture(scope="module")
def whole(spark, module_database, tmp_path_factory):
    """The room after one import."""
    run_import(write_lines(tmp_path_factory.mktemp("whole") / "in.jsonl", *event_lines(ROOM)))
    found = content()
    empty_tables()
    return found


def same(found):
    return {name: found[name] for name in SAME}


def test_newer_events_go_on_where_the_room_ends(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(extend_rooms, "EVENTS_PER_BATCH", 50)
    lines = event_lines(ROOM)
    run_import(write_lines(tmp_path / "first", *lines[:100]))
    outcome = run_import(write_lines(tmp_path / "all", *lines))
    assert (outcome.read, outcome.imported, outcome.duplicates, outcome.quarantined) == (273, 173, 100, 0)
    assert outcome.rooms == 1 and outcome.unresolved == 0 and staging_tables() == []
    assert same(content()) == same(whole)


def test_a_role_whose_transactions_keep_one_snapshot_imports_them_too(whole, tmp_path):
    lines = event_lines(ROOM)
    run_import(write_lines(tmp_path / "first", *lines[:100]))
    with impatient(default_transaction_isolation="serializable"):
        outcome = run_import(write_lines(tmp_path / "all", *lines))
    assert (outcome.imported, outcome.quarantined) == (173, 0)
    assert same(content()) == same(whole)


def test_older_events_fill_the_gap_below_the_room_and_are_new_to_nobody(whole, tmp_path, monkeypatch, rows):
    monkeypatch.setattr(extend_rooms, "EVENTS_PER_BATCH", 40)
    lines = event_lines(ROOM)
    run_import(write_lines(tmp_path / "newest", *lines[-30:]))
    before = rows("SELECT max(stream_ordering) FROM events_event")
    outcome = run_import(write_lines(tmp_path / "all", *lines), as_history=True)
    assert (outcome.imported, outcome.duplicates, outcome.quarantined) == (243, 30, 0)
    stored = [
        name for (name,) in rows("SELECT event_id FROM events_event WHERE stream_ordering < 0 ORDER BY stream_ordering")
    ]
    given = [event["event_id"] for event in stored_events(ROOM)[:-30]]
    ends = range(len(given), 0, -40)  # within a batch branches may come in another order
    assert [set(stored[max(end - 40, 0) : end]) for end in ends] == [set(given[max(end - 40, 0) : end]) for end in ends]
    assert rows("SELECT max(stream_ordering) FROM events_event") >= before
    assert outcome.unresolved == 0 and content()["backward"] == []
    assert check_room(stored_events(ROOM)[0]["room_id"]).totals == {}


def test_what_cannot_be_stored_is_put_aside_with_the_reason_and_the_others_go_in(tmp_path):
    lines = event_lines(ROOM)
    run_import(write_lines(tmp_path / "first", *lines[:100]))
    path = write_lines(tmp_path / "hole", *lines[110:])
    outcome = run_import(path)
    assert outcome.quarantined and outcome.imported + outcome.quarantined == outcome.read == len(lines) - 110
    line = QuarantinedLine.objects.first()
    assert (line.file, line.reason) == (str(path), "missing-prev-events") and bytes(line.content).startswith(b"{")


def import_one_batch(monkeypatch, path, **options):
    """Run an import that fails after its first batch has been counted."""
    add = Count.add

    def fail(count, number=1):
        add(count, number)
        raise OSError("out of patience")

    with monkeypatch.context() as failing:
        failing.setattr(Count, "add", fail)
        with pytest.raises(OSError, match="out of patience"):
            run_import(path, **options)


def test_an_import_that_ends_between_two_batches_goes_on_and_counts_each_event_once(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(extend_rooms, "EVENTS_PER_BATCH", 50)
    lines = event_lines(ROOM)
    run_import(write_lines(tmp_path / "first", *lines[:100]))
    path = write_lines(tmp_path / "all", *lines)
    import_one_batch(monkeypatch, path)
    assert ImportedRoom.objects.order_by("-pk").first().imported == 50
    outcome = run_import(path, resume=True)
    assert (outcome.imported, outcome.duplicates, outcome.quarantined) == (173, 100, 0)
    assert same(content()) == same(whole)


def test_an_import_that_ends_after_its_last_batch_leaves_no_state_unknown(tmp_path, monkeypatch, rows):
    """More events lie above the filled gap than the batch resolves; the rest is for the job that goes on."""
    monkeypatch.setattr("events.persist.next_rows.MOST_FILLED", 2)
    made = public_room()
    persist_all(made.events, 100)
    gap = [made.message() for _ in range(8)]
    persist(told(made, made.message()))
    persist([incoming(event, backfilled=True) for event in gap[1:]])
    path = write_lines(tmp_path / "gap", {"json": json.loads(gap[0].json), "room_version": "10"})
    import_one_batch(monkeypatch, path, as_history=True)
    assert rows("SELECT count(*) FROM events_event WHERE state_unresolved") == [(5,)]
    outcome = run_import(path, as_history=True, resume=True)
    assert (outcome.imported, outcome.unresolved) == (1, 0)
    assert rows("SELECT count(*) FROM events_event WHERE state_unresolved") == [(0,)]
    assert check_room(made.room_id).clean


def test_an_outlier_that_comes_with_its_place_gets_it(tmp_path, rows):
    lines = list(event_lines(ROOM))
    last = stored_events(ROOM)[-1]["event_id"]
    outlier = lines[-1].replace(b'"outlier":false', b'"outlier":true')
    assert outlier != lines[-1]
    run_import(write_lines(tmp_path / "first", *lines[:-1], outlier))
    outcome = run_import(write_lines(tmp_path / "all", *lines))
    assert (outcome.imported, outcome.duplicates) == (1, len(lines) - 1)
    assert rows("SELECT outlier FROM events_event WHERE event_id = %s", last) == [(False,)]


def with_late_message():
    """A room, and a message of BOB's on a fork that he sent when the room's state forbade it already."""
    made = public_room()
    joined = made.member(BOB, "join")
    made.member(BOB, "ban", sender=ALICE)
    return made, made.message(prev=[joined], sender=BOB)


@pytest.mark.parametrize("server, soft", [("bob.test", True), ("b.test", False)])
@pytest.mark.parametrize("known", [False, True])
def test_what_own_users_sent_is_not_soft_failed_when_verdicts_are_worked_out(
    tmp_path, settings, rows, server, soft, known
):
    settings.REPLSITE_SERVER_NAME = server
    made, late = with_late_message()
    lines = [{"json": json.loads(event.json), "room_version": "10"} for event in made.events]
    if known:
        run_import(write_lines(tmp_path / "first", *lines[:-1]))
    outcome = run_import(write_lines(tmp_path / "in", *lines))
    assert outcome.quarantined == 0
    assert rows("SELECT soft_failed FROM events_event WHERE event_id = %s", late.event_id) == [(soft,)]
    assert check_room(made.room_id).clean


def test_what_a_source_tells_of_soft_failure_is_believed_of_own_users_too(tmp_path, settings, rows):
    settings.REPLSITE_SERVER_NAME = "b.test"
    made, late = with_late_message()
    lines = [{"json": json.loads(e.json), "room_version": "10", "soft_failed": e is late} for e in made.events]
    run_import(write_lines(tmp_path / "in", *lines))
    assert rows("SELECT soft_failed FROM events_event WHERE event_id = %s", late.event_id) == [(True,)]
