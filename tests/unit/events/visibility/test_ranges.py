"""Visibility as ranges, against the reference's decisions on linear rooms, and forks by hand."""

import pytest

from events.format.parsing import ParsedEvent
from events.visibility.ranges import VisibilityRow
from events.visibility.viewer import Viewer
from tests.support.made_rooms import ALICE, BOB, MadeRoom
from tests.support.range_reader import Seen
from tests.support.room_data import vectors
from tests.support.room_results import room_history

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


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_vector(case):
    """The answers tell who sees what of linear rooms, types that nobody is shown left out."""
    seen, rows = Seen(list(as_line(case))), ranges(as_line(case))
    erased = frozenset(case["erased_senders"])
    for user, answers in case["viewers"].items():
        for view in ("member", "peeking"):
            shown = set(answers[view]["full"] + answers[view]["redacted"])
            assert seen.by_ranges(rows, Viewer(user, view == "peeking", erased=erased)) == shown, (user, view)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_cut_is_there_for_those_who_have_left(case):
    rows = ranges(as_line(case))
    cut = {row.user_id for row in rows if row.kind == "cut"}
    assert cut & set(case["viewers"]) == {
        user for user, view in case["viewers"].items() if view["current_membership"] == "leave"
    }


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


def test_cut_is_at_the_last_leave_and_none_for_the_banned():
    made = MadeRoom()
    for membership in ("join", "leave", "ban"):
        made.member(BOB, membership, sender=ALICE)
    assert rows_of(made, BOB) == [("joined", 2, 3)]
    made.member(BOB, "leave", sender=ALICE)
    assert rows_of(made, BOB) == [("joined", 2, 3), ("cut", 5, None)]


def test_change_belongs_to_the_more_open_side_too():
    """A closing one by a row of its own, which does not count once its sender is erased."""
    made = MadeRoom()
    for setting in ("joined", "world_readable", "shared", "invited"):
        made.state("m.room.history_visibility", "", {"history_visibility": setting})
    assert rows_of(made, None) == [
        ("shared", 0, 1),
        ("shared_before", 2, 2),
        ("peekable", 3, 3),
        ("world", 3, 3),
        ("shared", 4, 4),
        ("world_before", 4, 4),
        ("shared_before", 5, 5),
    ]


def test_anybody_may_read_while_the_current_state_is_world_readable():
    """A fork whose own setting is another one does not change that."""
    made = MadeRoom()
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}})
    fork = made.state("m.room.history_visibility", "", {"history_visibility": "world_readable"})
    made.state("m.room.topic", "", {"topic": "x"})
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    made.message(prev=[fork])
    assert [row for row in rows_of(made, None) if row[0] in ("peekable", "world")] == [
        ("peekable", 3, 4), ("world", 3, 4), ("world", 6, None),
    ]  # fmt: skip


def test_kick_of_a_user_who_has_left_moves_the_cut():
    made = MadeRoom()
    made.member(BOB, "join")
    made.member(BOB, "leave")
    made.member(BOB, "leave", sender=ALICE)
    assert rows_of(made, BOB) == [("joined", 2, 3), ("cut", 4, None)]


@pytest.mark.parametrize("rule, withheld", [("public", [("withheld", 3, 3)]), ("invite", [])])
def test_calls_are_withheld_in_public_rooms(rule, withheld):
    made = MadeRoom()
    made.state("m.room.join_rules", "", {"join_rule": rule})
    made.send({"type": "m.call.invite"})
    assert [row for row in rows_of(made, None) if row[0] == "withheld"] == withheld


def test_redaction_without_effect_is_withheld():
    made = MadeRoom()
    other = MadeRoom(room_id="!other:a.test").message()
    made.redaction(made.message())
    made.redaction(other)
    assert [row for row in rows_of(made, None) if row[0] == "withheld"] == [("withheld", 4, 4)]


@pytest.mark.parametrize("version", ["1", "10", "11"])
@pytest.mark.parametrize("size", [2, 100])
def test_redaction_that_names_nothing_is_withheld(version, size):
    """As one that was redacted itself: before version 11 nothing is left of what it named."""
    made = MadeRoom(version)
    made.redaction(made.message())
    for content in ({}, {"redacts": 5}, {"reason": "x"}):
        made.send({"type": "m.room.redaction", "redacts": None, "content": content})
    made.send({"type": "m.room.redaction"}, rejected_reason="x")
    found = room_history(made.events, size).visibility
    assert [(row.kind, row.first) for row in found if row.kind == "withheld"] == [("withheld", n) for n in (4, 5, 6)]


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
    assert found[0] == ("joined", 5, 7) and "cut" not in {row[0] for row in found}


def test_backfilled_events_have_ranges_too():
    made = closed_room()
    bob = made.member(BOB, "join")
    old = made.message(prev=[bob], stream_ordering=-1)
    made.message(prev=[old])
    arrived = [old, *(event for event in made.events if event is not old)]
    seen, rows = Seen(arrived), ranges(arrived)
    for user_id in (ALICE, BOB, "@stranger:z.test"):
        assert seen.by_ranges(rows, Viewer(user_id)) == seen.by_rule(Viewer(user_id))
    assert [row for row in rows if row.last == 0] == [
        VisibilityRow(ALICE, "joined", 0, 0), VisibilityRow(BOB, "joined", 0, 0),
    ]  # fmt: skip


def test_the_own_leave_of_a_backfilled_history_is_a_row_of_its_own():
    """Whether the join came in the same batch or not."""
    made = MadeRoom()
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"}, stream_ordering=-1)
    made.member(BOB, "join", stream_ordering=-1)
    made.message(stream_ordering=-1)
    made.member(BOB, "leave", stream_ordering=-1)
    old = [event for event in made.events if event.backfilled]
    found = ranges([*old, *(event for event in made.events if not event.backfilled)])
    assert [(row.kind, row.first, row.last) for row in found if row.user_id == BOB] == [
        ("joined", 1, 2),
        ("shown", 3, 3),
    ]


def test_room_with_an_event_of_unknown_state_has_no_ranges():
    made = MadeRoom()
    made.message(prev=["$gone"])
    result = room_history(made.events)
    assert result.visibility_unresolved and result.visibility == []
