"""A member's server tells a state of old, or one of its own making, with an event: the room does not go back to that."""

import random

import pytest

from events.persist.batch import with_state
from events.persist.rebuild_visibility import rebuild_visibility
from events.sending.send import LocalRoom
from tests.integration.events.test_extremities import with_its_state
from tests.integration.events.test_room_check import generated, states_of
from tests.support.effort import examples
from tests.support.made_rooms import ALICE, EVE, public_room
from tests.support.persisted_rooms import current_state, extremities, incoming, persist, persist_all
from tests.support.ranges import assert_all_ways_agree

pytestmark = pytest.mark.django_db(transaction=True)
LEVELS = ("m.room.power_levels", "")
VERSIONS = ("1", "6", "10", "12")


class Rolled:
    """A room in which Eve, of another server, was let do much and may do nothing any more; ``old`` is the state she liked."""

    def __init__(self, version):
        self.made = made = public_room(version)
        others = {} if version == "12" else {ALICE: 100}
        made.member(EVE, "join")
        self.old = made.state_after(made.state(*LEVELS, {"users": {**others, EVE: 50}}).event_id)
        self.levels = made.state(*LEVELS, {"users": others})
        self.last = made.message()
        persist_all(made.events, 100)
        self.number = 0

    def by_eve(self, prev, **parts):
        """What she sends; whatever she calls by a name that nobody knows has the present state."""
        self.number += 1
        own = {"event_id": f"$eve{self.number}:e.test"} if self.made.version == "1" else {}
        for unknown in (one for one in prev if isinstance(one, str)):
            self.made._states[unknown] = self.made.state_after(self.last.event_id)
        return self.made.send({"type": "m.room.message", "sender": EVE, "content": {"body": "x"}, **own, **parts}, prev)

    def told(self, event, state=None, **about):
        """The batch of an event with a state that she tells."""
        texts = {known.event_id: known.json for known in self.made.events}
        return with_state(incoming(event, **about), [texts[entry] for entry in (state or self.old).values()])

    def assert_it_stays(self):
        """Also when somebody here goes on."""
        for _ in range(2):
            assert current_state(self.made.room_id)[LEVELS] == self.levels.event_id
            assert_all_ways_agree(self.made.room_id)
            assert LocalRoom(self.made.room_id).set_state(ALICE, "m.room.topic", {"topic": "x"}).rejected_reason is None
        assert rebuild_visibility(self.made.room_id)
        assert_all_ways_agree(self.made.room_id)


@pytest.fixture(params=VERSIONS)
def room(request):
    return Rolled(request.param)


@pytest.mark.parametrize("lacking", [True, False])
def test_beside_a_leaf_that_it_names(room, lacking):
    """With something that nobody else ever gets, so that the state before it has to be told."""
    state = {key: entry for key, entry in room.old.items() if key != LEVELS} if lacking else room.old
    evil = room.by_eve([room.last, "$unknown:e.test"])
    assert persist(room.told(evil, state)).refused == []
    assert extremities(room.made.room_id) == [evil.event_id]
    room.assert_it_stays()


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("through", [True, False])
def test_with_levels_of_her_own_whose_auth_events_she_keeps_back(room, beside, through):
    """Deeper down than those that hold, which is what counts in room version 1."""
    made = room.made
    named = [] if made.version == "12" else [made.create.event_id]
    named += [made.state_after(room.last.event_id)["m.room.member", EVE], "$kept_back:e.test"]
    parts = {"type": LEVELS[0], "state_key": "", "depth": 1, "content": {"users": {EVE: 100}}}
    own = room.by_eve([room.last], **parts, auth_events=auth(made, named))
    chain = [own]
    if through:
        named[-1] = own.event_id
        chain.append(room.by_eve([own], **parts, auth_events=auth(made, named)))
    room.made._states["$unknown:e.test"] = {**made.state_after(room.last.event_id), LEVELS: chain[-1].event_id}
    prevs = [room.last, "$unknown:e.test"] if beside else ["$unknown:e.test"]
    evil = room.by_eve(
        prevs, auth_events=auth(made, [e for e in named if e not in ("$kept_back:e.test", own.event_id)])
    )
    batch = room.told(evil, made.state_after(room.last.event_id) | {LEVELS: chain[-1].event_id})
    assert persist([incoming(own, outlier=True), *batch]).refused == []
    room.assert_it_stays()


@pytest.mark.parametrize("kind", ["topic", "ban"])
def test_with_what_such_levels_would_allow(room, kind):
    """The levels themselves are not told: those that hold stay, and are agreed on."""
    made = room.made
    state = made.state_after(room.last.event_id)
    named = [] if made.version == "12" else [made.create.event_id]
    named.append(state["m.room.member", EVE])
    parts = {"type": LEVELS[0], "state_key": "", "depth": 1, "content": {"users": {EVE: 100}}}
    lie = room.by_eve([room.last], **parts, auth_events=auth(made, [*named, "$kept_back:e.test"]))
    acts = {
        "topic": {"type": "m.room.topic", "state_key": "", "content": {"topic": "mine"}},
        "ban": {"type": "m.room.member", "state_key": "@mallory:e.test", "content": {"membership": "ban"}},
    }
    act = room.by_eve([room.last], depth=1, **acts[kind], auth_events=auth(made, [*named, lie.event_id]))
    key = act.type, act.state_key
    evil = room.by_eve(["$unknown:e.test"], auth_events=auth(made, [*named, state[LEVELS]]))
    batch = room.told(evil, state | {key: act.event_id})
    assert persist([incoming(lie, outlier=True), *batch]).refused == []
    assert key not in current_state(made.room_id)
    room.assert_it_stays()


def auth(made, event_ids):
    return [[event_id, {}] for event_id in event_ids] if made.version == "1" else event_ids


@pytest.mark.parametrize("how", ["backfill", "backfill with it", "live", "with it again"])
def test_above_an_event_that_comes_later_and_stands_on_a_leaf(room, how):
    under = room.by_eve([room.last])
    top = room.by_eve([under])
    assert persist(room.told(top)).refused == []
    batches = {
        "backfill": [incoming(under, backfilled=True)],
        "backfill with it": room.told(under, backfilled=True),
        "live": [incoming(under)],
        "with it again": [*room.told(top), incoming(under, backfilled=True)],
    }
    assert persist(batches[how]).refused == []
    room.assert_it_stays()


@pytest.mark.parametrize("resolved", [True, False])
def test_above_an_old_event_of_which_the_state_is_not_known(room, resolved):
    gone = room.by_eve([room.last])
    under = room.by_eve([room.last, gone])
    top = room.by_eve([under])
    assert persist([incoming(under, backfilled=True)]).refused == []
    assert persist(room.told(top)).refused == []
    if resolved:
        assert persist([incoming(gone, backfilled=True)]).refused == []
    room.assert_it_stays()


def test_with_the_state_of_an_old_event_that_it_names(room):
    """What it names beside that comes later, still without a state of its own."""
    old = next(event for event in room.made.events if event.event_id == room.old[LEVELS])
    under = room.by_eve([room.last, "$unknown:e.test"])
    top = room.by_eve([old, under])
    assert persist(room.told(top)).refused == []
    assert persist([incoming(under, backfilled=True)]).refused == []
    room.assert_it_stays()


def test_what_it_leaves_out_counts_when_it_comes(room):
    """She names a ban before it comes, with a state that knows nothing of it."""
    ban = room.made.member("@mallory:e.test", "ban", sender=ALICE, prev=[room.last])
    top = room.by_eve([ban])
    assert persist(room.told(top, room.made.state_after(room.last.event_id))).refused == []
    assert persist([incoming(ban)]).refused == []
    assert current_state(room.made.room_id)["m.room.member", "@mallory:e.test"] == ban.event_id
    room.assert_it_stays()


def test_a_state_that_is_right_covers_the_leaf_as_soon_as_that_shows(room):
    under = room.by_eve([room.last])
    top = room.by_eve([under])
    assert persist(room.told(top, room.made.state_after(room.last.event_id))).refused == []
    assert extremities(room.made.room_id) == sorted([room.last.event_id, top.event_id])
    assert persist([incoming(under, backfilled=True)]).refused == []
    assert extremities(room.made.room_id) == [top.event_id]
    room.assert_it_stays()


@pytest.mark.parametrize("seed", range(examples(12)))
def test_generated_rooms_with_states_that_are_not_those_before(seed):
    """Whatever is told, and in whatever order the gaps are filled: all ways make the same of what is stored."""
    made, choose = generated(seed, 40, allowed_only=True), random.Random(seed)
    states = states_of(made)
    maps = {event.event_id: states.builder.expand(states.before[event.event_id]) for event in made.events[1:]}
    here, left_out = set(), []
    for number, event in enumerate(made.events):
        if number > 8 and choose.random() < 0.25:
            left_out.append(event)
        elif here.issuperset(event.prev_event_ids):
            outcome = persist([incoming(event)])
            here.update(stored.event_id for stored in outcome.stored)
        else:
            other = choose.choice(made.events[6:number])
            outcome = persist(with_its_state(made, event, maps[other.event_id]))
            here.update({event.event_id} & {stored.event_id for stored in outcome.stored})
        if number % 5 == 0:
            assert_all_ways_agree(made.room_id)
    choose.shuffle(left_out)
    while left_out:
        batch, left_out = left_out[:3], left_out[3:]
        persist([incoming(event, backfilled=True) for event in batch])
        assert_all_ways_agree(made.room_id)
