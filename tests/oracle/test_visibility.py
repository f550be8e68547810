"""Who sees what, of every stored room: the rule against the real server, and the ranges against the rule."""

import json

import pytest

from events.graph import is_accepted
from events.room_history import room_history
from events.room_states import RoomStates
from events.room_visibility import Viewer, sight_of
from events.visibility_rules import admits, for_client
from state.room_versions import room_version
from tests.oracle.answers import history, parsed
from tests.room_data import ROOM_NAMES, ROOMS, oracle
from tests.unit.test_visibility_ranges import visible

LETTERS = {"full": "1", "hidden": "0", "redacted": "p"}
USERS_OF_LARGE_ROOM = 6


class Seen:
    """A room's events with the states around them."""

    def __init__(self, events):
        self.events = events
        states = RoomStates(room_version(events[0].room_version), events)
        states.assign(events)
        self.around = [
            (
                states.state(states.before[event.event_id]) if event.event_id in states.before else {},
                states.state(states.after[event.event_id]) if event.event_id in states.after else None,
            )
            for event in events
        ]

    def sight(self, number, viewer):
        return sight_of(self.events[number], viewer, *self.around[number])


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_rule_tells_what_the_real_server_shows(room):
    """``x``: the store does not give the event out at all (rejected, or a redaction that redacts nothing)."""
    seen = Seen(parsed(room))
    about = json.loads((ROOMS / room / "room.json").read_bytes())
    assert about["ignored"] == []
    rows = [row for row in oracle(room, "visibility") if row["kind"] == "user"]
    for row in rows[:USERS_OF_LARGE_ROOM] if room == "large_v10" else rows:
        viewer = Viewer(row["user_id"], row["is_peeking"], erased=frozenset(about["erased_users"]))
        ours = "".join(
            letter if letter == "x" else LETTERS[for_client(seen.sight(number, viewer)).answer]
            for number, letter in enumerate(row["result"])
        )
        assert ours == row["result"], row["user_id"]


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_events_that_the_store_does_not_give_out_are_rejected_or_redactions(room):
    events = parsed(room)
    for row in oracle(room, "visibility")[1:]:
        for event, letter in zip(events, row["result"], strict=True):
            assert letter != "x" or event.rejected_reason is not None or event.type == "m.room.redaction"


def differences(seen, rows, user_id, peeking=False):
    """Accepted events for which ranges and rule do not tell the same."""
    kinds = {"world"} if peeking else {"world", "shared"}
    shown = visible(rows, user_id, kinds, len(seen.events))
    viewer = Viewer(user_id, peeking)
    return [
        event.event_id
        for number, event in enumerate(seen.events)
        if is_accepted(event) and (admits(seen.sight(number, viewer)) is not None) != (number in shown)
    ]


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_ranges_tell_what_the_rule_tells(room):
    events, result = parsed(room), history(room)
    seen = Seen(events)
    assert not result.visibility_unresolved
    users = sorted({event.state_key for event in events if event.type == "m.room.member"})
    for user_id in users[:: len(users) // 25 + 1]:
        assert differences(seen, result.visibility, user_id) == [], user_id
    assert differences(seen, result.visibility, "@stranger:nowhere", peeking=True) == []


@pytest.mark.parametrize("room", [room for room in ROOM_NAMES if "walk" in room or "fork" in room])
def test_single_events_are_few_in_rooms_with_many_forks(room):
    single = [row for row in history(room).visibility if row.kind in ("shown", "hidden")]
    assert len(single) < 0.1 * len(history(room).events)


@pytest.mark.parametrize("room", ["v6_membership_visibility", "v10_visibility_walk"])
def test_a_message_on_top_of_a_room_writes_no_range(room):
    events = parsed(room)
    before = room_history(events)
    message = next(event for event in events if event.type == "m.room.message")
    above = message.__class__(
        **{
            **{name: getattr(message, name) for name in message.__slots__},
            "event_id": "$above",
            "prev_event_ids": tuple(before.forward_extremities),
            "depth": 10_000,
            "stream_ordering": None,
        }
    )
    assert room_history([*events, above]).visibility == before.visibility
