"""What other servers may see, of every stored room, against the real server; and walks through whole rooms."""

import pytest

from events.federation.queries import EVENTS_LIMIT, backfill, missing_events, topological_walk
from events.federation.visibility import server_verdicts
from events.models import ForwardExtremity
from tests.oracle.answers import parsed
from tests.support.room_data import ROOM_NAMES, oracle
from tests.support.stored_rooms import store_room

pytestmark = pytest.mark.django_db

SMALL_ROOMS = [room for room in ROOM_NAMES if room != "large_v10"]


@pytest.mark.parametrize("room", SMALL_ROOMS)
def test_servers_see_what_the_real_server_gives_them(room):
    """``x``: that server's store gives the event out to nobody: rejected, or a redaction without effect."""
    events = parsed(room)
    store_room(events)
    rows = [row for row in oracle(room, "visibility") if row["kind"] == "server"]
    for row in rows:
        walked = {event.event_id: event.pruned for event in topological_walk(events[0].room_id, row["server_name"])}
        verdicts = server_verdicts(row["server_name"], [event.event_id for event in events])
        for event, letter in zip(events, row["result"], strict=True):
            full = verdicts[event.event_id].answer == "full"
            if letter == "x":
                assert event.type == "m.room.redaction" or event.event_id not in walked
            else:
                assert full == (letter == "1"), event.event_id
                assert event.outlier or walked[event.event_id] == (not full)
    assert len(rows) == 2


def given(events):
    """What servers can be given: a place in the graph, and not rejected."""
    return {event.event_id: event for event in events if not event.outlier and event.rejected_reason is None}


def reached(events, starts):
    """The plain way: everything below the starts, itself included."""
    about, found, todo = {event.event_id: event for event in events}, set(), list(starts)
    while todo:
        event = about.get(todo.pop())
        if event is not None and event.event_id not in found and not event.outlier:
            found.add(event.event_id)
            todo += event.prev_event_ids
    return found & given(events).keys()


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_walks_are_those_of_the_plain_way(room):
    events = parsed(room)
    store_room(events)
    room_id = events[0].room_id
    place = {event.event_id: (event.topological_ordering, event.stream_ordering) for event in topological_walk(room_id)}
    assert list(place) == sorted(given(events), key=place.__getitem__)
    starts = list(ForwardExtremity.objects.filter(room_id=room_id).values_list("event_id", flat=True))
    for _ in range(5):
        below = sorted(reached(events, starts), key=place.__getitem__, reverse=True)
        page = [event.event_id for event in backfill("localhost:19201", room_id, starts, EVENTS_LIMIT)]
        honest = room != "v10_rejected"  # there depths lie, and what a lying event hides is met late
        assert page == below[:EVENTS_LIMIT] if honest else set(page) <= set(below)
        between = {event.event_id for event in missing_events("localhost:19201", room_id, page[-1:], starts, limit=100)}
        assert between <= set(below) - {page[-1], *starts}
        starts = page[-1:]
