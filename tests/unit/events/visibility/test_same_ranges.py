"""Whether two sets of ranges tell the same: against counting event by event."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.visibility.ranges import VisibilityRow
from events.visibility.same_ranges import show_the_same

PLACES = range(2, 40, 3)
SPANS = st.tuples(st.integers(0, 40), st.one_of(st.none(), st.integers(0, 40)))
ROWS = st.lists(
    st.tuples(st.sampled_from(["@a:x", "@b:x"]), st.sampled_from(["joined", "invited", "shown"]), SPANS), max_size=6
)
HIDDEN = st.lists(st.tuples(st.sampled_from(["@a:x", "@b:x"]), st.sampled_from(PLACES)), max_size=5)


def rows_of(ranges, hidden):
    shown = [VisibilityRow(user, kind, first, last) for user, kind, (first, last) in ranges]
    return [*shown, *(VisibilityRow(user, "hidden", place, place) for user, place in hidden)]


def seen(rows):
    """The obvious way: every event, every user."""
    found = set()
    for user in ("@a:x", "@b:x"):
        own = [row for row in rows if row.user_id == user]
        for place in PLACES:
            covers = [row for row in own if row.first <= place and (row.last is None or place <= row.last)]
            if covers and not any(row.kind == "hidden" for row in covers):
                found.add((user, place))
    return found


@given(ROWS, HIDDEN, ROWS, HIDDEN)
def test_ranges_tell_the_same_when_everybody_sees_the_same(ranges, hidden, others, other_hidden):
    one, other = rows_of(ranges, hidden), rows_of(others, other_hidden)
    assert show_the_same(one, other, PLACES) is (seen(one) == seen(other))


@given(ROWS, HIDDEN)
def test_ranges_cut_into_pieces_tell_the_same(ranges, hidden):
    one = rows_of(ranges, hidden)
    pieces = [
        VisibilityRow(row.user_id, row.kind, place, place)
        for row in one
        for place in PLACES
        if row.first <= place and (row.last is None or place <= row.last)
    ]
    assert show_the_same(one, pieces, PLACES)


def test_very_many_hidden_events_take_linear_time():
    places = range(40_000)
    rows = [VisibilityRow("@a:x", "joined", 0, None)]
    rows += [VisibilityRow("@a:x", "hidden", place, place) for place in range(0, 40_000, 2)]
    assert show_the_same(rows, rows[:], places)


def test_room_wide_kinds_are_told_apart():
    one, other = (VisibilityRow(None, kind, 2, None) for kind in ("world", "shared"))
    assert not show_the_same([one], [other], PLACES) and show_the_same([one], [one], PLACES)


FEW = [-7, -3, 2, 5, 6, 9]


def rows(*ranges):
    return [VisibilityRow(*row) for row in ranges]


SAME = {
    "split": ([("@a", "joined", -7, 9)], [("@a", "joined", -7, -3), ("@a", "joined", 2, 6), ("@a", "joined", 9, 9)]),
    "open": ([("@a", "joined", 2, None)], [("@a", "joined", 0, 9)]),
    "single": ([("@a", "joined", 2, 6)], [("@a", "joined", 2, 5), ("@a", "shown", 6, 6)]),
    "hidden": ([("@a", "joined", 2, 9), ("@a", "hidden", 5, 5)], [("@a", "joined", 2, 2), ("@a", "invited", 6, 9)]),
    "hidden alone": ([("@a", "joined", 5, 5), ("@a", "hidden", 5, 5)], []),
    "between events": ([(None, "world", 3, 4)], []),
    "cut between events": ([("@a", "cut", 3, None)], [("@a", "cut", 2, None)]),
}
OTHER = {
    "shorter": ([("@a", "joined", 2, 9)], [("@a", "joined", 2, 6)]),
    "of another": ([("@a", "joined", 2, 9)], [("@b", "joined", 2, 9)]),
    "of another kind": ([(None, "world", 2, 9)], [(None, "shared", 2, 9)]),
    "not hidden": ([("@a", "joined", 2, 9), ("@a", "hidden", 5, 5)], [("@a", "joined", 2, 9)]),
    "cut elsewhere": ([("@a", "cut", 5, None)], [("@a", "cut", 6, None)]),
    "cut below all, and at the first": ([("@a", "cut", -8, None)], [("@a", "cut", -7, None)]),
    "cut at the last": ([("@a", "cut", 9, None)], []),
}


@pytest.mark.parametrize("one, other", SAME.values(), ids=SAME)
def test_layout_does_not_matter(one, other):
    assert show_the_same(rows(*one), rows(*other), FEW)


@pytest.mark.parametrize("one, other", OTHER.values(), ids=OTHER)
def test_who_sees_what_matters(one, other):
    assert not show_the_same(rows(*one), rows(*other), FEW) and not show_the_same(rows(*other), rows(*one), FEW)
