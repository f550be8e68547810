"""States told from outside: joining through another server, live events above a gap, backfill with a state."""

import pytest

from events.errors import Reason
from events.integrity.repair import check_room
from events.models import CurrentStateDelta, Event, EventVisibility, Room
from events.persist.batch import Incoming, with_state
from events.reading.pages import timeline_of
from events.reading.timeline import state_at
from state.models import StateGroup
from tests.support.made_rooms import ALICE, BOB, EVE, public_room
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

pytestmark = pytest.mark.django_db


def state_of(made, event):
    """The state events before an event, as another server tells them."""
    by_id = {known.event_id: known for known in made.events}
    return [by_id[event_id] for event_id in made.state_after(event.prev_event_ids[0]).values()]


def told(made, event, **about):
    """The batch of an event with its state."""
    return with_state(incoming(event, **about), [state.json for state in state_of(made, event)])


def verdict(outcome, event):
    """What became of one event of a batch."""
    return next(stored for stored in outcome.stored if stored.event_id == event.event_id)


def reasons(outcome):
    return [refused.error.reason for refused in outcome.refused]


# --- joining ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1", "6", "10", "11", "12"])
def test_join_of_a_room_elsewhere_makes_it_known(version):
    made = public_room(version)
    for _ in range(3):
        made.message()
    join = made.member(BOB, "join")
    outcome = persist(told(made, join))
    assert outcome.refused == []
    assert not verdict(outcome, join).soft_failed and verdict(outcome, join).rejected_reason is None
    room = Room.objects.get()
    assert (room.room_id, room.creator, room.create_event_id) == (made.room_id, ALICE, made.create.event_id)
    assert not room.current_state_unresolved and not room.visibility_unresolved
    assert extremities(made.room_id) == [join.event_id]
    assert gaps(made.room_id) == [join.prev_event_ids[0]]
    expected = made.state_after(join.event_id)
    assert current_state(made.room_id) == replayed_state(made.room_id) == state_at(join.event_id).after == expected
    assert Event.objects.filter(outlier=True).count() == 4
    assert [entry.event_id for entry in timeline_of(BOB, made.room_id)] == [join.event_id]


def test_talk_goes_on_after_the_join():
    made = public_room()
    join = made.member(BOB, "join")
    persist(told(made, join))
    outcome = persist([incoming(made.message(sender=BOB)), incoming(made.message())])
    assert [stored.soft_failed for stored in outcome.stored] == [False, False]
    assert len(timeline_of(BOB, made.room_id)) == 3
    assert StateGroup.objects.filter(prev_group=None).count() == 1  # the given one is stored in full, once


def test_state_goes_in_whole_before_the_event_in_a_batch_of_its_own():
    made = public_room()
    made.message()
    join = made.member(BOB, "join")
    batch = told(made, join)
    assert len(persist(batch[:-1]).stored) == 4
    assert not extremities(made.room_id)
    outcome = persist(batch)
    assert [stored.event_id for stored in outcome.stored] == [join.event_id] and len(outcome.duplicates) == 4


def test_rejected_events_do_not_count_in_a_given_state():
    made = public_room()
    forged = made.send({"type": "m.room.topic", "state_key": "", "sender": EVE, "content": {"topic": "x"}})
    join = made.member(BOB, "join")
    outcome = persist(told(made, join))
    verdicts = {stored.event_id: stored.rejected_reason for stored in outcome.stored}
    assert verdicts[forged.event_id] is not None and verdicts[join.event_id] is None
    assert ("m.room.topic", "") not in current_state(made.room_id)


def test_join_that_the_state_forbids_is_rejected():
    made = public_room()
    made.state("m.room.join_rules", "", {"join_rule": "invite"})
    join = made.member(BOB, "join")
    outcome = persist(told(made, join))
    assert "not invited" in verdict(outcome, join).rejected_reason
    assert extremities(made.room_id) == [] and current_state(made.room_id) == {}


def test_event_that_cannot_be_read_is_refused_alone():
    made = public_room()
    join = made.member(BOB, "join")
    batch = with_state(incoming(join), [b"{", *(state.json for state in state_of(made, join))])
    outcome = persist(batch)
    assert reasons(outcome) == [Reason.NOT_JSON] and extremities(made.room_id) == [join.event_id]


def test_version_has_to_be_told():
    with pytest.raises(ValueError, match="room version"):
        with_state(Incoming(b"{}"), [])


def test_repeating_a_join_changes_nothing():
    made = public_room()
    join = made.member(BOB, "join")
    batch = told(made, join)
    persist(batch)
    before = list(Event.objects.order_by("pk").values_list()), ranges(made.room_id), StateGroup.objects.count()
    outcome = persist(batch)
    assert outcome.stored == [] and len(outcome.duplicates) == 5
    assert (
        list(Event.objects.order_by("pk").values_list()),
        ranges(made.room_id),
        StateGroup.objects.count(),
    ) == before


# --- entries that nothing vouches for ------------------------------------------------------------------------------

LEVELS, RULES = ("m.room.power_levels", ""), ("m.room.join_rules", "")
VERSIONS = ("1", "2", "3", "6", "10", "11", "12")


def by_eve(made, parts, named, prev):
    """A state event of hers, whose auth events are the room's create event, her membership and those named."""
    state = made.state_after(prev.event_id)
    auth = [state["m.room.member", EVE], *named]
    auth += [] if made.version == "12" else [made.create.event_id]
    old = made.version in ("1", "2")
    own = {"event_id": f"$eve{len(made.events)}:e.test"} if old else {}
    listed = [[event_id, {}] for event_id in auth] if old else auth
    return made.send({"state_key": "", "sender": EVE, "auth_events": listed, **own, **parts}, [prev])


def joined_on(made, state, chain=(), named=None):
    """The batch of BOB's join on a state, as Eve's server tells it; its auth events are those of ``named``, if given."""
    made._states["$hidden"] = named or state
    join = made.member(BOB, "join", prev=["$hidden"])
    texts = {event.event_id: event.json for event in made.events}
    return join, with_state(
        incoming(join), [texts[entry] for entry in state.values()], [texts[event_id] for event_id in chain]
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "how", ["kept back", "kept back below", "kept back, and stored before", "stored before its own"]
)
def test_levels_that_nothing_vouches_for_do_not_count_at_a_join(version, how):
    """Eve's server, through which BOB joins, makes her an admin by an event whose auth events it does not give."""
    made = public_room(version)
    made.member(EVE, "join")
    last = made.message()
    state = made.state_after(last.event_id)
    parts = {"type": LEVELS[0], "content": {"users": {EVE: 100}}}
    missing = ["$kept_back:e.test"] if how != "stored before its own" else [state[LEVELS]]
    lie = by_eve(made, parts, missing, last)
    chain = list(state.values())
    if how == "kept back below":
        chain.append(lie.event_id)
        lie = by_eve(made, parts, [lie.event_id], last)
    if "stored" in how:
        persist([incoming(lie, outlier=True)])
        assert verdicts(made.room_id) == {lie.event_id: (False, False)}
    told_state = {**state, LEVELS: lie.event_id}
    refused = persist(joined_on(made, told_state, chain)[1]).refused
    assert [one.error.reason for one in refused] == [Reason.MISSING_AUTH_EVENTS]  # the join names the lie itself
    join, batch = joined_on(made, told_state, chain, state)
    outcome = persist(batch)
    assert outcome.refused == [] and verdict(outcome, join).rejected_reason is None
    del state[LEVELS]
    assert current_state(made.room_id) == {**state, ("m.room.member", BOB): join.event_id}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_join_that_only_such_an_entry_allows_is_rejected(version):
    made = public_room(version)
    made.member(EVE, "join")
    last = made.state(*RULES, {"join_rule": "invite"})
    state = made.state_after(last.event_id)
    lie = by_eve(made, {"type": RULES[0], "content": {"join_rule": "public"}}, ["$kept_back:e.test"], last)
    join, batch = joined_on(made, {**state, RULES: lie.event_id}, state.values())
    outcome = persist(batch)
    assert "not invited" in verdict(outcome, join).rejected_reason
    assert extremities(made.room_id) == [] and current_state(made.room_id) == {}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("first", ["in one batch", "outliers first", "entries first"])
def test_entries_whose_auth_chain_comes_with_them_count(version, first):
    """Levels were changed twice, and the first ones, which are no part of the state, are of the auth chain."""
    made = public_room(version)
    made.member(EVE, "join")
    users = {} if version == "12" else {ALICE: 100}
    made.state(*LEVELS, {"users": {**users, EVE: 50}})
    last = made.send({"type": "m.room.topic", "state_key": "", "sender": EVE, "content": {"topic": "x"}})
    made.state(*LEVELS, {"users": users})
    state = made.state_after(made.events[-1].event_id)
    join, batch = joined_on(made, state, [event.event_id for event in made.events if event.is_state])
    if first == "outliers first":
        persist(batch[:-1])
    if first == "entries first":
        entries = [event for event in made.events if event.event_id in state.values()]
        for event in reversed(entries):
            persist([incoming(event, outlier=True)])
    outcome = persist(batch)
    assert verdict(outcome, join).rejected_reason is None
    assert current_state(made.room_id) == made.state_after(join.event_id)
    assert state["m.room.topic", ""] == last.event_id


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("backfilled", [True, False])
@pytest.mark.parametrize("with_it", [True, False])
def test_only_a_create_event_stands_on_nothing(version, backfilled, with_it):
    """Such an event had the state that was told with it, which nothing of the room can ever contradict."""
    made = public_room(version)
    persist_all(made.events, 100)
    state = made.state_after(made.events[-1].event_id)
    named = [entry for key, entry in state.items() if key[0] in ("m.room.power_levels", "m.room.member")]
    named += [] if version == "12" else [made.create.event_id]
    listed = [[event_id, {}] for event_id in named] if version in ("1", "2") else named
    floating = made.send({"type": "m.room.message", "auth_events": listed}, prev=[])
    about = {"state_before": list(state.values())} if with_it else {}
    outcome = persist([incoming(floating, backfilled=backfilled, **about)])
    assert reasons(outcome) == [Reason.NO_PREV_EVENTS] and outcome.stored == []
    assert check_room(made.room_id).clean


def test_a_create_event_has_no_state_before_it():
    made = public_room()
    persist_all(made.events, 100)
    state = made.state_after(made.events[-1].event_id)
    second = made.send({"type": "m.room.create", "state_key": ALICE, "content": {"room_version": "10"}}, prev=[])
    persist([incoming(second, state_before=list(state.values()))])
    assert check_room(made.room_id).clean


# --- a state that cannot be ---------------------------------------------------------------------------------------


def test_state_that_cannot_be_is_refused_by_name():
    made, other = public_room(), public_room(room_id="!other:a.test")
    topic = made.topic("one")
    second = made.topic("two", prev=[made.events[3]])
    message = made.message()
    missing = made.message()
    base = [event.event_id for event in made.events[:4]]
    persist([incoming(event, outlier=True) for event in (*made.events[:-1], *other.events)])
    for named in (
        [*base, "$nowhere"],
        [*base, other.alice.event_id],
        [*base, message.event_id],
        [*base, topic.event_id, second.event_id],
        base[1:],
        [],
    ):
        above = made.message(prev=[missing])
        fine = made.member(EVE, "join", prev=[made.events[3]])
        outcome = persist([incoming(above, state_before=named), incoming(fine, outlier=True)])
        assert reasons(outcome) == [Reason.BAD_STATE], named
        assert len(outcome.stored) + len(outcome.duplicates) == 1
    assert not Event.objects.filter(outlier=False).exists()


def test_state_that_builds_on_its_own_event_is_a_cycle():
    made = public_room()
    topic = made.topic("x")
    above = made.message(prev=[topic])
    below = made.send({"type": "m.room.message", "prev_events": ["$missing"]})
    state = [event.event_id for event in made.events[:4]]
    strange = made.send({"type": "m.room.name", "state_key": "", "prev_events": [below.event_id]}, prev=[below])
    persist_all(made.events[:4])
    outcome = persist([incoming(strange), incoming(below, state_before=[*state, strange.event_id])])
    assert set(reasons(outcome)) == {Reason.CYCLE}
    assert persist([incoming(topic), incoming(above)]).refused == []


# --- live events above a gap --------------------------------------------------------------------------------------


def gapped(made, missing=2):
    """A stored room, then messages that are not stored; the next event of ``made`` stands above the gap."""
    persist_all(made.events, 100)
    return [made.message() for _ in range(missing)]


def test_live_event_above_a_gap_needs_its_state():
    made = public_room()
    gapped(made)
    above = made.message()
    assert reasons(persist([incoming(above)])) == [Reason.MISSING_PREV_EVENTS]
    outcome = persist(told(made, above))
    assert verdict(outcome, above).stream_ordering > 0 and not verdict(outcome, above).soft_failed
    assert gaps(made.room_id) == list(above.prev_event_ids)
    assert extremities(made.room_id) == sorted([made.events[3].event_id, above.event_id])
    assert not Room.objects.get().visibility_unresolved
    assert current_state(made.room_id) == made.state_after(above.event_id)


def test_state_above_a_gap_shares_the_groups_that_are_here():
    made = public_room()
    gapped(made)
    before = StateGroup.objects.count()
    persist(told(made, made.message()))
    assert StateGroup.objects.count() == before
    made.topic("new")
    made.message()
    persist(told(made, made.message()))
    assert StateGroup.objects.filter(prev_group=None).count() == 1


def test_event_above_a_gap_soft_fails_against_the_current_state():
    made = public_room()
    joined = made.member(BOB, "join")
    ban = made.member(BOB, "ban", sender=ALICE)
    persist_all(made.events, 100)
    made.message(prev=[joined], sender=BOB)
    late = made.message(sender=BOB)
    outcome = persist(told(made, late))
    assert verdict(outcome, late).soft_failed and extremities(made.room_id) == [ban.event_id]


def test_state_known_from_below_wins_over_a_given_one():
    made = public_room()
    topic = made.topic("x")
    persist_all(made.events, 100)
    above = made.message()
    without = [event.event_id for event in made.events[:4]]
    persist([incoming(above, state_before=without)])
    assert state_at(above.event_id).after["m.room.topic", ""] == topic.event_id


def test_resolution_of_the_given_state_with_the_rooms_own():
    made = public_room()
    base = made.events[-1]
    mine = made.topic("here", prev=[base])
    persist_all(made.events, 100)
    made.topic("there", prev=[base])
    above = made.message()
    persist(told(made, above))
    assert extremities(made.room_id) == sorted([mine.event_id, above.event_id])
    merge = made.message(prev=[mine, above])
    persist([incoming(merge)])
    assert extremities(made.room_id) == [merge.event_id]
    assert state_at(merge.event_id).after == current_state(made.room_id) == replayed_state(made.room_id)


# --- old events ---------------------------------------------------------------------------------------------------


def test_backfilled_event_with_a_given_state_is_seen_by_whom_it_should():
    made = public_room()
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    made.member(BOB, "join")
    made.message()
    said = made.message(sender=BOB)
    made.member(EVE, "join")
    join = made.member(EVE, "join")
    persist(told(made, join))
    outcome = persist(told(made, said, backfilled=True))
    place = verdict(outcome, said).stream_ordering
    assert place < 0 and state_at(said.event_id).after == made.state_after(said.event_id)
    assert said.event_id in {entry.event_id for entry in timeline_of(BOB, made.room_id)}
    assert said.event_id not in {entry.event_id for entry in timeline_of(EVE, made.room_id)}
    assert EventVisibility.objects.filter(first=place, last=place, user_id=BOB).exists()
    assert extremities(made.room_id) == [join.event_id]


def test_changes_of_the_current_state_are_facts():
    made = public_room()
    join = made.member(BOB, "join")
    persist(told(made, join))
    place = Event.objects.get(event_id=join.event_id).stream_ordering
    assert {row.stream_ordering for row in CurrentStateDelta.objects.all()} == {place}


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        (["$\0"], Reason.NUL_CHARACTER),
        (["$\ud800"], Reason.BAD_UNICODE),
        (["$" + "x" * 300], Reason.IDENTIFIER_TOO_LONG),
        ([5], Reason.WRONG_TYPE),
        ([[]], Reason.WRONG_TYPE),
        ("$one", Reason.WRONG_TYPE),
        (5, Reason.WRONG_TYPE),
    ],
)
def test_state_that_names_no_ids_refuses_its_event_alone(named, reason):
    made = public_room()
    persist_all(made.events, batch=10)
    good, bad = made.message(), made.message(["$missing"])
    outcome = persist([incoming(bad, state_before=named), incoming(good)])
    assert reasons(outcome) == [reason]
    assert [stored.event_id for stored in outcome.stored] == [good.event_id]
