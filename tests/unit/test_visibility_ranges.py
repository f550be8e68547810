"""Visibility of linear rooms as ranges, against the reference's decisions."""

from dataclasses import replace

import pytest

from events.parsing import ParsedEvent
from events.visibility_ranges import VisibilityRow, visibility_ranges
from tests.made_rooms import ALICE, BOB, MadeRoom
from tests.room_data import vectors

CASES = vectors("visibility/timelines")


def as_line(case):
    """The events of a vector as a linear room; IDs do not matter here."""
    for event in case["events"]:
        number, content = event["n"], event["content"]
        yield ParsedEvent(
            event_id=f"${number}",
            room_id="!r:a.test",
            room_version=case["room_version"],
            type=event["type"],
            state_key=event.get("state_key"),
            sender=event["sender"],
            depth=number + 1,
            origin_server_ts=number,
            prev_event_ids=(f"${number - 1}",) if number else (),
            auth_event_ids=(),
            membership=content.get("membership") if event["type"] == "m.room.member" else None,
            redacts=None,
            relates_to=None,
            content_hash_matches=True,
            json=b"",
            content=content,
        )


def visible(rows, user, kinds, count):
    """The events that the ranges show to a user who is let in by the room-wide ranges of these kinds."""
    mine = [row for row in rows if row.user_id == user and row.kind != "cut"]
    mine += [row for row in rows if row.user_id is None and row.kind in kinds]
    inside = set()
    for row in mine:
        inside.update(range(row.first, count if row.last is None else row.last + 1))
    return inside


def decided_on_read(case):
    """Changes of visibility by an erased sender: pruning loses their old value. Erasure is applied on read."""
    changes = [event for event in case["events"] if event["type"] == "m.room.history_visibility"]
    return {event["n"] for event in changes if event["sender"] in case["erased_senders"]}


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_vector(case):
    count, left_out = len(case["events"]), decided_on_read(case)
    rows = visibility_ranges(list(as_line(case)))
    for user, answers in case["viewers"].items():
        for view, kinds in (("member", {"world", "shared"}), ("peeking", {"world"})):
            shown = set(answers[view]["full"] + answers[view]["redacted"])
            assert visible(rows, user, kinds, count) ^ shown <= left_out, (user, view)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_cut_is_there_for_those_who_are_out(case):
    rows = visibility_ranges(list(as_line(case)))
    cut = {row.user_id for row in rows if row.kind == "cut"}
    out = {user for user, view in case["viewers"].items() if view["current_membership"] in ("leave", "ban", "knock")}
    assert cut & set(case["viewers"]) == out


def rows_of(made, user):
    return [(row.kind, row.first, row.last) for row in visibility_ranges(made.events) if row.user_id == user]


def test_message_adds_no_row():
    made = MadeRoom()
    before = visibility_ranges(made.events)
    made.message()
    assert (
        visibility_ranges(made.events)
        == before
        == [
            VisibilityRow(None, "shared", 0, None),
            VisibilityRow(ALICE, "joined", 1, None),
        ]
    )


def test_leave_and_rejoin_drop_the_cut():
    made = MadeRoom()
    made.member(BOB, "join")
    made.member(BOB, "leave")
    made.message()
    assert rows_of(made, BOB) == [("joined", 2, 3), ("cut", 3, None)]
    made.member(BOB, "join")
    assert rows_of(made, BOB) == [("joined", 2, 3), ("joined", 5, None)]


def test_rename_changes_nothing():
    made = MadeRoom()
    made.member(ALICE, "join")
    assert rows_of(made, ALICE) == [("joined", 1, None)]


def test_ban_after_leave_keeps_the_first_cut():
    made = MadeRoom()
    for membership in ("join", "leave", "ban"):
        made.member(BOB, membership, sender=ALICE)
    assert rows_of(made, BOB) == [("joined", 2, 3), ("cut", 3, None)]


def test_closing_change_belongs_to_both_sides():
    made = MadeRoom()
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    made.state("m.room.history_visibility", "", {"history_visibility": "world_readable"})
    assert rows_of(made, None) == [("shared", 0, 2), ("world", 3, None)]


def test_invite_shows_what_invited_members_may_read_and_the_own_leave():
    made = MadeRoom()
    made.state("m.room.history_visibility", "", {"history_visibility": "invited"})
    made.member(BOB, "invite", sender=ALICE)
    made.message()
    made.member(BOB, "leave")
    assert rows_of(made, BOB) == [("invited", 3, 5), ("shown", 5, 5), ("cut", 5, None)]


def test_rejected_and_soft_failed_events_beside_the_line_do_not_matter():
    made = MadeRoom()
    made.topic("no", rejected_reason="auth")
    made.message(prev=[made.alice])
    assert visibility_ranges(made.events) is not None


@pytest.mark.parametrize("broken", ["fork", "merge", "backfilled", "no create"])
def test_what_is_not_one_line_has_no_answer(broken):
    made = MadeRoom()
    one = made.message(prev=[made.alice])
    if broken == "fork":
        made.message(prev=[made.alice])
    elif broken == "merge":
        made.message(prev=[one, made.alice])
    elif broken == "backfilled":
        made.events[-1] = replace(one, stream_ordering=-5)
    else:
        del made.events[0]
    assert visibility_ranges(made.events) is None
