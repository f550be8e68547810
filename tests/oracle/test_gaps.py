"""The room whose history has gaps, as the real server met them: live events above a gap come with the state that was told,
what lies in the gaps comes later as old events. Afterwards the tables say what the server says.
"""

import pytest

from events.models import Event, Room
from events.persist.batch import with_state
from events.reading.pages import timeline_of
from events.reading.timeline import state_at
from tests.oracle.answers import TheirStates, parsed
from tests.support.persisted_rooms import current_state, extremities, gaps, incoming, persist, replayed_state, verdicts
from tests.support.room_data import oracle, stored_events

pytestmark = pytest.mark.django_db

ROOM = "v10_gap"


def arrive(events, states):
    """The live events one by one; those on top of what is not here with the state before them. Returns how many had it."""
    here, by_id, told = set(), {event.event_id: event for event in events}, 0
    for event in events:
        if event.backfilled:
            continue
        if here.issuperset(event.prev_event_ids):
            outcome = persist([incoming(event)])
        else:
            told += 1
            state = [by_id[event_id].json for event_id in states.after(event.event_id).values()]  # they are messages
            outcome = persist(with_state(incoming(event), state))
        assert outcome.refused == []
        here.add(event.event_id)
    return told


@pytest.fixture(params=["one by one", "downwards", "at once"])
def room_id(request):
    events = sorted(parsed(ROOM, told=False), key=lambda event: event.stream_ordering)
    assert arrive(events, TheirStates(ROOM)) == 5
    room = Room.objects.get()
    assert not room.visibility_unresolved and not room.current_state_unresolved
    old = [event for event in reversed(events) if event.backfilled]  # as they came: the number nearest to zero first
    if request.param == "downwards":
        old.sort(key=lambda event: -event.depth)
    for batch in [old] if request.param == "at once" else [[event] for event in old]:
        assert persist([incoming(event, backfilled=True) for event in batch]).refused == []
    return room.room_id


def test_filled_room_is_the_real_servers(room_id):
    stored = stored_events(ROOM)
    assert not Event.objects.filter(state_unresolved=True).exists() and not Event.objects.filter(outlier=True).exists()
    assert verdicts(room_id) == {
        event["event_id"]: (event["rejected_reason"] is not None, event["soft_failed"]) for event in stored
    }
    negative = Event.objects.filter(stream_ordering__lt=0).values_list("event_id", flat=True)
    assert set(negative) == {event["event_id"] for event in stored if event["stream_ordering"] < 0}
    answer = oracle(ROOM, "extremities")
    assert (extremities(room_id), gaps(room_id)) == (sorted(answer["forward"]), sorted(answer["backward"]))
    wanted = {(kind, key): event_id for kind, key, event_id in oracle(ROOM, "current_state")["state"]}
    assert current_state(room_id) == replayed_state(room_id) == wanted
    states = TheirStates(ROOM)
    for event in stored:
        assert state_at(event["event_id"]).after == states.after(event["event_id"]), event["event_id"]
    assert_everybody_sees_what_the_server_shows(room_id)


def assert_everybody_sees_what_the_server_shows(room_id):
    order, *rows = oracle(ROOM, "visibility")
    asked = 0
    for row in rows:
        if row["kind"] == "user" and row["membership_now"] == "join" and not row["is_peeking"]:
            shown = {
                event_id for event_id, letter in zip(order["event_ids"], row["result"], strict=True) if letter in "1p"
            }
            seen = {entry.event_id for entry in timeline_of(row["user_id"], room_id, limit=1_000)}
            assert seen == shown, row["user_id"]
            asked += 1
    assert asked > 2
