"""Messages on top of one another, with a server's verdicts, are stored without asking the rules: the rows are the same."""

from __future__ import annotations

import random

import pytest

from events.persist import next_rows
from events.persist.batch import Incoming
from events.persist.room_cache import clear_caches
from tests.pipeline.imports import content
from tests.support.emptying import empty_tables
from tests.support.made_rooms import BOB, MadeRoom
from tests.support.persisted_rooms import storing

pytestmark = pytest.mark.django_db(transaction=True)


def made_history(seed):
    """Mostly talk, with forks, merges, calls, redactions, state, and what the server rejected or soft-failed."""
    chance, made = random.Random(seed), MadeRoom(room_id=f"!{seed}:a.test")
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    made.member(BOB, "join")
    for number in range(90):
        last, older = made.events[-1], made.events[-chance.randint(2, 4)]
        match chance.randint(0, 24):
            case 0:
                made.message([older])
            case 1:
                made.message([last, older])
            case 2:
                made.send({"type": "m.call.invite"})
            case 3:
                made.redaction(chance.choice(made.events[5:] or made.events))
            case 4:
                made.topic(f"topic {number}")
            case 5:
                made.member(BOB, chance.choice(["leave", "join"]))
            case 6:
                made.message(soft_failed=True)
            case 7:
                made.message(rejected_reason="x")
            case _:
                made.message()
    return made.events


def stored_in_batches(rooms, size):
    empty_tables()
    clear_caches()
    for first in range(0, max(map(len, rooms)), size):
        batch = [
            Incoming(event.json, event.room_version, event.event_id, verdict=(event.rejected_reason, event.soft_failed))
            for room in rooms
            for event in room[first : first + size]
        ]
        assert storing.persist(batch, verified=True, history_of="a.test", as_stored=True).refused == []
    found = content()
    del found["rooms"]  # their content generation begins with the time
    return found


@pytest.mark.parametrize("size", [1, 3])
def test_the_rows_are_those_that_the_rules_give(monkeypatch, size):
    rooms, taken, talk = [made_history(seed) for seed in range(4)], [], next_rows._talk

    def counted(known, batch):
        changes = talk(known, batch)
        taken.append(changes is not None)
        return changes

    with monkeypatch.context() as patch:
        patch.setattr(next_rows, "_talk", counted)
        found = stored_in_batches(rooms, size)
    assert 0.1 < sum(taken) / len(taken) < 0.9
    monkeypatch.setattr(next_rows, "_talk", lambda _known, _batch: None)
    assert stored_in_batches(rooms, size) == found
