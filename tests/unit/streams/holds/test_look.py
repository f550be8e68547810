"""What follows from what was seen."""

from __future__ import annotations

from streams.core.tokens import VectorToken
from streams.holds.functions_sql import ANY_WRITER, class_of
from streams.holds.look import Seen

NORTH, SOUTH = class_of("north"), class_of("south")


def test_a_writer_without_open_appends_stands_at_what_was_given_out():
    seen = Seen(given=9, position=4, open={NORTH: 4, SOUTH: 6})
    assert [seen.position_of(name) for name in ("north", "south", "west")] == [4, 6, 9]
    assert seen.token(["north", "south", "west"]) == VectorToken(4, {"south": 6, "west": 9})


def test_an_append_that_names_no_writer_holds_all_of_them():
    seen = Seen(given=9, position=3, open={NORTH: 4, ANY_WRITER: 3})
    assert [seen.position_of(name) for name in ("north", "south")] == [3, 3]
    assert seen.token(["north", "south"]) == VectorToken(3)


def test_a_bound_above_what_was_given_out_holds_nothing():
    """An append that began between the two parts of the look."""
    seen = Seen(given=9, position=9, open={NORTH: 12})
    assert seen.position_of("north") == 9


def test_writers_of_one_class_hold_each_other_back():
    names = [f"writer-{n}" for n in range(5000)]
    one, other = next((a, b) for a in names for b in names if a < b and class_of(a) == class_of(b))
    seen = Seen(given=9, position=4, open={class_of(one): 4})
    assert seen.position_of(other) == 4
