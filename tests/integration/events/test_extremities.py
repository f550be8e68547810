"""Forward extremities are those of one rule, whichever way a room came in: live, imported, made anew, checked."""

import pytest

from events.errors import RangesDisagree
from events.integrity.repair import resync_room
from events.models import CurrentState, Event, EventVisibility
from events.persist.batch import with_state
from events.persist.rebuild_visibility import rebuild_visibility
from events.reading.pages import timeline_of
from tests.integration.events.test_gap_filling import closed_room
from tests.integration.events.test_visible_sql import compare
from tests.support.made_rooms import ALICE, BOB, EVE
from tests.support.persisted_rooms import current_state, extremities, incoming, persist, persist_all
from tests.support.ranges import assert_all_ways_agree, stored_ranges

pytestmark = pytest.mark.django_db


def with_its_state(made, event, state=None):
    """The batch of an event with the state before it and the auth events of that, as another server tells them."""
    by_id = {known.event_id: known for known in made.events}
    entries = made.state_after(event.prev_event_ids[0]) if state is None else state
    told = list(entries.values())
    chain = dict.fromkeys([*told, *event.auth_event_ids])
    for event_id in iter_growing(chain):
        chain.update(dict.fromkeys(by_id[event_id].auth_event_ids))
    return with_state(incoming(event), [by_id[one].json for one in told], [by_id[one].json for one in chain])


def iter_growing(found):
    """The keys of a dictionary, those that are added on the way included."""
    at = 0
    while at < len(found):
        yield list(found)[at]
        at += 1


def with_an_outlier_between(made):
    """Bob has left, a message P; Eve's join X on P comes only inside the state before Y; Bob joins, then nobody may."""
    made.member(BOB, "join")
    made.member(BOB, "leave")
    below = made.message()
    persist_all(made.events, 1)
    between = made.member(EVE, "join")
    above = made.message()
    assert persist(with_its_state(made, above)).refused == []
    assert Event.objects.get(event_id=between.event_id).outlier
    return below, between, above


def said(made, event):
    persist([incoming(event)])
    return Event.objects.get(event_id=event.event_id)


def assert_well(made):
    """All ways tell the same of the room."""
    room_id = made.room_id
    assert_all_ways_agree(room_id)
    for user in (ALICE, BOB, EVE, "@stranger:z.test"):
        compare(user, room_id)


def test_outlier_that_came_inside_a_state_covers_no_leaf():
    made = closed_room()
    below, _, above = with_an_outlier_between(made)
    assert extremities(made.room_id) == sorted([below.event_id, above.event_id])
    join = made.member(BOB, "join")
    rule = made.state("m.room.join_rules", "", {"join_rule": "invite"})
    for event in (join, rule):
        assert said(made, event).rejected_reason is None
        assert_well(made)
    assert resync_room(made.room_id, "visibility").before.clean
    rebuild_visibility(made.room_id)
    last = said(made, made.message(prev=[rule]))
    assert_well(made)
    joined = CurrentState.objects.get(room_id=made.room_id, type="m.room.member", state_key=BOB).membership == "join"
    assert (last.event_id in {event.event_id for event in timeline_of(BOB, made.room_id)}) is joined


def test_backfill_of_the_outlier_covers_the_leaf_in_every_way():
    made = closed_room()
    _, between, above = with_an_outlier_between(made)
    join = made.member(BOB, "join")
    rule = made.state("m.room.join_rules", "", {"join_rule": "invite"})
    for event in (join, rule):
        said(made, event)
    assert persist([incoming(between, backfilled=True)]).refused == []
    assert extremities(made.room_id) == [rule.event_id]
    assert_well(made)
    assert current_state(made.room_id)["m.room.member", BOB] == join.event_id
    last = said(made, made.message(prev=[rule]))
    assert {above.event_id, last.event_id} <= {event.event_id for event in timeline_of(ALICE, made.room_id)}
    assert last.event_id in {event.event_id for event in timeline_of(BOB, made.room_id)}
    assert_well(made)


# --- ranges that would not fit the current state ------------------------------------------------------------------


def without_bob(made):
    """The current state has lost Bob's membership, and a range of his is lost too."""
    CurrentState.objects.filter(room_id=made.room_id, state_key=BOB).delete()
    EventVisibility.objects.filter(room_id=made.room_id, user_id=BOB).delete()
    return stored_ranges(made.room_id)


def talkative():
    made = closed_room()
    made.member(BOB, "join")
    made.message()
    persist_all(made.events, 1)
    return made


def test_ranges_that_do_not_fit_the_current_state_are_not_written():
    made = talkative()
    before = without_bob(made)
    with pytest.raises(RangesDisagree, match=f"{BOB} is at None there, and joined is open.*resync rooms"):
        rebuild_visibility(made.room_id)
    assert stored_ranges(made.room_id) == before


def test_mending_what_is_seen_alone_leaves_a_room_of_which_the_state_is_wrong():
    made = talkative()
    before = without_bob(made)
    found = resync_room(made.room_id, "visibility")
    assert stored_ranges(made.room_id) == before and not found.after.clean
    assert any("would not fit the current state" in doubt for doubt in found.after.doubts)
    assert resync_room(made.room_id, "rooms").after.clean
    assert_well(made)


def test_what_is_seen_of_a_wrong_state_is_mended_with_it():
    made = talkative()
    wanted = stored_ranges(made.room_id)
    without_bob(made)
    assert resync_room(made.room_id, "state").after.of("visibility") > 0
    assert resync_room(made.room_id, "visibility").after.clean
    assert stored_ranges(made.room_id) == wanted


def test_leaf_that_turns_out_rejected_is_seen_through_by_what_comes_with_the_verdict():
    """A room of old events: the leaf below is told to be rejected in the batch that brings another event on top of it."""
    made = closed_room()
    base = made.events[-1]
    persist([incoming(made.create, outlier=True)])
    late = made.message(prev=[base], sender=BOB)  # Bob never joined; the events that tell are not here
    persist([incoming(late, backfilled=True)])
    above = made.message(prev=[late])
    persist([incoming(event, backfilled=True) for event in (*made.events[: made.events.index(late)], above)])
    assert Event.objects.get(event_id=late.event_id).rejected_reason is not None
    assert extremities(made.room_id) == [above.event_id]


@pytest.mark.parametrize("backfilled", [True, False])
def test_leaf_is_reached_once_all_that_a_given_state_came_from_is_here(backfilled):
    """A state is given for a merge of two forks. The first fork alone does not explain it; the second does, with the first."""
    made = closed_room()
    base = made.message()
    persist_all(made.events)
    one, other = made.topic("one", [base]), made.member(EVE, "join", [base])
    merge = made.message([one, other])
    told = {**made.state_after(one.event_id), ("m.room.member", EVE): other.event_id}
    persist(with_its_state(made, merge, told))
    persist([incoming(one)])
    assert {one.event_id, merge.event_id} <= set(extremities(made.room_id))
    persist([incoming(other, backfilled=backfilled)])
    assert extremities(made.room_id) == [merge.event_id]
    assert_well(made)
