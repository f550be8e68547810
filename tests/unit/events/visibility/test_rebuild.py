"""When ranges tell the same."""

import pytest

from events.visibility.ranges import VisibilityRow
from events.visibility.recompute import show_the_same

PLACES = [-7, -3, 2, 5, 6, 9]


def rows(*told):
    return [VisibilityRow(*row) for row in told]


SAME = {
    "split": ([("@a", "joined", -7, 9)], [("@a", "joined", -7, -3), ("@a", "joined", 2, 6), ("@a", "joined", 9, 9)]),
    "open": ([("@a", "joined", 2, None)], [("@a", "joined", 0, 9)]),
    "single": ([("@a", "joined", 2, 6)], [("@a", "joined", 2, 5), ("@a", "shown", 6, 6)]),
    "hidden": ([("@a", "joined", 2, 9), ("@a", "hidden", 5, 5)], [("@a", "joined", 2, 2), ("@a", "invited", 6, 9)]),
    "hidden alone": ([("@a", "joined", 5, 5), ("@a", "hidden", 5, 5)], []),
    "between events": ([(None, "world", 3, 4)], []),
}
OTHER = {
    "shorter": ([("@a", "joined", 2, 9)], [("@a", "joined", 2, 6)]),
    "of another": ([("@a", "joined", 2, 9)], [("@b", "joined", 2, 9)]),
    "of another kind": ([(None, "world", 2, 9)], [(None, "shared", 2, 9)]),
    "not hidden": ([("@a", "joined", 2, 9), ("@a", "hidden", 5, 5)], [("@a", "joined", 2, 9)]),
    "cut elsewhere": ([("@a", "cut", 5, None)], [("@a", "cut", 6, None)]),
}


@pytest.mark.parametrize("one, other", SAME.values(), ids=SAME)
def test_layout_does_not_matter(one, other):
    assert show_the_same(rows(*one), rows(*other), PLACES)


@pytest.mark.parametrize("one, other", OTHER.values(), ids=OTHER)
def test_who_sees_what_matters(one, other):
    assert not show_the_same(rows(*one), rows(*other), PLACES) and not show_the_same(rows(*other), rows(*one), PLACES)
