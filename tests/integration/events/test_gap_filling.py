"""Gaps that are filled: what was not known becomes known, in any order; meanwhile everything else stays readable."""

import random

import pytest
from msgspec.structs import replace

from events.errors import NotReadable, Reason, StateUnresolved
from events.models import Event, Room
from events.persist.gap_filling import resolve_room
from events.reading.page_sql import LARGEST
from events.reading.pages import OLDEST, PAGE_LIMIT, timeline, timeline_of, visible_to
from events.reading.timeline import state_at
from events.room.state_assignment import RoomStates
from events.visibility.access import read_access
from events.visibility.explain import Explanation, explain_visibility
from state.rules.room_versions import room_version
from tests.integration.events.test_given_states import told, verdict
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
)
from tests.support.stored_rooms import store_room

pytestmark = pytest.mark.django_db


def closed_room(version="10"):
    """A room whose history only those see who were joined then."""
    made = MadeRoom(version, ruled=True)
    made.state("m.room.power_levels", "", {"users": {} if version == "12" else {ALICE: 100}})
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    return made


def with_gap(made=None):
    """(room, events of the gap, live event above it): Bob joins and talks in the gap, Eve joins above it."""
    made = made or closed_room()
    persist_all(made.events, 100)
    gap = [made.member(BOB, "join"), made.message(sender=BOB), made.topic("x"), made.message()]
    above = made.member(EVE, "join")
    persist(told(made, above))
    return made, gap, above


def backfill(*events):
    return persist([incoming(event, backfilled=True) for event in events])


def seen(made, user):
    return {entry.event_id for entry in timeline_of(user, made.room_id)}


def unresolved(made):
    return set(Event.objects.filter(room_id=made.room_id, state_unresolved=True).values_list("event_id", flat=True))


# --- while there is a gap -----------------------------------------------------------------------------------------


def test_old_event_above_a_gap_hides_nothing_else():
    made, gap, _ = with_gap()
    before = (
        ranges(made.room_id),
        current_state(made.room_id),
        extremities(made.room_id),
        seen(made, ALICE),
        seen(made, EVE),
    )
    backfill(gap[3])
    room = Room.objects.get()
    assert not room.visibility_unresolved and not room.current_state_unresolved
    assert unresolved(made) == {gap[3].event_id} and gaps(made.room_id) == [gap[2].event_id]
    assert (
        ranges(made.room_id), current_state(made.room_id), extremities(made.room_id), seen(made, ALICE), seen(made, EVE)
    ) == before  # fmt: skip
    with pytest.raises(StateUnresolved):
        state_at(gap[3].event_id)


def test_talk_goes_on_above_a_gap():
    made, gap, above = with_gap()
    backfill(gap[3])
    said = made.message(sender=EVE)
    assert persist([incoming(said)]).refused == []
    assert {said.event_id, above.event_id} <= seen(made, EVE)


def test_live_event_on_an_event_without_state_is_refused():
    made, gap, above = with_gap()
    backfill(gap[3])
    fork = made.message(prev=[gap[3], above])
    outcome = persist([incoming(fork), incoming(made.message(prev=[fork]))])
    assert [refused.error.reason for refused in outcome.refused] == [Reason.MISSING_PREV_EVENTS] * 2
    assert not Room.objects.get().current_state_unresolved
    assert persist(told(made, fork)).refused == []


# --- filling ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2", "10", "12"])
def test_gap_that_is_filled_downwards_is_known_at_last(version):
    made, gap, above = with_gap(closed_room(version))
    for event in reversed(gap[1:]):
        backfill(event)
    assert len(unresolved(made)) == 3
    backfill(gap[0])
    assert unresolved(made) == set() and gaps(made.room_id) == []
    for event in gap:
        assert state_at(event.event_id).after == made.state_after(event.event_id)
    assert seen(made, EVE) & {event.event_id for event in (*gap, above)} == {above.event_id}
    assert seen(made, ALICE) >= {event.event_id for event in (*gap, above)}
    assert seen(made, BOB) >= {event.event_id for event in gap}
    assert current_state(made.room_id) == replayed_state(made.room_id)


@pytest.mark.parametrize("seed", range(4))
def test_order_of_filling_does_not_matter(seed):
    """Against the same events stored at once: states, leaves and who sees what."""
    made, gap, _ = with_gap()
    order = random.Random(seed).sample(gap, len(gap))
    cut = seed % 3 + 1
    backfill(*order[:cut])
    backfill(*order[cut:])
    assert unresolved(made) == set() and gaps(made.room_id) == []
    for event in made.events:
        assert state_at(event.event_id).after == made.state_after(event.event_id)
    joined = {ALICE: set(range(1, 10)), BOB: {5, 6, 7, 8, 9}, EVE: {9}}
    for user, numbers in joined.items():
        shown = {made.events[number].event_id for number in numbers}
        assert seen(made, user) - {made.create.event_id} >= shown - {made.events[1].event_id}
        assert seen(made, user) & {event.event_id for event in gap} == shown & {event.event_id for event in gap}


def test_no_range_of_one_batch_covers_what_another_one_decides():
    """Bob leaves below an event without state that lies between two others in the stream of old events."""
    made = closed_room()
    bob = made.member(BOB, "join")
    persist_all(made.events, 100)
    known = [made.message(prev=[bob]), made.message()]
    gone = made.member(BOB, "leave", prev=[known[1]])
    hidden = made.message(prev=[gone])
    above = made.message(prev=[hidden])
    persist(told(made, above))
    backfill(known[0], hidden, known[1])
    assert seen(made, BOB) & {hidden.event_id, *(event.event_id for event in known)} == {e.event_id for e in known}
    backfill(gone)
    assert hidden.event_id not in seen(made, BOB) and hidden.event_id in seen(made, ALICE)
    assert gone.event_id in seen(made, BOB)


def test_event_of_the_gap_that_is_not_allowed_is_rejected_when_its_state_is_known():
    made = closed_room()
    bob = made.member(BOB, "join")
    persist_all(made.events, 100)
    ban = made.member(BOB, "ban", sender=ALICE)
    late = made.message(prev=[ban], sender=BOB)
    late = made.send(
        {
            "type": "m.room.message",
            "sender": BOB,
            "auth_events": [e.event_id for e in (made.create, made.events[2], bob)],
        },
        prev=[ban],
    )
    above = made.message(prev=[late])
    persist(told(made, above))
    backfill(late)
    assert Event.objects.get(event_id=late.event_id).rejected_reason is None
    kept_under = Room.objects.get(pk=made.room_id).content_generation
    backfill(ban)
    generation = Room.objects.get(pk=made.room_id).content_generation
    assert generation == kept_under + 1  # what other processes keep has the old verdict
    stored = Event.objects.get(event_id=late.event_id)
    assert stored.rejected_reason.startswith("state before") and not stored.state_unresolved
    assert state_at(late.event_id).after == made.state_after(ban.event_id)
    assert late.event_id not in seen(made, ALICE)


def test_redaction_takes_effect_when_its_state_is_known():
    made = closed_room()
    bob = made.member(BOB, "join")
    said = made.message(sender=BOB)
    persist_all(made.events, 100)
    levels = made.state("m.room.power_levels", "", {"users": {ALICE: 100, "@eve:a.test": 50}})
    eve = made.member("@eve:a.test", "join")
    redaction = made.redaction(said, sender="@eve:a.test")
    above = made.message()
    persist(told(made, above))
    backfill(redaction)
    assert Event.objects.get(event_id=said.event_id).redacted_by is None
    backfill(levels, eve)
    assert Event.objects.get(event_id=said.event_id).redacted_by == redaction.event_id
    assert {bob.event_id, redaction.event_id} <= seen(made, BOB)


def test_state_given_later_makes_an_old_event_known():
    made, gap, _ = with_gap()
    backfill(gap[2], gap[3])
    assert len(unresolved(made)) == 2
    outcome = persist(told(made, gap[2], backfilled=True))
    assert outcome.duplicates[-1:] == [gap[2].event_id] or gap[2].event_id in outcome.duplicates
    assert unresolved(made) == set() and gaps(made.room_id) == [gap[1].event_id]
    assert state_at(gap[3].event_id).after == made.state_after(gap[3].event_id)


def test_filling_twice_changes_nothing():
    made, gap, _ = with_gap()
    backfill(gap[3])
    backfill(*gap[:3])
    before = list(Event.objects.order_by("pk").values_list()), ranges(made.room_id)
    assert backfill(*gap).stored == []
    assert (list(Event.objects.order_by("pk").values_list()), ranges(made.room_id)) == before


def test_more_than_is_resolved_at_once(monkeypatch):
    monkeypatch.setattr("events.persist.next_rows.MOST_FILLED", 2)
    made = closed_room()
    persist_all(made.events, 100)
    gap = [made.message() for _ in range(8)]
    persist(told(made, made.message()))
    backfill(*gap[1:])
    outcome = backfill(gap[0])
    assert outcome.unfinished_rooms == [made.room_id] and len(unresolved(made)) == 5
    assert resolve_room(made.room_id) == 5
    assert unresolved(made) == set() and resolve_room(made.room_id) == 0


# --- rooms that consist of old events -----------------------------------------------------------------------------


def test_room_of_old_events_only_is_known_down_to_its_beginning():
    made = closed_room()
    made.member(BOB, "join")
    events = [*made.events, made.message(sender=BOB)]
    persist([incoming(made.create, outlier=True)])
    backfill(*events[3:])
    assert Room.objects.get().current_state_unresolved
    assert extremities(made.room_id) == [events[-1].event_id]
    backfill(*events[:3])
    room = Room.objects.get()
    assert not room.current_state_unresolved and room.create_event_id == made.create.event_id
    assert current_state(made.room_id) == replayed_state(made.room_id) == made.state_after(events[-1].event_id)
    assert unresolved(made) == set()
    assert persist([incoming(made.message(sender=BOB))]).refused == []


def test_room_that_becomes_known_is_readable():
    made = closed_room()
    hidden = made.message()
    made.member(BOB, "join")
    events = [*made.events, made.message(sender=BOB)]
    persist([incoming(made.create, outlier=True)])
    backfill(*events[3:])
    backfill(*events[:3])
    assert not Room.objects.get().visibility_unresolved
    assert seen(made, BOB) == {event.event_id for event in events} - {hidden.event_id}


def test_leaf_that_turns_out_rejected_gives_way():
    made = closed_room()
    base = made.events[-1]
    persist([incoming(made.create, outlier=True)])
    late = made.message(prev=[base], sender=BOB)  # Bob never joined; the events that tell are not here
    backfill(late)
    assert extremities(made.room_id) == [late.event_id]
    backfill(*made.events[:5])
    assert Event.objects.get(event_id=late.event_id).rejected_reason is not None
    assert extremities(made.room_id) == [base.event_id]
    assert current_state(made.room_id) == made.state_after(base.event_id)


def test_verdict_is_told():
    _, gap, _ = with_gap()
    assert verdict(backfill(gap[3]), gap[3]).rejected_reason is None


# --- ranges against the rule --------------------------------------------------------------------------------------


def random_history(seed):
    """(made, live batches, old events): a room with changes of members and of the setting, of which parts come late."""
    choose = random.Random(seed)
    made = closed_room()
    for number in range(24):
        kind = choose.choice(["say", "say", "join", "leave", "setting", "topic"])
        prev = [choose.choice(made.events[4:][-3:])] if choose.random() < 0.3 else None
        if kind in ("join", "leave"):
            made.member(choose.choice([BOB, EVE]), kind, prev=prev)
        elif kind == "setting":
            value = choose.choice(["joined", "shared", "invited", "world_readable"])
            made.state("m.room.history_visibility", "", {"history_visibility": value}, prev=prev)
        elif kind == "topic":
            made.topic(f"{number}", prev=prev)
        else:
            made.message(prev=prev)
    last = made.message()
    below = {event.event_id for event in made.events}
    assert last.event_id in below
    return made, choose


def assert_ranges_tell_what_the_rule_tells(made, user):
    answers = explain_visibility(user, [event.event_id for event in made.events])
    shown = {answer.event_id for answer in answers if isinstance(answer, Explanation) and answer.seen}
    assert visible_to(user, [event.event_id for event in made.events]).keys() == shown
    access = read_access(user, [made.room_id])[made.room_id]
    if not access.readable:
        with pytest.raises(NotReadable):
            seen(made, user)
        assert shown == set()
        return
    onwards = timeline(made.room_id, user, PAGE_LIMIT, after=OLDEST).events
    assert {event.event_id for event in onwards} == shown
    leave = LARGEST if access.cut_depth is None else access.cut_depth  # where going back begins
    not_deeper = Event.objects.filter(event_id__in=shown, topological_ordering__lte=leave)
    assert seen(made, user) == set(not_deeper.values_list("event_id", flat=True))


@pytest.mark.parametrize("seed", range(examples(12)))
def test_ranges_of_rooms_with_gaps_tell_what_the_rule_tells(seed):
    made, choose = random_history(seed)
    here = 5 + choose.randrange(8)
    persist_all(made.events[:here], 100)
    above = made.events[here + 8 :]
    for event in above:
        missing = [
            prev for prev in event.prev_event_ids if not Event.objects.filter(event_id=prev, outlier=False).exists()
        ]
        persist(told(made, event) if missing else [incoming(event)])
    old = made.events[here : here + 8]
    choose.shuffle(old)
    for start in range(0, len(old), 3):
        assert backfill(*old[start : start + 3]).refused == []
        for user in (ALICE, BOB, EVE, "@stranger:d.test"):
            assert_ranges_tell_what_the_rule_tells(made, user)
    assert unresolved(made) == set() and not Room.objects.get().visibility_unresolved
    assert current_state(made.room_id) == replayed_state(made.room_id)


# --- imported rooms -----------------------------------------------------------------------------------------------


def test_imported_room_without_its_beginning_is_known_once_that_comes():
    """Every live event of it had no state; then ranges of the whole room are made anew."""
    made, _ = random_history(3)
    result = store_room([replace(event, outlier=False) for event in made.events[4:]], first_position=1_000_000)
    room = Room.objects.get()
    assert result.current_state_unresolved and room.current_state_unresolved and room.visibility_unresolved
    with pytest.raises(NotReadable):
        timeline_of(BOB, made.room_id)
    assert backfill(*made.events[:4]).refused == []
    room = Room.objects.get()
    assert not room.current_state_unresolved and not room.visibility_unresolved
    assert room.create_event_id == made.create.event_id and unresolved(made) == set() and gaps(made.room_id) == []
    states = RoomStates(room_version(made.version), made.events)
    states.assign(made.events)
    for event in made.events:
        assert state_at(event.event_id).after == states.builder.expand(states.after[event.event_id])
        stored = Event.objects.get(event_id=event.event_id)
        assert stored.rejected_reason == states.events[event.event_id].rejected_reason
    assert current_state(made.room_id) == replayed_state(made.room_id) != {}
    for user in (ALICE, BOB, EVE, "@stranger:d.test"):
        assert_ranges_tell_what_the_rule_tells(made, user)
