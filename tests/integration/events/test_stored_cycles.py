"""Before room version 3 senders choose the IDs of events: one that would close a cycle over stored events is refused."""

import pytest

from events.errors import Reason
from events.integrity.repair import check_room, resync_room
from events.models import Event
from events.persist import batch as storing
from events.sending.send import LocalRoom
from tests.support.made_rooms import ALICE, public_room
from tests.support.persisted_rooms import extremities, incoming, persist, persist_all

pytestmark = pytest.mark.django_db

A, B, C = "$a:a.test", "$b:a.test", "$c:a.test"


@pytest.fixture(autouse=True)
def _server(settings):
    settings.REPLSITE_SERVER_NAME = "a.test"


def old_room(version="2"):
    made = public_room(version)
    assert not persist([incoming(event) for event in made.events]).refused
    return made, made.events[-1]


def chosen(made, event_id, prev, auth=(), **parts):
    """A topic, which may be an auth event of others; it names these besides what it should."""
    named = [event.event_id for event in made.events[:3]]
    references = {"prev_events": [[e, {}] for e in prev], "auth_events": [[e, {}] for e in (*named, *auth)]}
    parts = parts or {"type": "m.room.topic", "state_key": "", "content": {"topic": event_id}}
    return made.send({"event_id": event_id, **references, **parts})


def imported(batch):
    """With the history of a server, which may lack auth events."""
    return storing.persist(batch, verified=True, history_of="x.test")


def told(made, event, base):
    """As a live event with the state before it, which is that after ``base``."""
    return [incoming(event, state_before=list(made.state_after(base.event_id).values()))]


def reasons(outcome):
    return [refused.error.reason for refused in outcome.refused]


def assert_it_goes_on(made):
    room_id = made.room_id
    assert extremities(room_id)
    report = check_room(room_id)
    assert report.clean, report.differences
    LocalRoom(room_id).send(ALICE, "m.room.message", {"body": "x", "msgtype": "m.text"})
    assert resync_room(room_id, "rooms").after.clean


@pytest.mark.parametrize("version", ["1", "2"])
def test_prev_events_that_lead_back_over_what_is_stored(version):
    made, base = old_room(version)
    first, second = chosen(made, A, [B, base.event_id]), chosen(made, B, [A])
    assert persist(told(made, first, base)).refused == []
    assert reasons(persist(told(made, second, base))) == [Reason.CYCLE]
    assert extremities(made.room_id) == [A]
    assert_it_goes_on(made)


def test_backfilled_event_that_closes_a_cycle():
    made, base = old_room()
    first, second = chosen(made, A, [B, base.event_id]), chosen(made, B, [A, base.event_id])
    assert persist(told(made, first, base)).refused == []
    assert reasons(persist([incoming(second, backfilled=True)])) == [Reason.CYCLE]
    assert_it_goes_on(made)


def test_events_of_one_batch_that_close_a_cycle_together():
    made, base = old_room()
    first, second = chosen(made, A, [B, base.event_id]), chosen(made, B, [C])
    third, fine = chosen(made, C, [A]), chosen(made, "$fine:a.test", [A])
    assert persist(told(made, first, base)).refused == []
    outcome = persist([incoming(event, backfilled=True) for event in (second, third, fine)])
    assert reasons(outcome) == [Reason.CYCLE] * 2 and [one.event_id for one in outcome.stored] == [fine.event_id]
    assert_it_goes_on(made)


def test_live_event_on_one_that_closes_a_cycle_is_refused_with_it():
    made, base = old_room()
    first, second = chosen(made, A, [B, base.event_id]), chosen(made, B, [A])
    above = made.message(prev=[second])
    assert persist(told(made, first, base)).refused == []
    assert reasons(persist([incoming(second), incoming(above)])) == [Reason.CYCLE, Reason.MISSING_PREV_EVENTS]
    assert_it_goes_on(made)


@pytest.mark.parametrize("about", [{}, {"outlier": True}, {"backfilled": True}])
def test_auth_events_that_lead_back_over_what_is_stored(about):
    made, base = old_room()
    first, second = chosen(made, A, [base.event_id], [B]), chosen(made, B, [base.event_id], [A])
    assert imported([incoming(first)]).refused == []
    assert reasons(persist([incoming(second, **about)])) == [Reason.CYCLE]
    assert_it_goes_on(made)


def test_auth_events_of_outliers_that_lead_back():
    made, base = old_room()
    first, second = chosen(made, A, [base.event_id], [B]), chosen(made, B, [base.event_id], [C])
    third = chosen(made, C, [base.event_id], [A])
    assert persist([incoming(first, outlier=True), incoming(second, outlier=True)]).refused == []
    assert reasons(persist([incoming(third, outlier=True)])) == [Reason.CYCLE]
    assert_it_goes_on(made)


@pytest.mark.parametrize("prev_first", [False, True])
def test_prev_events_and_auth_events_that_lead_back_together(prev_first):
    made, base = old_room()
    if prev_first:
        first, second = chosen(made, A, [B, base.event_id]), chosen(made, B, [base.event_id], [A])
    else:
        first, second = chosen(made, A, [base.event_id], [B]), chosen(made, B, [A])
    assert imported(told(made, first, base)).refused == []
    assert reasons(persist(told(made, second, base))) == [Reason.CYCLE]
    assert_it_goes_on(made)


def test_message_whose_auth_events_lead_back():
    made, base = old_room()
    first = chosen(made, A, [base.event_id], [B])
    second = chosen(made, B, [base.event_id], [A], type="m.room.message")
    assert imported([incoming(first)]).refused == []
    assert reasons(persist([incoming(second)])) == [Reason.CYCLE]
    assert_it_goes_on(made)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_gap_that_is_filled_is_no_cycle(batch):
    """What closes the gap is named by a stored event and stands on stored ones."""
    made, base = old_room()
    line = [base]
    for number in range(6):
        line.append(chosen(made, f"$l{number}:a.test", [line[-1].event_id, base.event_id]))
    above = made.message(prev=[line[-1]])
    assert persist(told(made, above, base)).refused == []
    for outcome in [
        persist([incoming(event, backfilled=True) for event in line[:0:-1][at : at + batch]])
        for at in range(0, 6, batch)
    ]:
        assert outcome.refused == []
    assert not Event.objects.filter(state_unresolved=True).exists()
    assert_it_goes_on(made)


def test_events_that_come_in_order_are_no_cycle():
    made = public_room("2")
    for number in range(5):
        chosen(made, f"$t{number}:a.test", [made.events[-1].event_id])
    assert all(not outcome.refused for outcome in persist_all(made.events, 2))
    assert_it_goes_on(made)


@pytest.mark.parametrize("about", [{"backfilled": True}, {"outlier": True}])
def test_prev_events_of_an_outlier_lead_nowhere(about):
    """It has no place in the graph: what comes may stand on it, and it is refused itself if it takes its place above that."""
    made, base = old_room()
    first, second = chosen(made, A, [B, base.event_id]), chosen(made, B, [A, base.event_id])
    assert persist([incoming(first, outlier=True)]).refused == []
    assert persist([incoming(second, **about)]).refused == []
    assert_it_goes_on(made)
    assert reasons(persist(told(made, first, base))) == ([] if "outlier" in about else [Reason.CYCLE])
    assert_it_goes_on(made)
