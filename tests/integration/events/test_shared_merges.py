"""What states resolved to is stored once, however many batches the events above a merge come in."""

import pytest
from django.db import transaction

from events.integrity.repair import check_room
from events.models import Event
from events.reading.timeline import state_at
from events.room import state_assignment
from state.models import StateGroup
from tests.support.made_rooms import ALICE, MadeRoom
from tests.support.persisted_rooms import current_state, persist_all, replayed_state
from tests.support.room_results import room_history

pytestmark = pytest.mark.django_db(transaction=True)


def test_events_above_one_merge_share_its_state_whatever_batch_they_come_in():
    made = MadeRoom(ruled=True)
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}})
    base = made.events[-1]
    one, other = made.topic("1", prev=[base]), made.state("m.room.name", "", {"name": "x"}, prev=[base])
    above = [made.message(prev=[one, other]), made.topic("2", prev=[one, other]), made.message(prev=[one, other])]
    persist_all(made.events)
    groups = dict(Event.objects.values_list("event_id", "state_group"))
    merged = groups[above[0].event_id]
    assert groups[above[2].event_id] == merged
    assert StateGroup.objects.get(pk=groups[above[1].event_id]).prev_group == merged
    assert StateGroup.objects.count() == len(room_history(made.events).groups)


@pytest.mark.parametrize("extremities", [3, 60])  # the current state is followed on the way, or worked out at the end
def test_forward_extremities_are_resolved_once_and_not_again_by_the_next_batch(extremities, monkeypatch):
    made = MadeRoom(ruled=True)
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}})
    base = made.events[-1]
    forks = [made.state("m.room.test", f"{number}", {"n": number}, prev=[base]) for number in range(extremities + 3)]
    persist_all(made.events[:-3], 100)
    resolved, real = [], state_assignment.resolve_near

    def resolve(rules, graph, builder, groups, reads):
        resolved.append(len(groups))
        return real(rules, graph, builder, groups, reads)

    monkeypatch.setattr(state_assignment, "resolve_near", resolve)
    for number in range(3):
        persist_all([forks[extremities + number]])
        assert current_state(made.room_id) == replayed_state(made.room_id)
    assert resolved == [extremities + 1, extremities + 2, extremities + 3], (
        "never those that the batch before has resolved"
    )
    expected = {**state_at(base.event_id).after, **{("m.room.test", e.state_key): e.event_id for e in forks}}
    assert current_state(made.room_id) == expected
    if len(forks) <= 20:  # an event names no more
        merge = made.message(prev=forks)
        persist_all([merge])
        assert state_at(merge.event_id).after == expected and len(resolved) == 3
    assert check_room(made.room_id).clean


def test_what_was_resolved_in_a_transaction_that_failed_is_not_built_on():
    made = MadeRoom(ruled=True)
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}})
    base = made.events[-1]
    one, other = made.topic("1", prev=[base]), made.state("m.room.name", "", {"name": "x"}, prev=[base])
    persist_all(made.events)
    first, second = made.message(prev=[one, other]), made.message(prev=[one, other])
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        persist_all([first])
        raise ZeroDivisionError
    persist_all([second])
    assert state_at(second.event_id).after == {**state_at(one.event_id).after, ("m.room.name", ""): other.event_id}
