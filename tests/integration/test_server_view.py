"""What servers see of events, against the states of the events read one by one."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from events.federation.visibility import _memberships, as_seen_by, server_verdicts
from events.models import Event, EventJson
from events.reading.event_json import load_events
from state.store import full_state
from tests.oracle.answers import parsed
from tests.support.made_rooms import ALICE, BOB, MadeRoom
from tests.support.stored_rooms import store_room

pytestmark = pytest.mark.django_db


def plain_memberships(server, group):
    """The slow way: the whole state."""
    members = {key: event for (kind, key), event in full_state(group).items() if kind == "m.room.member"}
    ours = [event for user, event in members.items() if user.partition(":")[2] == server]
    return set(Event.objects.filter(event_id__in=ours).values_list("membership", flat=True))


@pytest.mark.parametrize("room", ["v10_visibility_walk", "v12_power_fork"])
def test_memberships_are_those_of_the_whole_states(room):
    store_room(parsed(room))
    groups = list(Event.objects.filter(state_group__isnull=False).values_list("state_group", flat=True).distinct())
    for server in ("localhost:19201", "localhost:19203", "nowhere"):
        found = _memberships(server, groups, "default")
        for group in groups[::3]:
            whole = plain_memberships(server, group)
            assert ("join" in found[group]) == ("join" in whole)
            assert found[group] == whole or "join" in whole


def closed_room(messages):
    made = MadeRoom()
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    for number in range(messages):
        made.member(BOB, "join" if number % 2 else "leave")
        made.message()
    store_room(made.events)
    return made


def test_queries_do_not_grow_with_the_events():
    made = closed_room(20)
    counts = []
    for some in (made.events[:10], made.events):
        with CaptureQueriesContext(connection) as queries:
            server_verdicts("b.test", [event.event_id for event in some])
        counts.append(len(queries))
    assert counts[0] == counts[1] <= 6


def test_events_keep_their_order_and_only_hidden_ones_are_pruned():
    made = closed_room(4)
    messages = [event.event_id for event in made.events if event.type == "m.room.message"]
    events = [load_events(messages)[event_id] for event_id in reversed(messages)]
    seen = as_seen_by("b.test", events)
    assert [event.event_id for event in seen] == messages[::-1]
    assert [event.pruned for event in seen] == [False, True, False, True]
    assert [event.pruned for event in as_seen_by("a.test", events)] == [False] * 4


def test_pruned_event_keeps_what_signatures_are_over():
    made = closed_room(1)
    message = made.events[-1]
    (seen,) = as_seen_by("b.test", [load_events([message.event_id])[message.event_id]])
    assert (
        seen.json == message.json and b'"body"' not in seen.federation_json() and b'"hashes"' in seen.federation_json()
    )


def test_setting_that_cannot_be_read_counts_as_shared():
    made = MadeRoom()
    made.state("m.room.history_visibility", "", {"history_visibility": ["joined"]})
    message = made.message()
    store_room(made.events)
    assert server_verdicts("b.test", [message.event_id])[message.event_id].rule == "shared"


def test_event_of_unknown_state_goes_out_pruned():
    made = MadeRoom()
    message = made.message(prev=["$gone"])
    store_room(made.events)
    assert server_verdicts("a.test", [message.event_id])[message.event_id].rule == "state_unknown"


def test_outlier_is_treated_as_shared():
    made = MadeRoom()
    outlier = made.member(ALICE, "join", outlier=True)
    store_room(made.events)
    assert EventJson.objects.filter(event_id=outlier.event_id).exists()
    assert server_verdicts("b.test", [outlier.event_id])[outlier.event_id].rule == "shared"


def test_rule_asks_nobody_for_nothing():
    assert server_verdicts("b.test", []) == {} and as_seen_by("b.test", []) == []
