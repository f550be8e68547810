"""Cells: figures in words, and keys as the admin quotes them."""

from __future__ import annotations

import pytest
from django.contrib.admin.utils import quote, unquote
from hypothesis import given
from hypothesis import strategies as st

from replsite.live_rows.cells import number_cell, per_second, quoted_key, rounded, summed


@given(st.text())
def test_keys_are_quoted_as_the_admin_does(key):
    assert quoted_key(key) == quote(key)
    assert unquote(quoted_key(key)) == key


@pytest.mark.parametrize(
    ("speed", "said"),
    [(0.0, "0.0/s"), (0.44, "0.4/s"), (9.94, "9.9/s"), (9.96, "10/s"), (1234.5, "1,234/s"), (-3.0, "0.0/s")],
)
def test_speed_is_said_with_as_many_digits_as_matter(speed, said):
    assert per_second(speed) == said


def test_series_have_no_more_digits_than_a_small_picture():
    assert rounded((None, 0.123, 99.96, 12_345.678)) == [None, 0.1, 100.0, 12346]


def test_sum_is_unknown_only_where_all_are():
    assert summed([(1.0, None, None), (2.0, 3.0, None)]) == [3.0, 3.0, None]
    assert summed([]) == []


def test_nothing_is_said_of_no_number():
    assert number_cell(0, "sub") == number_cell(None) == {"text": "-"}
