"""What other servers may see, of every stored room, against the real server; and walks through whole rooms."""

import pytest

from events.models import ErasedUser, Event
from events.reading.state_at import states_at
from events.reading.timeline import topological_walk
from events.visibility.rule import Answer, for_server
from events.visibility.viewer import HISTORY_VISIBILITY
from tests.oracle.answers import parsed
from tests.support.room_data import ROOM_NAMES, oracle
from tests.support.stored_rooms import store_room

pytestmark = pytest.mark.django_db

SMALL_ROOMS = [room for room in ROOM_NAMES if room != "large_v10"]


def seen_in_full(server, events):
    """By the rule for servers and the stored states, event after event."""
    contents = {event.event_id: event.content for event in events}
    memberships = dict(Event.objects.values_list("event_id", "membership"))
    erased = set(ErasedUser.objects.values_list("user_id", flat=True))
    for event, found in zip(events, states_at([event.event_id for event in events]), strict=True):
        after = getattr(found, "after", None)
        setting = contents.get((after or {}).get(HISTORY_VISIBILITY), {}).get("history_visibility")
        theirs = [
            memberships[member]
            for (kind, user), member in (after or {}).items()
            if kind == "m.room.member" and user.partition(":")[2] == server
        ]
        known = after is not None or event.outlier
        verdict = for_server(setting, theirs, sender_erased=event.sender in erased, state_known=known)
        yield verdict.answer is Answer.FULL


@pytest.mark.parametrize("room", SMALL_ROOMS)
def test_servers_see_what_the_real_server_gives_them(room):
    """``x``: that server's store gives the event out to nobody: rejected, or a redaction without effect."""
    events = parsed(room)
    store_room(events)
    rows = [row for row in oracle(room, "visibility") if row["kind"] == "server"]
    for row in rows:
        for event, letter, full in zip(events, row["result"], seen_in_full(row["server_name"], events), strict=True):
            assert letter == "x" or full == (letter == "1"), event.event_id
    assert len(rows) == 2


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_walk_gives_what_has_a_place_and_is_not_rejected(room):
    events = parsed(room)
    store_room(events)
    walked = list(topological_walk(events[0].room_id))
    order = [(event.topological_ordering, event.stream_ordering) for event in walked]
    given = {event.event_id for event in events if not event.outlier and event.rejected_reason is None}
    assert {event.event_id for event in walked} == given and order == sorted(order)
    assert len(walked) == len(given)
