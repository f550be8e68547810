"""A room's history by chunks of any size: every row is that of the whole."""

from __future__ import annotations

from dataclasses import fields

import pytest
from msgspec.structs import replace

from events.errors import HistoryError
from events.history.rows import RoomHistory
from tests.support.made_rooms import ALICE, BOB, MadeRoom
from tests.support.room_results import GivenEvents, room_history

CHUNKS = [1, 7, 100]


def assert_chunks_make_no_difference(events, sizes=CHUNKS, whole=None):
    whole = whole or room_history(events, len(events))
    for size in sizes:
        found = room_history(events, size)
        for field in fields(whole):
            assert getattr(found, field.name) == getattr(whole, field.name), (size, field.name)
    return whole


# --- what refers to other chunks ----------------------------------------------------------------------------------------


def test_an_event_that_stands_on_a_message_of_long_ago_has_its_state():
    made = MadeRoom()
    old = made.message()
    for _ in range(20):
        made.topic("x")
    above = made.message(prev=[old])
    whole = assert_chunks_make_no_difference(made.events)
    groups = dict(whole.event_groups)
    assert groups[above.event_id] == groups[old.event_id]


def test_a_redaction_of_another_chunk_applies_before_and_after_its_target():
    made = MadeRoom()
    target = made.message(sender=BOB)
    for _ in range(10):
        made.message()
    redaction = made.redaction(target)
    first = [*made.events[:2], redaction, *made.events[2:-1]]
    for events in (made.events, first):
        whole = assert_chunks_make_no_difference(events)
        assert [row[13] for row in whole.events if row[13]] == [redaction.event_id]


def test_a_message_named_as_an_auth_event_is_looked_at_wherever_it_is():
    made = MadeRoom(ruled=True)
    message = made.message()
    for _ in range(10):
        made.message()
    auth = [made.create.event_id, made.alice.event_id, message.event_id]
    topic = made.send({"type": "m.room.topic", "state_key": "", "auth_events": auth})
    made.send({"type": "m.room.message", "auth_events": auth})
    made.send({"type": "m.room.message", "auth_events": [*auth[:2], topic.event_id]})
    whole = assert_chunks_make_no_difference(made.events)
    assert [message.event_id in str(row[11]) for row in whole.events[-3:]] == [True, True, False]
    assert whole.rejected_events == 3


def test_a_soft_failure_hangs_on_the_current_state_of_other_chunks():
    made = MadeRoom(ruled=True)
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}, "state_default": 0})
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    bob = made.member(BOB, "join")
    for _ in range(10):
        made.message()
    made.member(BOB, "ban", sender=ALICE)
    late = made.message(prev=[bob], sender=BOB)
    topic = made.send({"type": "m.room.topic", "state_key": "", "sender": BOB}, prev=[bob])
    whole = assert_chunks_make_no_difference(made.events)
    assert {row[0] for row in whole.events if row[12]} == {late.event_id, topic.event_id}


@pytest.mark.parametrize("version", ["1", "10"])
def test_cycles_are_refused_and_what_stands_on_them_has_no_state(version):
    made = MadeRoom(version)
    one, other = made.message(), made.message()
    above = made.message(prev=[other])
    loop = replace(one, prev_event_ids=(other.event_id,), rejection_given=False)
    back = replace(other, prev_event_ids=(one.event_id,), auth_event_ids=(one.event_id,), rejection_given=False)
    whole = assert_chunks_make_no_difference([*made.events[:2], loop, back, above])
    assert [bool(row[11]) for row in whole.events] == [False, False, True, True, False]
    assert whole.unresolved_events == 3


def test_events_in_any_order():
    made = MadeRoom(ruled=True)
    for number in range(30):
        made.topic(str(number), prev=[made.events[-1 - number % 3]])
    assert_chunks_make_no_difference(made.events[::-1])
    assert_chunks_make_no_difference([*made.events[1::2], *made.events[::2]])


def test_an_event_given_twice_is_refused_however_far_apart():
    made = MadeRoom()
    for _ in range(5):
        made.message()
    for size in (1, 3, 100):
        with pytest.raises(HistoryError, match="twice"):
            room_history([*made.events, made.events[2]], size)


# --- what is carried on -------------------------------------------------------------------------------------------------


class CountedEvents(GivenEvents):
    """Counts how many events are fetched and how often, and notes the most at once."""

    fetched = most = times = 0

    def fetch(self, numbers):
        self.fetched += len(numbers)
        self.times += 1
        self.most = max(self.most, len(numbers))
        return super().fetch(numbers)


def test_messages_are_not_kept_and_each_event_is_fetched_twice():
    made = MadeRoom()
    for _ in range(200):
        made.message()
    source, told = CountedEvents(made.events), []
    history = RoomHistory(source, 10, told.append)
    assert list(history.states.events) == [made.create.event_id, made.alice.event_id]
    assert (source.fetched, source.most) == (202, 10)
    assert sum(len(part.events) for part in history.events()) == 202 and source.fetched == 404
    assert told == [*range(10, 201, 10), 202]


def test_redactions_are_fetched_no_oftener_than_messages():
    made = MadeRoom(ruled=True)
    for _ in range(20):
        target = made.message()
        made.redaction(target, prev=[target])
        made.redaction(target, prev=[target])  # on a fork: asked whether it soft-fails
    source = CountedEvents(made.events)
    history = RoomHistory(source, 10)
    events, _ = [event for part in history.events() for event in part.events], list(history.visibility())
    assert len(events) == 62 and source.times <= 3 * 7  # chunks: judged with what they refer to, and written
    assert_chunks_make_no_difference(made.events)


@pytest.mark.parametrize("version", ["1", "10"])
def test_a_redaction_on_a_fork_soft_fails_by_its_target_where_the_rules_ask_for_it(version):
    made = MadeRoom(version, ruled=True)
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}, "redact": 0})
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    target, bob = made.message(), made.member(BOB, "join")
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}, "redact": 50})
    parts = {"type": "m.room.redaction", "redacts": target.event_id, "sender": BOB}
    late = made.send(parts | ({"event_id": "$late:b.test"} if version == "1" else {}), prev=[bob])
    whole = assert_chunks_make_no_difference(made.events)
    failed = [row[0] for row in whole.events if row[12]]
    assert failed == ([late.event_id] if version == "1" else [])


def test_more_senders_than_are_remembered_make_no_difference(monkeypatch):
    made = MadeRoom(ruled=True)
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}})
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    for number in range(12):
        made.member(f"@u{number}:a.test", "join")
        made.message(prev=[made.events[-2]], sender=f"@u{number - 1}:a.test")
        made.message(prev=made.events[-2:], sender=f"@u{number}:a.test")
    whole = room_history(made.events)
    monkeypatch.setattr("events.history.chunked_walk._MOST_NAMES", 4)
    for size in (1, 5, 100):
        assert room_history(made.events, size) == whole
