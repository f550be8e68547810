"""Generated rooms, with forks and acts that are not allowed: stored in batches of any size they are what an import of them is."""

import random

import pytest

from events.columns import EVENT_COLUMNS
from events.models import Event
from events.persist import room_cache
from events.reading.timeline import state_at
from events.room.state_assignment import RoomStates
from state.rules.room_versions import room_version
from tests.integration.events.test_extremities import with_its_state
from tests.integration.events.test_gap_filling import assert_ranges_tell_what_the_rule_tells
from tests.oracle.answers import OurStates
from tests.support.effort import examples
from tests.support.made_rooms import ALICE, BOB, EVE, MadeRoom
from tests.support.persisted_rooms import (
    current_state,
    extremities,
    gaps,
    incoming,
    persist,
    persist_all,
    ranges,
    replayed_state,
    verdicts,
)
from tests.support.room_results import room_history

pytestmark = pytest.mark.django_db


@pytest.fixture
def states(seed, monkeypatch):
    """Of every other room the states are read by key, as those of a large room are."""
    if seed % 2:
        monkeypatch.setattr(room_cache, "_MOST_READ_WHOLE", 0)


CAROL = "@carol:a.test"
USERS = [ALICE, BOB, CAROL, EVE]


def generated(seed, size=45, *, allowed_only=False, room_id="!made:a.test"):
    """A room in which everybody tries everything on top of recent events; ``allowed_only`` drops what the rules reject."""
    choose = random.Random(seed)
    made = MadeRoom(choose.choice(["1", "6", "10", "11", "12"]), room_id, ruled=True)
    own = {} if made.version == "12" else {ALICE: 100}
    made.state("m.room.power_levels", "", {"users": {**own, BOB: 50}, "invite": 50})
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    made.state("m.room.history_visibility", "", {"history_visibility": choose.choice(["joined", "invited", "shared"])})
    for user in USERS[1:]:
        made.member(user, "join")
    for _ in range(size):
        act(made, choose)
        if allowed_only and states_of(made).events[made.events[-1].event_id].rejected_reason is not None:
            made.events.pop()
    return made


def states_of(made):
    states = RoomStates(room_version(made.version), made.events)
    states.assign(made.events)
    return states


def act(made, choose):
    recent = made.events[4:][-12:]
    prev = choose.sample(recent, min(len(recent), choose.choice([1, 1, 1, 1, 2, 3])))
    if choose.random() < 0.4:
        prev = made.events[-1:]
    user, target = choose.choice([ALICE, ALICE, BOB, *USERS]), choose.choice(USERS)
    kind = choose.choice(
        ["say", "say", "join", "join", "leave", "kick", "ban", "invite", "topic", "setting", "levels", "redact"]
    )
    if kind in ("join", "leave"):
        made.member(user, kind, prev=prev)
    elif kind in ("kick", "ban", "invite"):
        made.member(target, {"kick": "leave"}.get(kind, kind), prev=prev, sender=user)
    elif kind == "levels":
        own = {} if made.version == "12" else {ALICE: 100}
        content = {
            "users": {**own, choose.choice(USERS[1:]): choose.choice([0, 50, 90])},
            "invite": choose.choice([0, 50]),
        }
        made.send({"type": "m.room.power_levels", "state_key": "", "sender": user, "content": content}, prev=prev)
    elif kind in ("topic", "setting"):
        value = choose.choice(["world_readable", "shared", "invited", "joined"])
        event_type = {"topic": "m.room.topic", "setting": "m.room.history_visibility"}[kind]
        parts = {"type": event_type, "state_key": "", "sender": user, "content": {"history_visibility": value}}
        made.send(parts, prev=prev)
    elif kind == "redact":
        made.redaction(choose.choice(made.events[2:]), sender=user, prev=prev)
    else:
        made.message(prev=prev, sender=user)


@pytest.mark.usefixtures("states")
@pytest.mark.parametrize("seed", range(examples(14)))
def test_live_path_stores_what_an_import_does(seed):
    made = generated(seed)
    persist_all(made.events, [1, 4, 15, 100][seed % 4])
    bulk = room_history(made.events)
    rows = {row[0]: dict(zip(EVENT_COLUMNS, row, strict=True)) for row in bulk.events}
    assert verdicts(made.room_id) == {
        event_id: (row["rejected_reason"] is not None, row["soft_failed"]) for event_id, row in rows.items()
    }
    assert (extremities(made.room_id), gaps(made.room_id)) == (sorted(bulk.forward_extremities), [])
    assert (
        current_state(made.room_id) == replayed_state(made.room_id) == {(t, k): e for t, k, e, _ in bulk.current_state}
    )
    states = OurStates(bulk)
    for event in made.events:
        assert state_at(event.event_id).after == states.after(event.event_id)
    ids = [event.event_id for event in made.events]
    expected = [
        (row.user_id, row.kind, ids[row.first], None if row.last is None else ids[row.last]) for row in bulk.visibility
    ]
    assert ranges(made.room_id) == sorted(expected, key=str)
    redacted = dict(Event.objects.filter(room_id=made.room_id).values_list("event_id", "redacted_by"))
    assert redacted == {event_id: row["redacted_by"] for event_id, row in rows.items()}


def test_generated_rooms_have_what_is_hard():
    found = [room_history(generated(seed).events) for seed in range(14)]
    assert sum(result.rejected_events > 0 for result in found) > 10
    soft_failed = EVENT_COLUMNS.index("soft_failed")
    assert sum(any(row[soft_failed] for row in result.events) for result in found) > 5
    assert sum(len(result.forward_extremities) > 1 for result in found) > 3


# --- the same with gaps -------------------------------------------------------------------------------------------


def arrive_with_gaps(made, states, choose):
    """Live events come in order but for some, and bring their state where that is needed; returns those left out."""
    here, left_out = set(), []
    start = choose.randrange(6, 15)
    for number, event in enumerate(made.events):
        if number >= start and choose.random() < 0.3:
            left_out.append(event)
            continue
        if here.issuperset(event.prev_event_ids):
            batch = [incoming(event)]
        else:
            before = states.builder.expand(states.before[event.event_id])
            batch = with_its_state(made, event, before)
        assert persist(batch).refused == []
        here.add(event.event_id)
    return left_out


@pytest.mark.usefixtures("states")
@pytest.mark.parametrize("seed", range(20, 20 + examples(12)))
def test_gaps_of_generated_rooms_are_filled_in_any_order(seed):
    made, choose = generated(seed, 50, allowed_only=True), random.Random(seed)
    states = states_of(made)
    left_out = arrive_with_gaps(made, states, choose)
    choose.shuffle(left_out)
    while left_out:
        batch, left_out = left_out[:4], left_out[4:]
        assert persist([incoming(event, backfilled=True) for event in batch]).refused == []
        for user in (ALICE, BOB, EVE, "@stranger:d.test"):
            assert_ranges_tell_what_the_rule_tells(made, user)
    assert not Event.objects.filter(state_unresolved=True).exists() and gaps(made.room_id) == []
    for event in made.events:
        assert state_at(event.event_id).after == states.builder.expand(states.after[event.event_id]), event
    assert not any(rejected for rejected, _ in verdicts(made.room_id).values())
    assert extremities(made.room_id) and current_state(made.room_id) == replayed_state(made.room_id)
