"""Who sees what, of every stored room: the rule against the real server, and the ranges against the rule."""

import json

import pytest

from events.visibility.rule import for_client
from events.visibility.viewer import Viewer
from tests.oracle.answers import history, parsed
from tests.support.range_reader import Seen
from tests.support.room_data import ROOM_NAMES, ROOMS, oracle
from tests.support.room_results import room_history

LETTERS = {"full": "1", "hidden": "0", "redacted": "p"}
USERS_OF_LARGE_ROOM = 6


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
def test_ranges_tell_what_the_rule_tells(room):
    """For members, and for the same users as if they were peeking; with everybody erased, so that changes count by one side."""
    events, result = parsed(room), history(room)
    seen = Seen(events)
    assert not result.visibility_unresolved
    assert seen.calls_withheld() <= seen.withheld(result.visibility)
    users = sorted({event.state_key for event in events if event.type == "m.room.member"})
    erased = frozenset(event.sender for event in events)
    for user_id in ["@stranger:nowhere", *users[:: len(users) // 25 + 1]]:
        for viewer in (Viewer(user_id), Viewer(user_id, peeking=True), Viewer(user_id, erased=erased)):
            assert seen.by_ranges(result.visibility, viewer) == seen.by_rule(viewer), viewer


@pytest.mark.parametrize("room", [room for room in ROOM_NAMES if "walk" in room or "fork" in room])
def test_single_events_are_few_in_rooms_with_many_forks(room):
    """Rows for single events, by events and classes of users: those who see the same of a room are one class."""
    rows, seen = history(room).visibility, Seen(parsed(room))
    users = {row.user_id for row in rows if row.user_id is not None}
    classes = {frozenset(seen.by_rule(Viewer(user_id))) for user_id in users}
    single = [row for row in rows if row.kind in ("shown", "hidden")]
    assert len(single) < 0.1 * len(seen.events) * len(classes)
    assert len(single) < 0.15 * len(seen.events)


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
