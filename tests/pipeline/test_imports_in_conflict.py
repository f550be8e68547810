"""Imports that meet each other, live writers and purges in the same rooms: nothing is lost, doubled or counted twice."""

from __future__ import annotations

import io

import pytest

from events.integrity.repair import check_room
from events.models import Event, Room
from events.persist.room_cache import clear_caches
from pipeline.importing import extend_rooms, import_pack
from pipeline.models import QuarantinedLine
from streams.jobs.run import run_job
from tests.oracle.answers import parsed
from tests.pipeline.imports import run_import, staging_tables, write_lines
from tests.support.persisted_rooms import incoming, persist
from tests.support.room_data import event_lines

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("spark")]


def here() -> set[str]:
    return set(Event.objects.values_list("event_id", flat=True))


def all_well() -> None:
    clear_caches()
    found = {room_id: check_room(room_id).differences for room_id in Room.objects.values_list("room_id", flat=True)}
    assert not any(found.values()), found
    assert staging_tables() == []


def persist_each(events) -> int:
    """How many were stored; those that were here already are not."""
    return sum(len(persist([incoming(event)]).stored) for event in events)


@pytest.fixture(params=["when all is read", "when a pack is computed"])
def import_and(request, monkeypatch):
    """Runs an import, and a function at that moment."""

    def run(path, meanwhile):
        begun = []

        def once():
            if not begun:
                begun.append(1)
                meanwhile()

        if request.param == "when all is read":
            return run_import(path, pause=lambda step: once() if step == "read" else None)
        with monkeypatch.context() as patch:
            whole = import_pack.finish_pack
            patch.setattr(import_pack, "finish_pack", lambda *given: (once(), whole(*given))[1])
            return run_import(path, master=None)

    return run


def test_two_imports_of_overlapping_rooms(import_and, tmp_path):
    """The second begins and ends in the middle of the first; each counts what it stored, and nothing is lost."""
    shared, first, second = (event_lines(name) for name in ("v10_rejected", "v9_restricted", "v11_redactions"))
    ours = write_lines(tmp_path / "ours", *shared, *first)
    theirs = write_lines(tmp_path / "theirs", *shared[: len(shared) // 2], *second)
    others = []
    outcome = import_and(ours, lambda: others.append(run_import(theirs)))
    (other,) = others
    assert Event.objects.count() == outcome.imported + other.imported
    for one in (outcome, other):
        assert QuarantinedLine.objects.filter(job_id=one.job).count() == one.quarantined
    all_well()
    again = run_import(ours)  # what was told to be imported again
    assert (again.imported, again.quarantined) == (outcome.quarantined, 0)
    wanted = {event.event_id for name in ("v10_rejected", "v9_restricted", "v11_redactions") for event in parsed(name)}
    assert here() == wanted and other.duplicates == 0
    all_well()


def test_a_room_that_is_made_live_while_it_is_imported(import_and, tmp_path):
    events = parsed("v11_redactions")
    path = write_lines(tmp_path / "in", *event_lines("v11_redactions"))
    stored = []
    outcome = import_and(path, lambda: stored.append(persist_each(events[:40])))
    assert (outcome.read, Event.objects.count()) == (len(events), outcome.imported + stored[0])
    assert outcome.duplicates == stored[0] or outcome.imported == len(events)
    all_well()
    again = run_import(path)
    assert (again.imported, again.quarantined) == (outcome.quarantined, 0) and Event.objects.count() == len(events)
    all_well()


@pytest.mark.parametrize("purged", [False, True])
def test_live_events_and_a_purge_between_the_batches_of_a_known_room(purged, tmp_path, monkeypatch, settings):
    settings.REPLSITE_SERVER_NAME = "nobody.test"
    monkeypatch.setattr(extend_rooms, "EVENTS_PER_BATCH", 7)
    events = parsed("v11_redactions")
    path = write_lines(tmp_path / "in", *event_lines("v11_redactions"))
    live = [persist_each(events[:20])]
    rounds, following, gone = [], extend_rooms._next, []

    def meanwhile(*arguments):
        rounds.append(1)
        if len(rounds) == 3:  # those of the next batch and of half of the one after, which the import has planned
            live.append(persist_each(events[30:45]))
        if len(rounds) == 6 and purged:  # the room is gone for the rest of the import
            gone.append(Event.objects.count())
            run_job("purge room", {"room": Room.objects.get().room_id}, stream=io.StringIO())
        return following(*arguments)

    monkeypatch.setattr(extend_rooms, "_next", meanwhile)
    outcome = run_import(path)
    assert live[1] > 0 and len(rounds) > 6
    assert Event.objects.count() == outcome.imported + sum(live) - sum(gone)
    assert outcome.duplicates == sum(live)
    assert bool(outcome.quarantined) == purged
    assert set(QuarantinedLine.objects.values_list("reason", flat=True)) <= {"unknown-room"}
    all_well()
    again = run_import(path)
    assert again.quarantined == 0 and here() == {event.event_id for event in events}
    all_well()
