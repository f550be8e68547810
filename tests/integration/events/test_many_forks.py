"""A room has a limited number of forward extremities: an event that would add one more is refused, and may come again."""

import pytest

from events.persist import batch, next_rows
from tests.support.made_rooms import BOB, public_room
from tests.support.persisted_rooms import extremities, incoming, persist, persist_all

pytestmark = pytest.mark.django_db

MOST = 5


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr(next_rows, "MOST_FORWARD_EXTREMITIES", MOST)
    made = public_room()
    made.member(BOB, "join")
    persist_all(made.events, 100)
    return made


def forked(made, count):
    base = made.events[-1]
    return [made.state("m.room.test", str(number), {}, prev=[base]) for number in range(count)]


def reasons(outcome):
    return [(refused.place, refused.error.reason) for refused in outcome.refused]


@pytest.mark.parametrize("size", [1, 100])
def test_one_fork_too_many_is_refused_until_others_are_merged(made, size):
    forks = forked(made, MOST + 1)
    *_, last = persist_all(forks, size)
    assert [refused.error.reason for refused in last.refused] == ["too-many-forks"]
    assert "5 forward extremities" in last.refused[0].error.detail
    assert extremities(made.room_id) == sorted(event.event_id for event in forks[:MOST])
    assert reasons(persist([incoming(made.message(prev=[forks[MOST]]))])) == [(0, "missing-prev-events")]
    merge = made.message(prev=forks[:2])
    persist_all([merge, forks[MOST]])
    assert extremities(made.room_id) == sorted(event.event_id for event in [*forks[2:], merge])


def test_events_on_top_of_forward_extremities_are_stored(made):
    forks = forked(made, MOST)
    above = made.message(prev=forks[:1])
    both = made.message(prev=[above, forks[1]])
    assert all(outcome.refused == [] for outcome in persist_all([*forks, above, both]))


def test_what_builds_on_a_refused_fork_in_its_batch_is_refused_too(made):
    forks = forked(made, MOST + 1)
    above = made.message(prev=forks[MOST:])
    outcome = persist([incoming(event) for event in (*forks, above)])
    assert reasons(outcome) == [(MOST, "too-many-forks"), (MOST + 1, "missing-prev-events")]


def test_a_stored_history_may_have_more(made):
    forks = forked(made, MOST + 2)
    outcome = batch.persist([incoming(event) for event in forks], verified=True, history_of="a.test")
    assert outcome.refused == [] and len(extremities(made.room_id)) == MOST + 2
    one_more = made.state("m.room.test", "more", {}, prev=forks[0].prev_event_ids)
    assert reasons(persist([incoming(one_more)])) == [(0, "too-many-forks")]
