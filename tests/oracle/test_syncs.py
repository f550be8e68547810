"""Syncs as the real server answered them while each room came into being, and at the end.

A room is stored step by step as far as the server knew it at each recorded answer (the largest one at once, and read as of
then). Timelines, limits and sections are held against its answers, states as ``docs/reference/differences.md`` tells.
"""

from __future__ import annotations

import pytest

from events.models import CurrentStateDelta
from events.reading.pages import timeline_of
from events.sync.rooms import rooms_since
from streams.core.tokens import VectorToken
from tests.oracle.answers import parsed
from tests.support.persisted_rooms import persist_all
from tests.support.room_data import ROOM_NAMES, oracle, stored_events
from tests.support.stored_rooms import store_room
from tests.support.syncing import first, here, ids

pytestmark = pytest.mark.django_db(transaction=True)

#: Answers that are not ours, with the reason in ``docs/reference/differences.md``: (room, user, position of the answer).
OTHER_TIMELINES = {
    ("v10_gap", "@gqa0:localhost:19201", 2098),
    ("v10_gap", "@gqa0:localhost:19201", 2157),
    ("v10_visibility_walk", "@vwa0:localhost:19201", 17177),
}
ALIASES = "m.room.aliases"


def position(token):
    """The stream part of a recorded token."""
    return int(token.partition("_")[0].removeprefix("s"))


class Feeding:
    """Stores a room as far as the server knew it, event by event in the order of its stream."""

    def __init__(self, room):
        self.theirs = {event["event_id"]: event for event in stored_events(room)}
        events = parsed(room, told=False)
        self.room_id = events[0].room_id
        self.live = [event for event in events if not event.backfilled]
        self.old = sorted((event for event in events if event.backfilled), key=lambda event: event.depth)
        self.stored = set()

    def upto(self, known):
        """All that was there at that position; backfilled events when something that builds on them comes."""
        coming = []
        while self.live and self.at(self.live[0]) <= known:
            event = self.live.pop(0)
            coming += [*self.below(event), event]
            self.stored.add(event.event_id)
        for outcome in persist_all(coming, 25):
            assert outcome.refused == []
        return here()

    def at(self, event):
        return self.theirs[event.event_id]["stream_ordering"]

    def below(self, event):
        """What the event builds on and is not here: backfilled, or a little later in the stream."""
        found = []
        for prev in set(event.prev_event_ids) - self.stored:
            for rest in (self.old, self.live):
                for lower in [one for one in rest if one.event_id == prev]:
                    rest.remove(lower)
                    found += [*self.below(lower), lower]
                    self.stored.add(prev)
        return found


class Stored:
    """The largest room, stored at once; its answers are read as of their positions."""

    def __init__(self, room):
        events = parsed(room)
        self.room_id = events[0].room_id
        self.positions = [event["stream_ordering"] for event in stored_events(room)]
        store_room(events)

    def upto(self, known):
        """The token that covers what was known there."""
        return VectorToken(1 + sum(at <= known for at in self.positions))


def recorded(room, kind):
    rows = [row for row in oracle(room, "pagination") if row["kind"] == kind]
    return sorted(rows, key=lambda row: position(row["next_batch"]))


def answer_to(row, room_id, since, now):
    """(section, room) of our answer; nothing when the room is not in it."""
    if row["since"] is None:
        page = first(row["user_id"], now, events=row["limit"])
        joined, left = page.rooms, page.left
    else:
        answer = rooms_since(row["user_id"], since, now, limit=row["limit"])
        joined, left = answer.joined, answer.left
    found = [("join", room) for room in joined] + [("leave", room) for room in left]
    return next(((section, room) for section, room in found if room.room_id == room_id), (None, None))


def current_state(room_id, now):
    """The current state as of a token, from its changes."""
    changes = CurrentStateDelta.objects.filter(room_id=room_id, stream_ordering__lte=now.highest)
    rows = changes.order_by("stream_ordering", "id").values_list("type", "state_key", "event_id")
    found = {(kind, key): event_id for kind, key, event_id in rows}
    return {key: event_id for key, event_id in found.items() if event_id is not None and key[0] != ALIASES}


def by_key(events):
    return {(event.type, event.state_key): event.event_id for event in events if event.state_key is not None}


def in_stream_order(events):
    return list(events) == sorted(events, key=lambda event: event.stream_ordering)


class Client:
    """What a client knows of a room's state: what was told, and what timelines brought."""

    def __init__(self):
        self.state = {}

    def take(self, room):
        """The state of an answer; what it knew is returned."""
        before = {} if room.whole else self.state
        told = {key: event_id for key, event_id in before.items() if key not in room.removed}
        self.state = {**told, **by_key(room.state)}
        return before

    def see(self, room, current):
        """The timeline of an answer; where a fork makes it end elsewhere it is set right."""
        brought = by_key(room.timeline)
        assert {k: e for k, e in self.state.items() if k not in brought} == {
            k: e for k, e in current.items() if k not in brought
        }
        self.state |= {key: current[key] for key in brought if key in current}


def assert_states_agree(theirs, ours, client_before, current):
    """At keys that the timeline does not bring: the same, or theirs was not current, or known to the client already."""
    told = by_key(ours.state)
    for key in {*theirs, *told} - by_key(ours.timeline).keys():
        same = theirs.get(key) == told.get(key)
        not_current = theirs.get(key) != current.get(key)
        repeated = key not in told and client_before.get(key) == theirs.get(key)
        assert same or not_current or repeated, key


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_answers_while_the_room_came_into_being(room):
    stored = Stored(room) if room == "large_v10" else Feeding(room)
    about = {event["event_id"]: event["json"] for event in stored_events(room)}
    places = {event["event_id"]: event["stream_ordering"] for event in stored_events(room)}
    since, clients = {}, {}
    for row in recorded(room, "sync_recorded_live"):
        user, known = row["user_id"], position(row["next_batch"])
        now = stored.upto(known)
        section, answer = answer_to(row, stored.room_id, since.get(user), now)
        since[user] = now
        assert section == row.get("section"), row
        if answer is None:
            continue
        if (room, user, known) not in OTHER_TIMELINES:
            ours = sorted(ids(answer.timeline), key=places.get) if row["since"] else ids(answer.timeline)
            assert (ours, answer.limited) == (row["timeline"], row["limited"]), row
            assert not row["since"] or in_stream_order(answer.timeline)
        client, current = clients.setdefault(user, Client()), current_state(stored.room_id, now)
        before = client.take(answer)
        if section == "join":
            theirs = {(about[e]["type"], about[e]["state_key"]): e for e in row["state"]}
            assert_states_agree(theirs, answer, before, current)
            client.see(answer, current)


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_first_answers_at_the_end(room):
    if room == "v10_gap":  # as stored live, backfilled events included
        feeding = Feeding(room)
        feeding.upto(10**9)
        room_id = feeding.room_id
    else:
        room_id = store_room(parsed(room)).room_id
    for row in recorded(room, "sync_initial_now"):
        (answer,) = first(row["user_id"], events=row["limit"]).rooms
        assert (ids(answer.timeline), answer.limited) == (row["timeline"], row["limited"])
        Client().take(answer)
        assert {**by_key(answer.state), **by_key(answer.timeline)}.keys() >= current_state(room_id, here()).keys()


@pytest.mark.parametrize(
    ("room", "user"), [("v11_fork_walk", "@fwa0"), ("v10_power_fork", "@pfa0"), ("v12_power_fork", "@pza0")]
)
def test_sync_results_can_be_brought_into_the_order_of_pages(room, user):
    feeding, user = Feeding(room), f"{user}:localhost:19201"
    rows = recorded(room, "sync_recorded_live")
    now = feeding.upto(position(rows[0]["next_batch"]))
    found = list(first(user, now, events=500).rooms[0].timeline)
    for row in rows[1:]:
        since, now = now, feeding.upto(position(row["next_batch"]))
        found += [event for room in rooms_since(user, since, now, limit=500).joined for event in room.timeline]
    pages = timeline_of(user, feeding.room_id, limit=1_000)
    in_page_order = sorted(found, key=lambda event: (event.topological_ordering, event.stream_ordering))
    assert ids(in_page_order) == ids(reversed(pages))
    assert ids(found) != ids(in_page_order)
