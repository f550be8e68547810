"""What follows from what was seen."""

from __future__ import annotations

from streams.core.tokens import VectorToken
from streams.holds.installed_sql import ANY_WRITER, class_of
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


def test_a_writer_that_the_caller_does_not_know_holds_all_others():
    seen = Seen(given=9, position=5, open={SOUTH: 5})
    assert seen.positions_of(["north", "west"]) == {"north": 5, "west": 5}
    assert seen.position_of_others(["north", "west"]) == 5
    assert seen.positions_of(["north", "south"]) == {"north": 9, "south": 5}
    assert seen.position_of_others(["north", "south"]) == 9


def test_a_session_without_a_name_holds_writers_that_nobody_knows():
    seen = Seen(given=9, position=4, open={ANY_WRITER: 4})
    assert seen.position_of_others(["north"]) == 4
    assert seen.positions_of(["north"]) == {"north": 4}
