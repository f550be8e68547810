"""Auth events that are missing when an event comes: it waits for them, and no verdict or state depends on the order."""

from __future__ import annotations

import random

import pytest

from events.errors import Reason
from events.integrity.repair import check_room, resync_room
from events.models import Event, Room
from events.persist import batch as storing
from events.persist import room_cache
from events.persist.batch import with_state
from events.persist.gap_filling import resolve_room
from events.persist.room_cache import clear_caches
from events.room import state_assignment
from events.sending.send import LocalRoom
from tests.integration.events.test_visible_sql import compare
from tests.support.effort import examples
from tests.support.made_rooms import ALICE, BOB, EVE, MadeRoom, public_room
from tests.support.persisted_rooms import (
    current_state,
    extremities,
    incoming,
    persist,
    persist_all,
    purge_half,
    verdicts,
)
from tests.support.ranges import assert_all_ways_agree

pytestmark = pytest.mark.django_db(transaction=True)
VERSIONS = ("1", "2", "6", "10", "12")
LEVELS, TOPIC = "m.room.power_levels", ("m.room.topic", "")


class Topics:
    """A forked room with two topics; the auth events of Eve's name power levels of ``sender`` that nobody has stored."""

    def __init__(self, version, sender=ALICE):
        self.made = made = MadeRoom(version, ruled=True)
        users = {} if version == "12" else {ALICE: 100}
        own = {EVE: 100} if sender == EVE else {}
        made.state(LEVELS, "", {"users": users, "state_default": 0})
        made.state("m.room.join_rules", "", {"join_rule": "public"})
        self.eve = made.member(EVE, "join")
        last = made.message()
        persist_all(made.events, 100)
        content = {"users": {**users, **own}, "state_default": 0}
        self.levels = self.by(sender, last, type=LEVELS, content=content)
        self.mine = made.topic("alice", [last])
        self.theirs = self.by(EVE, last, type=TOPIC[0], content={"topic": "eve"}, auth_events=self.auth())

    def by(self, sender, last, **parts):
        own = {"event_id": f"$its{len(self.made.events)}:{sender[1]}.test"} if self.made.version in ("1", "2") else {}
        return self.made.send({"sender": sender, "state_key": "", **own, **parts}, [last])

    def auth(self):
        ids = [self.levels.event_id, self.eve.event_id]
        ids += [] if self.made.version == "12" else [self.made.create.event_id]
        return [[one, {}] for one in ids] if self.made.version in ("1", "2") else ids

    def assert_agreed(self):
        """All ways tell the same, in a process that has nothing cached, and after the next message."""
        room_id = self.made.room_id
        for _ in range(2):
            assert_all_ways_agree(room_id)
            clear_caches()
            LocalRoom(room_id).send(ALICE, "m.room.message", {"body": "x"})


@pytest.fixture(params=VERSIONS)
def version(request):
    return request.param


def reasons(outcome):
    return [refused.error.reason for refused in outcome.refused]


@pytest.mark.parametrize("sender", [ALICE, EVE])
@pytest.mark.parametrize("how", ["outlier", "backfilled", "live"])
def test_an_event_waits_for_its_auth_events(version, sender, how):
    """Judged without them, it was accepted, and took part in resolutions that turned out otherwise when they came."""
    room = Topics(version, sender)
    assert persist([incoming(room.mine)]).refused == []
    outcome = persist([incoming(room.theirs)])
    assert reasons(outcome) == [Reason.MISSING_AUTH_EVENTS] and outcome.stored == []
    assert room.levels.event_id in outcome.refused[0].error.detail
    room.assert_agreed()
    assert persist([incoming(room.levels, **({how: True} if how != "live" else {}))]).refused == []
    room.assert_agreed()
    outcome = persist([incoming(room.theirs)])
    assert outcome.refused == [] and (outcome.stored[0].rejected_reason is None) is (sender == ALICE)
    room.assert_agreed()


def test_what_is_below_an_auth_event_counts_too(version):
    """The levels are here as an outlier, as an invite may be; what authorises them is not."""
    room = Topics(version)
    made = room.made
    named = [room.levels.event_id, made.alice.event_id, *([] if version == "12" else [made.create.event_id])]
    named = [[one, {}] for one in named] if version in ("1", "2") else named
    content = {"users": {} if version == "12" else {ALICE: 100}, "state_default": 0}
    above = made.send({"type": LEVELS, "state_key": "", "content": content, "auth_events": named}, [room.mine])
    lacking, room.levels = room.levels, above
    parts = {"type": TOPIC[0], "content": {"topic": "x"}, "auth_events": room.auth()}
    theirs = room.by(EVE, room.mine, **parts)
    persist([incoming(room.mine), incoming(above, outlier=True)])
    assert reasons(persist([incoming(theirs)])) == [Reason.MISSING_AUTH_EVENTS]
    assert reasons(persist([incoming(theirs, backfilled=True)])) == [Reason.MISSING_AUTH_EVENTS]
    assert persist([incoming(lacking, outlier=True), incoming(theirs)]).refused == []
    room.assert_agreed()


def test_what_builds_on_a_refused_event_is_refused_as_well(version):
    room = Topics(version)
    above = room.made.message([room.theirs])
    outcome = persist([incoming(above), incoming(room.theirs), incoming(room.mine)])
    assert sorted(reasons(outcome)) == [Reason.MISSING_AUTH_EVENTS, Reason.MISSING_PREV_EVENTS]
    assert [stored.event_id for stored in outcome.stored] == [room.mine.event_id]


def test_a_rejection_needs_no_auth_events(version):
    """What is here suffices: no auth event can make it allowed."""
    room = Topics(version)
    bad = room.by(BOB, room.mine, type=TOPIC[0], content={"topic": "x"}, auth_events=room.auth())
    outcome = persist([incoming(room.mine), incoming(bad)])
    assert outcome.refused == [] and verdicts(room.made.room_id)[bad.event_id] == (True, False)


@pytest.mark.parametrize("how", ["again", "resolve_room"])
def test_an_old_event_has_no_state_until_its_auth_events_are_here(version, how):
    room = Topics(version)
    made = room.made
    below = made.message([room.mine])
    parts = {"type": TOPIC[0], "content": {"topic": "eve"}, "auth_events": room.auth()}
    theirs = room.by(EVE, below, **parts)
    above = made.message([theirs])
    persist([incoming(room.mine)])
    assert persist([incoming(theirs, backfilled=True), incoming(above, backfilled=True)]).refused == []
    assert persist([incoming(below, backfilled=True)]).waiting_for_auth == [theirs.event_id]

    def waiting():
        return set(Event.objects.filter(state_unresolved=True).values_list("event_id", flat=True))

    assert waiting() == {theirs.event_id, above.event_id}
    room.assert_agreed()
    assert resolve_room(made.room_id) == 0
    assert persist([incoming(room.levels, outlier=True)]).refused == []
    if how == "again":
        assert persist([incoming(theirs, backfilled=True)]).duplicates == [theirs.event_id]
    else:
        assert resolve_room(made.room_id) == 2
    assert waiting() == set()
    room.assert_agreed()


def test_a_told_state_brings_the_auth_chain_too(version):
    room = Topics(version)
    made = room.made
    room.made._states["$gap:e.test"] = made.state_after(room.mine.event_id)
    theirs = room.by(EVE, "$gap:e.test", type=TOPIC[0], content={"topic": "eve"}, auth_events=room.auth())
    texts = {event.event_id: event.json for event in made.events}
    state = [texts[entry] for entry in made.state_after("$gap:e.test").values()]
    persist([incoming(room.mine)])
    assert Reason.MISSING_AUTH_EVENTS in reasons(persist(with_state(incoming(theirs), state)))
    assert persist(with_state(incoming(theirs), state, [room.levels.json])).refused == []
    room.assert_agreed()


def test_an_import_goes_by_the_state_alone(version):
    """Dumps may lack auth events. Those that come later count for the current state at once, in every process."""
    room = Topics(version)
    made = room.made
    assert (
        storing.persist([incoming(room.mine), incoming(room.theirs)], verified=True, history_of="x.test").refused == []
    )
    assert sorted(extremities(made.room_id)) == sorted([room.mine.event_id, room.theirs.event_id])
    room_before = Room.objects.get().content_generation
    persist([incoming(room.levels, outlier=True)])
    assert Room.objects.get().content_generation > room_before
    room.assert_agreed()


def test_states_that_an_import_resolved_without_auth_events_can_be_computed_again(version):
    room = Topics(version)
    made = room.made
    merge = made.message([room.mine, room.theirs])
    lines = [incoming(event) for event in (room.mine, room.theirs, merge)]
    assert storing.persist(lines, verified=True, history_of="x.test").refused == []
    before = current_state(made.room_id)[TOPIC]
    persist([incoming(room.levels, outlier=True)])
    report = check_room(made.room_id)
    right = {difference.computed[0] for difference in report.differences if difference.table == "events_currentstate"}
    assert right == {room.mine.event_id, room.theirs.event_id} - {before} or report.clean
    assert resync_room(made.room_id, "state").after.clean
    assert report.clean or {current_state(made.room_id)[TOPIC]} == right
    LocalRoom(made.room_id).send(ALICE, "m.room.message", {"body": "x"})
    assert check_room(made.room_id).clean


@pytest.mark.parametrize("cached", [True, False])
def test_an_auth_event_that_is_rejected_at_its_place_leaves_verdicts_and_states(version, cached):
    """As an outlier it was allowed, and what names it was accepted: that stays. The current state follows at once."""
    room = Topics(version)
    made = room.made
    demoted = made.state(
        LEVELS, "", {"users": {} if version == "12" else {ALICE: 100}, "state_default": 0}, [room.mine]
    )
    eve_joined = room.eve
    gone = made.member(EVE, "leave", [demoted])
    named = [eve_joined.event_id, made.events[2].event_id]
    named += [] if version == "12" else [made.create.event_id]
    named = [[one, {}] for one in named] if version in ("1", "2") else named
    flip = room.by(EVE, gone, type=LEVELS, content=demoted.content, auth_events=named)  # she has left before it
    room.levels = flip
    theirs = room.by(EVE, room.mine, type=TOPIC[0], content={"topic": "eve"}, auth_events=room.auth())
    other = made.topic("other", [room.mine])
    persist([incoming(room.mine), incoming(other)])
    assert persist([incoming(flip, outlier=True), incoming(theirs)]).refused == []
    merge = made.message([theirs, other])
    assert verdicts(made.room_id)[theirs.event_id] == (False, False)
    if cached:
        persist([incoming(merge)])
    outcome = persist([incoming(demoted), incoming(gone), incoming(flip)])
    assert outcome.refused == [] and outcome.stored[-1].rejected_reason is not None
    assert verdicts(made.room_id)[theirs.event_id] == (False, False)
    room.assert_agreed()


def test_auth_events_of_a_purged_past_are_enough(version):
    """The purge made outliers of them; an event on a fork names some that the state has no more."""
    made = public_room(version)
    old = made.member(EVE, "join")
    fork = made.message()
    new = made.member(EVE, "join", [fork])
    for _ in range(6):
        made.message()
    persist_all(made.events, 100)
    purge_half(made.room_id)
    assert Event.objects.get(event_id=old.event_id).outlier and new.event_id != old.event_id
    named = [made.events[2].event_id, old.event_id, *([] if version == "12" else [made.create.event_id])]
    named = [[one, {}] for one in named] if version in ("1", "2") else named
    own = {"event_id": "$late:e.test"} if version in ("1", "2") else {}
    parts = {"type": "m.room.message", "sender": EVE, "auth_events": named, **own}
    late = made.send(parts, [made.events[-1]])
    outcome = persist([incoming(late)])
    assert outcome.refused == [] and outcome.stored[0].rejected_reason is None
    assert extremities(made.room_id) == [late.event_id]


def outliers_of_eve(made, last, count):
    """Her memberships, each authorised by the one before."""
    levels, rules = made.events[2].event_id, made.events[3].event_id
    found = [last]
    for _ in range(count):
        named = [made.create.event_id, levels, rules, found[-1].event_id]
        found.append(
            made.send(
                {"type": "m.room.member", "state_key": EVE, "sender": EVE, "content": {"membership": "join"}}
                | {"auth_events": named},
                [last],
            )
        )
    return found[1:]


def test_a_long_auth_chain_is_read_by_few_queries(django_assert_max_num_queries):
    """It was read event by event for every state event above it, with the room locked."""
    made = public_room()
    last = made.member(EVE, "join")
    persist_all(made.events, 100)
    chain = outliers_of_eve(made, last, 300)
    persist([incoming(event, outlier=True) for event in chain[:-1]])
    with django_assert_max_num_queries(30):
        persist([incoming(chain[-1], outlier=True)])
    mine = made.topic("mine", [last])
    parts = {"type": "m.room.topic", "state_key": "", "sender": EVE, "content": {"topic": "x"}}
    levels = made.state(LEVELS, "", {"users": {ALICE: 100}, "state_default": 0}, [last])
    theirs = made.send(parts | {"auth_events": [made.create.event_id, levels.event_id, chain[-1].event_id]}, [levels])
    clear_caches()
    with django_assert_max_num_queries(60):
        outcome = persist([incoming(event) for event in (mine, levels, theirs, made.message([mine, theirs]))])
    assert outcome.refused == [] and all(stored.rejected_reason is None for stored in outcome.stored)
    assert_all_ways_agree(made.room_id)


def test_an_auth_chain_has_a_limit(monkeypatch):
    """Who sends an event may have made its auth chain as long as it likes."""
    monkeypatch.setattr(state_assignment, "_MOST_UNPLACED", 20)
    made = public_room()
    last = made.member(EVE, "join")
    persist_all(made.events, 100)
    chain = outliers_of_eve(made, last, 40)
    persist([incoming(event, outlier=True) for event in chain])
    refused = []
    for top in (chain[10], chain[30]):
        named = [made.create.event_id, made.events[2].event_id, top.event_id]
        events = [made.send({"type": "m.room.message", "sender": EVE, "auth_events": named}, [last]) for _ in "ab"]
        refused.append(reasons(persist([incoming(event) for event in events])))
    assert refused == [[], [Reason.MISSING_AUTH_EVENTS] * 2]


def chain_of(made, event):
    """The auth chain of an event, oldest first."""
    by_id = {one.event_id: one for one in made.events}
    found, stack = set(), [event.event_id]
    while stack:
        for other in by_id[stack.pop()].auth_event_ids:
            if other not in found:
                found.add(other)
                stack.append(other)
    return [one for one in made.events if one.event_id in found]


def random_room(seed):
    """A room that forks, in which events name power levels of any branch, allowed or not."""
    dice = random.Random(seed)
    made = MadeRoom(dice.choice(VERSIONS), ruled=True)
    users = {} if made.version == "12" else {ALICE: 100}
    content = {"users": users, "state_default": 0, "invite": 0}
    first = made.state(LEVELS, "", content)
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    members = {EVE: made.member(EVE, "join")}
    members[BOB] = made.member(BOB, "join")
    made.state("m.room.history_visibility", "", {"history_visibility": dice.choice(["shared", "joined", "invited"])})
    levels = [first]
    for number in range(dice.randint(6, 14)):
        prev = dice.sample([event for event in made.events if event.type != LEVELS][-4:], dice.choice([1, 1, 2]))
        sender = dice.choice([ALICE, EVE, BOB])
        own = {"event_id": f"$r{number}:{sender[1]}.test"} if made.version in ("1", "2") else {}
        member = members.get(sender, made.alice)
        named = [dice.choice(levels).event_id, member.event_id]
        named += [] if made.version == "12" else [made.create.event_id]
        named = [[one, {}] for one in named] if made.version in ("1", "2") else named
        parts = {"sender": sender, **own}
        match dice.choice(["levels", "topic", "topic", "topic", "message", "leave", "setting"]):
            case "levels":
                new = {**content, "users": {**users, EVE: 50}} if dice.random() < 0.5 else content
                found = made.send(
                    {**parts, "type": LEVELS, "state_key": "", "content": new, "auth_events": named}, prev
                )
                levels.append(found)
            case "topic":
                text = {"topic": str(number)}
                made.send({**parts, "type": TOPIC[0], "state_key": "", "content": text, "auth_events": named}, prev)
            case "setting":
                text = {"history_visibility": dice.choice(["joined", "shared"])}
                kind = "m.room.history_visibility"
                made.send({**parts, "type": kind, "state_key": "", "content": text, "auth_events": named}, prev)
            case "leave":
                user = dice.choice([EVE, BOB])
                members[user] = made.member(user, dice.choice(["join", "leave"]), prev)
            case _:
                made.send({**parts, "type": "m.room.message", "auth_events": named}, prev)
    return made, dice


@pytest.mark.parametrize("seed", range(examples(25)))
def test_random_rooms_whose_auth_events_come_late(seed, monkeypatch):
    if seed % 2:  # the states are read by key, as those of a large room are
        monkeypatch.setattr(room_cache, "_MOST_READ_WHOLE", 0)
    made, dice = random_room(seed)
    start = 7
    persist_all(made.events[:start], 100)
    left = list(made.events[start:])
    tries = 0
    while left and tries < 60:
        tries += 1
        places = [place for place, event in enumerate(left) if event.type != LEVELS]  # those come last, mostly
        places = places if places and dice.random() < 0.9 else range(len(left))
        event = left[places[min(int(dice.expovariate(0.8)), len(places) - 1)]]
        chain = [incoming(one, outlier=True) for one in chain_of(made, event)] if dice.random() < 0.3 else []
        about = dice.choice([{}, {}, {"backfilled": True}, {"outlier": True}])
        outcome = persist([*chain, incoming(event, **about)])
        assert {*reasons(outcome)} <= {Reason.MISSING_AUTH_EVENTS, Reason.MISSING_PREV_EVENTS}
        if not about.get("outlier") and not outcome.refused:
            left.remove(event)
        if dice.random() < 0.5:
            clear_caches()
        resolve_room(made.room_id)
        assert_all_ways_agree(made.room_id)
    for user in (ALICE, BOB, EVE):
        compare(user, made.room_id)
