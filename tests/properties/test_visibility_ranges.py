"""Ranges against the rule judged event by event, on rooms with random forks."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from events.room_history import room_history
from tests.made_rooms import ALICE, BOB, EVE, MadeRoom
from tests.oracle.test_visibility import Seen, differences

SETTINGS = ["world_readable", "shared", "invited", "joined", "nonsense"]
ACTS = st.one_of(
    st.just(("message",)),
    st.tuples(st.just("setting"), st.sampled_from(SETTINGS)),
    st.tuples(
        st.just("member"),
        st.sampled_from([BOB, EVE]),
        st.sampled_from(["join", "invite", "leave", "ban", "knock"]),
    ),
)


@st.composite
def forked_rooms(draw):
    """Each event stands on one or two of the last events; some are soft-failed or rejected."""
    made = MadeRoom()
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}})
    for act, back, flag in draw(
        st.lists(st.tuples(ACTS, st.sets(st.integers(1, 4), min_size=1, max_size=2), st.integers(0, 9)), max_size=25)
    ):
        prev = [made.events[-min(number, len(made.events) - 1)] for number in back]
        flags = {"soft_failed": True} if flag == 0 else {"rejected_reason": "x"} if flag == 1 else {}
        if act[0] == "message":
            made.message(prev, **flags)
        elif act[0] == "setting":
            made.state("m.room.history_visibility", "", {"history_visibility": act[1]}, prev, **flags)
        else:
            made.member(act[1], act[2], prev, sender=ALICE, **flags)
    return made


@settings(deadline=None, max_examples=150)
@given(forked_rooms())
def test_ranges_tell_what_the_rule_tells(made):
    result, seen = room_history(made.events), Seen(made.events)
    assert not result.visibility_unresolved
    for user_id in (ALICE, BOB, EVE):
        assert differences(seen, result.visibility, user_id) == []
    assert differences(seen, result.visibility, "@stranger:z.test", peeking=True) == []


@settings(deadline=None, max_examples=60)
@given(forked_rooms())
def test_ranges_of_one_kind_and_user_do_not_overlap(made):
    found = {}
    for row in room_history(made.events).visibility:
        found.setdefault((row.user_id, row.kind), []).append(row)
    for rows in found.values():
        rows.sort(key=lambda row: row.first)
        assert all(row.last is None or row.first <= row.last for row in rows)
        assert all(one.last is not None and one.last < other.first for one, other in pairwise(rows))
