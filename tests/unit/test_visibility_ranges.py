"""Visibility as ranges, against the reference's decisions on linear rooms, and forks by hand."""

import pytest

from events.parsing import ParsedEvent
from events.room_history import room_history
from events.visibility_ranges import VisibilityRow
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
            rejection_given=True,
            soft_failure_given=True,
        )


def ranges(events):
    """The ranges of a room."""
    return room_history(list(events)).visibility


def visible(rows, user, kinds, count):
    """The events that the ranges show to a user who is let in by the room-wide ranges of these kinds."""
    wide, own, hidden = set(), set(), set()
    for row in rows:
        covered = range(row.first, count if row.last is None else row.last + 1)
        if row.user_id is None and row.kind in kinds:
            wide.update(covered)
        elif row.user_id == user and row.kind == "hidden":
            hidden.update(covered)
        elif row.user_id == user and row.kind != "cut":
            own.update(covered)
    return wide | (own - hidden)


def decided_on_read(case):
    """Changes of visibility by an erased sender: pruning loses their old value. Erasure is applied on read."""
    changes = [event for event in case["events"] if event["type"] == "m.room.history_visibility"]
    return {event["n"] for event in changes if event["sender"] in case["erased_senders"]}


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_vector(case):
    count, left_out = len(case["events"]), decided_on_read(case)
    rows = ranges(as_line(case))
    for user, answers in case["viewers"].items():
        for view, kinds in (("member", {"world", "shared"}), ("peeking", {"world"})):
            shown = set(answers[view]["full"] + answers[view]["redacted"])
            assert visible(rows, user, kinds, count) ^ shown <= left_out, (user, view)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_cut_is_there_for_those_who_are_out(case):
    rows = ranges(as_line(case))
    cut = {row.user_id for row in rows if row.kind == "cut"}
    out = {user for user, view in case["viewers"].items() if view["current_membership"] in ("leave", "ban", "knock")}
    assert cut & set(case["viewers"]) == out


def rows_of(made, user):
    return [(row.kind, row.first, row.last) for row in ranges(made.events) if row.user_id == user]


def test_message_adds_no_row():
    made = MadeRoom()
    before = ranges(made.events)
    made.message()
    assert (
        ranges(made.events)
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
    assert rows_of(made, BOB) == [("invited", 3, 5), ("cut", 5, None)]


def test_own_leave_is_shown_where_the_invite_showed_nothing():
    made = MadeRoom()
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    made.member(BOB, "invite", sender=ALICE)
    made.message()
    made.member(BOB, "leave")
    assert rows_of(made, BOB) == [("cut", 5, None), ("shown", 5, 5)]


def test_rejected_and_soft_failed_events_beside_the_line_do_not_matter():
    made = MadeRoom()
    made.topic("no", rejected_reason="auth")
    made.message(prev=[made.alice], soft_failed=True)
    assert rows_of(made, ALICE) == [("joined", 1, None)]


def closed_room():
    """Alice is joined, and nobody but members may read."""
    made = MadeRoom()
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}})
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    return made


def test_event_of_a_fork_that_does_not_know_of_a_join_is_hidden_singly():
    made = closed_room()
    fork = made.events[-1]
    made.member(BOB, "join")
    made.message(prev=[fork])
    assert rows_of(made, BOB) == [("joined", 5, None), ("hidden", 6, 6)]


def test_event_of_a_fork_that_does_not_know_of_a_leave_is_shown_singly():
    made = closed_room()
    joined = made.member(BOB, "join")
    made.member(BOB, "leave")
    made.message(prev=[joined])
    assert rows_of(made, BOB) == [("joined", 5, 6), ("cut", 6, None), ("shown", 7, 7)]


def test_forks_of_a_shared_room_need_no_single_rows():
    made = MadeRoom()
    fork = made.state("m.room.join_rules", "", {"join_rule": "public"})
    made.member(BOB, "join")
    for _ in range(20):
        made.message(prev=[fork])
    assert rows_of(made, BOB) == [("joined", 3, None)]


def test_membership_that_a_resolution_takes_back_ends_before_the_event_that_merged():
    """Bob joins on one side while Alice, who can do more, bans him on the other: no event of his own ends his range."""
    made = closed_room()
    fork = made.events[-1]
    join = made.member(BOB, "join", prev=[fork])
    made.message(prev=[join], sender=BOB)
    ban = made.member(BOB, "ban", sender=ALICE, prev=[fork])
    made.message(prev=[ban, made.events[-2]])
    found = rows_of(made, BOB)
    assert found[0] == ("joined", 5, 7) and ("cut", 7, None) in found


def test_backfilled_events_have_ranges_too():
    made = closed_room()
    bob = made.member(BOB, "join")
    old = made.message(prev=[bob], stream_ordering=-1)
    made.message(prev=[old])
    arrived = [old, *(event for event in made.events if event is not old)]
    rows = ranges(arrived)
    assert visible(rows, BOB, set(), len(arrived)) == {0, 6, 7}
    assert visible(rows, ALICE, set(), len(arrived)) == {0, 2, 3, 4, 5, 6, 7}


def test_room_with_an_event_of_unknown_state_has_no_ranges():
    made = MadeRoom()
    made.message(prev=["$gone"])
    result = room_history(made.events)
    assert result.visibility_unresolved and result.visibility == []
