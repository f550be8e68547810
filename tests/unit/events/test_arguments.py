"""Arguments of questions, hostile ones too."""

import pytest

from events.arguments import can_be_stored, checked_ids, checked_limit
from events.errors import InvalidQuery


@pytest.mark.parametrize("value", ["$a\0", "\ud800", "x" * 256, "é" * 128])
def test_what_no_column_can_hold_is_merely_unknown(value):
    assert not can_be_stored(value) and checked_ids([value, "$a"], 5) == ["$a"]


@pytest.mark.parametrize("value", ["", "x" * 255, "é" * 127, "$a b"])
def test_everything_else_may_be_asked(value):
    assert can_be_stored(value)


@pytest.mark.parametrize("value", [None, 5, b"$a", ["$a"], 1.5])
def test_what_is_no_string_is_refused(value):
    with pytest.raises(InvalidQuery, match="give a string"):
        can_be_stored(value)


@pytest.mark.parametrize("value", ["$a", b"$a"])
def test_one_id_is_no_list(value):
    with pytest.raises(InvalidQuery, match="list"):
        checked_ids(value, 5)


@pytest.mark.parametrize("value", [None, 5, True])
def test_what_is_no_list_is_refused(value):
    with pytest.raises(InvalidQuery, match="no list"):
        checked_ids(value, 5)


def test_ids_are_counted_once_each():
    assert checked_ids(["$b", "$a", "$b"], 2) == ["$b", "$a"]
    with pytest.raises(InvalidQuery, match="3 IDs are too many"):
        checked_ids(["$a", "$b", "$c"], 2)


@pytest.mark.parametrize("limit", [0, -1, 1.5, "5", None, True, float("inf")])
def test_unusable_limits_are_refused(limit):
    with pytest.raises(InvalidQuery, match="1 to 100"):
        checked_limit(limit, 100)


def test_high_limits_are_lowered():
    assert (checked_limit(5, 100), checked_limit(10**30, 100)) == (5, 100)
