"""Work in batches of bounded size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streams.runtime.batches import bounded_batches


@given(st.lists(st.integers(0, 30)), st.integers(1, 40), st.integers(1, 10))
def test_batches_keep_the_order_and_are_bounded(sizes, most, most_items):
    items = list(enumerate(sizes))
    found = list(bounded_batches(items, lambda item: item[1], most, most_items))
    assert [item for batch in found for item in batch] == items
    assert all(len(batch) == 1 or sum(size for _, size in batch) <= most for batch in found)
    assert all(0 < len(batch) <= most_items for batch in found)


def test_an_item_beyond_the_limit_is_alone():
    assert list(bounded_batches([2, 100, 3, 4], lambda item: item, 10)) == [[2], [100], [3, 4]]
