"""What an event can be: normal, outlier, rejected, soft-failed, backfilled; in any order within a batch, and however often.

A row of each table of the reference: whether the event has a state group, becomes a leaf, and is in timelines.
"""

import random
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from events.models import Event, EventAuth, EventEdge, EventJson, EventVisibility
from events.reading.pages import timeline_of
from events.reading.timeline import state_at, timeline
from tests.support.made_rooms import ALICE, BOB, EVE, MadeRoom
from tests.support.persisted_rooms import current_state, extremities, gaps, incoming, persist, ranges, replayed_state

pytestmark = pytest.mark.django_db


class Kinds:
    """A room in which Bob was banned, and on top of it an event of every kind; ``room`` is stored."""

    def __init__(self, version="10"):
        self.made = made = MadeRoom(version, ruled=True)
        made.state("m.room.power_levels", "", {"users": {} if version == "12" else {ALICE: 100}})
        made.state("m.room.join_rules", "", {"join_rule": "public"})
        self.joined = made.member(BOB, "join")
        self.ban = made.member(BOB, "ban", sender=ALICE)
        self.room = list(made.events)
        self.normal = made.message(prev=[self.ban])
        self.state = made.topic("x", prev=[self.normal])
        self.rejected = made.send({"type": "m.room.name", "state_key": "", "sender": EVE}, prev=[self.ban])
        self.soft_failed = made.message(prev=[self.joined], sender=BOB)
        self.backfilled = replace(made.message(prev=[self.joined]), stream_ordering=-1)
        self.outlier = replace(made.member(EVE, "join", prev=[self.state]), outlier=True)
        self.batch = [
            self.normal, self.state, self.rejected, self.soft_failed, self.backfilled, self.outlier
        ]  # fmt: skip

    def store(self, seed=0, size=100):
        """All of them in some order, in batches of that size; each batch comes twice."""
        persist([incoming(event) for event in self.room])
        order = random.Random(seed).sample(self.batch, len(self.batch)) if size > 2 else self.batch
        for start in range(0, len(order), size):
            batch = [incoming(event) for event in order[start : start + size]]
            assert persist(batch).refused == []
            again = persist(batch)
            assert (again.stored, again.refused) == ([], []) and len(again.duplicates) == len(batch)


@dataclass
class Row:
    """What the tables say of one event."""

    group: bool
    extremity: bool
    in_timeline: bool
    shown: bool
    positive: bool
    edges: bool
    changes_state: bool


def row(kinds, event):
    stored = Event.objects.get(event_id=event.event_id)
    room_id = kinds.made.room_id
    return Row(
        group=stored.state_group is not None,
        extremity=event.event_id in extremities(room_id),
        in_timeline=event.event_id in {entry.event_id for entry in timeline(room_id)},
        shown=event.event_id in {entry.event_id for entry in timeline_of(ALICE, room_id)},
        positive=stored.stream_ordering > 0,
        edges=EventEdge.objects.filter(event_id=event.event_id).exists(),
        changes_state=event.event_id in current_state(room_id).values(),
    )


@pytest.mark.parametrize(
    ("seed", "size", "version"), [(0, 1, "10"), (1, 9, "10"), (2, 9, "1"), (3, 9, "12"), (4, 2, "11")]
)
def test_each_kind_counts_where_it_should(seed, size, version):
    kinds = Kinds(version)
    kinds.store(seed, size)
    yes, no = True, False
    assert row(kinds, kinds.normal) == Row(yes, no, yes, yes, yes, yes, no)
    assert row(kinds, kinds.state) == Row(yes, yes, yes, yes, yes, yes, yes)
    assert row(kinds, kinds.outlier) == Row(no, no, no, no, yes, no, no)
    assert row(kinds, kinds.rejected) == Row(yes, no, no, no, yes, yes, no)
    assert row(kinds, kinds.soft_failed) == Row(yes, no, no, no, yes, yes, no)
    assert row(kinds, kinds.backfilled) == Row(yes, no, yes, yes, no, yes, no)
    assert extremities(kinds.made.room_id) == [kinds.state.event_id]
    assert current_state(kinds.made.room_id) == replayed_state(kinds.made.room_id)
    assert EventJson.objects.count() == Event.objects.count() == len(kinds.made.events)
    assert EventAuth.objects.count() == sum(event.is_state for event in kinds.made.events)


def test_groups_are_those_of_the_kind():
    kinds = Kinds()
    kinds.store()
    after_ban = kinds.made.state_after(kinds.ban.event_id)
    assert state_at(kinds.rejected.event_id).before == state_at(kinds.rejected.event_id).after == after_ban
    assert state_at(kinds.soft_failed.event_id).after == kinds.made.state_after(kinds.joined.event_id)
    assert state_at(kinds.outlier.event_id).after is None
    groups = dict(Event.objects.values_list("event_id", "state_group"))
    assert groups[kinds.normal.event_id] == groups[kinds.ban.event_id] == groups[kinds.rejected.event_id]
    assert groups[kinds.backfilled.event_id] == groups[kinds.joined.event_id] == groups[kinds.soft_failed.event_id]


def test_soft_failed_event_takes_part_where_somebody_builds_on_it():
    """A topic that Bob set before he heard of his ban counts once Alice refers to it, by state resolution."""
    made = MadeRoom(ruled=True)
    made.state("m.room.power_levels", "", {"users": {ALICE: 100, BOB: 50}})
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    joined = made.member(BOB, "join")
    banned = made.state("m.room.power_levels", "", {"users": {ALICE: 100}})
    persist([incoming(event) for event in made.events])
    late = made.send({"type": "m.room.topic", "state_key": "", "sender": BOB, "content": {"topic": "x"}}, prev=[joined])
    outcome = persist([incoming(late)])
    assert outcome.stored[0].soft_failed and ("m.room.topic", "") not in current_state(made.room_id)
    merge = made.message(prev=[banned, late])
    persist([incoming(merge)])
    assert extremities(made.room_id) == [merge.event_id]
    assert state_at(merge.event_id).before == current_state(made.room_id) == replayed_state(made.room_id)


def test_rejected_and_soft_failed_events_are_looked_through_by_leaves():
    kinds = Kinds()
    kinds.store()
    made = kinds.made
    for below in (kinds.rejected, kinds.soft_failed):
        above = made.message(prev=[below, kinds.state])
        persist([incoming(above)])
        assert extremities(made.room_id) == [above.event_id]
        kinds.state = above


def test_event_on_a_rejected_one_alone_is_a_leaf_beside_those_below():
    kinds = Kinds()
    kinds.store()
    fork = kinds.made.message(prev=[kinds.rejected])
    persist([incoming(fork)])
    assert extremities(kinds.made.room_id) == sorted([fork.event_id, kinds.state.event_id])
    assert state_at(fork.event_id).after == kinds.made.state_after(kinds.ban.event_id)


# --- outliers that get a place ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backfilled", [False, True])
def test_outlier_gets_its_place(backfilled):
    kinds = Kinds()
    kinds.store()
    eve = kinds.outlier
    before = Event.objects.get(event_id=eve.event_id)
    outcome = persist([incoming(replace(eve, outlier=False), backfilled=backfilled)])
    assert [stored.event_id for stored in outcome.stored] == [eve.event_id]
    stored = Event.objects.get(event_id=eve.event_id)
    assert not stored.outlier and stored.stream_ordering != before.stream_ordering
    assert (stored.stream_ordering < 0) is backfilled
    assert state_at(eve.event_id).after == kinds.made.state_after(eve.event_id)
    assert prev_events(eve) == list(eve.prev_event_ids)
    assert extremities(kinds.made.room_id) == [kinds.state.event_id if backfilled else eve.event_id]
    assert (eve.event_id in current_state(kinds.made.room_id).values()) is not backfilled
    assert Event.objects.filter(event_id=eve.event_id).count() == EventJson.objects.filter(pk=eve.event_id).count() == 1
    assert EventVisibility.objects.filter(user_id=EVE).exists() or backfilled
    assert persist([incoming(eve), incoming(replace(eve, outlier=False))]).stored == []


def prev_events(event):
    return list(EventEdge.objects.filter(event_id=event.event_id).values_list("prev_event_id", flat=True))


def test_outlier_that_gets_its_place_leaves_the_gaps():
    kinds = Kinds()
    persist([incoming(event) for event in kinds.room])
    persist([incoming(kinds.state, outlier=True)])
    above = replace(kinds.made.message(prev=[kinds.state]), stream_ordering=-1)
    persist([incoming(above)])
    assert gaps(kinds.made.room_id) == [kinds.state.event_id]  # an outlier fills no gap
    persist([incoming(kinds.state), incoming(kinds.normal)])
    assert gaps(kinds.made.room_id) == []
    assert state_at(above.event_id).after == kinds.made.state_after(kinds.state.event_id)
    assert extremities(kinds.made.room_id) == [kinds.state.event_id]


def test_outlier_may_turn_out_rejected_at_its_place():
    """By its auth events alone it could be; the state before it says no."""
    kinds = Kinds()
    made = kinds.made
    persist([incoming(event) for event in kinds.room])
    auth = [event.event_id for event in (made.create, made.events[2], kinds.joined)]
    late = made.send({"type": "m.room.message", "sender": BOB, "auth_events": auth}, prev=[kinds.ban])
    assert persist([incoming(late, outlier=True)]).stored[0].rejected_reason is None
    stored = persist([incoming(late)]).stored[0]
    assert stored.rejected_reason.startswith("state before") and extremities(made.room_id) == [kinds.ban.event_id]
    assert persist([incoming(late)]).duplicates == [late.event_id]


def test_rejected_outlier_stays_rejected_at_its_place():
    kinds = Kinds()
    persist([incoming(event) for event in kinds.room])
    assert persist([incoming(kinds.rejected, outlier=True)]).stored[0].rejected_reason is not None
    assert persist([incoming(kinds.rejected)]).stored[0].rejected_reason is not None
    assert row(kinds, kinds.rejected) == Row(True, False, False, False, True, True, False)


def test_outlier_and_its_place_in_one_batch_are_one_event():
    kinds = Kinds()
    persist([incoming(event) for event in kinds.room])
    outcome = persist([incoming(kinds.normal, outlier=True), incoming(kinds.normal)])
    assert len(outcome.stored) == 1 and outcome.duplicates == [kinds.normal.event_id]
    assert extremities(kinds.made.room_id) == [kinds.normal.event_id]


def test_nothing_is_changed_by_anything_that_comes_again():
    kinds = Kinds()
    kinds.store(5)
    room_id = kinds.made.room_id
    before = (
        list(Event.objects.order_by("pk").values_list()),
        ranges(room_id),
        extremities(room_id),
        current_state(room_id),
    )
    for about in ({}, {"outlier": True}, {"backfilled": True}):
        others = [event for event in kinds.made.events if event.event_id != kinds.outlier.event_id]
        outcome = persist([incoming(event, **about) for event in others])
        assert outcome.stored == [] and outcome.refused == []
    assert (
        list(Event.objects.order_by("pk").values_list()),
        ranges(room_id),
        extremities(room_id),
        current_state(room_id),
    ) == before


@pytest.mark.parametrize("together", [True, False])
def test_power_levels_that_were_redacted_before_count_as_pruned(together):
    """In room version 10 the level for invites does not survive; see ``events.room.event_auth``."""
    made = MadeRoom(ruled=True)
    levels = made.state("m.room.power_levels", "", {"users": {ALICE: 100}, "invite": 50})
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    made.member(BOB, "join")
    early = made.member("@one:a.test", "invite", sender=BOB)
    made.redaction(levels)
    late = made.member(EVE, "invite", sender=BOB)
    batches = [made.events] if together else [made.events[:-2], made.events[-2:-1], made.events[-1:]]
    outcomes = [persist([incoming(event) for event in batch]) for batch in batches]
    reasons = {stored.event_id: stored.rejected_reason for outcome in outcomes for stored in outcome.stored}
    assert "takes 50" in reasons[early.event_id] and reasons[late.event_id] is None
    assert current_state(made.room_id)["m.room.member", EVE] == late.event_id
