"""What an export holds, and into how many folders it goes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.export.tables import FIRST_DAY, MOST_BUCKETS, MOST_PARTITIONS, TABLES, buckets_for, room_bucket


@given(st.integers(0, 10**10), st.integers(0, 10**6), st.integers(0, 8_000))
def test_there_are_never_too_many_folders(rows, rooms, days):
    buckets = buckets_for(rows, rooms, days)
    assert 1 <= buckets <= MOST_BUCKETS
    assert buckets * max(days, 1) <= MOST_PARTITIONS
    assert buckets <= max(rooms, 1)


def test_a_hundred_thousand_rooms_share_buckets():
    assert buckets_for(10**9, 100_000, 365) == 16
    assert buckets_for(10**9, 100_000, 3_650) == 2
    assert buckets_for(10**7, 100_000, 30) == 16
    assert buckets_for(10**9, 100_000, 30) == 167


def test_few_rooms_are_kept_apart():
    assert buckets_for(100, 11, 2) == 11


@given(st.text(min_size=1), st.integers(1, MOST_BUCKETS))
def test_a_room_is_always_in_the_same_bucket(room_id, buckets):
    if any("\ud800" <= char <= "\udfff" for char in room_id):
        return
    assert room_bucket(room_id, buckets) == room_bucket(room_id, buckets) < buckets


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_every_table_has_its_room_and_is_ordered_by_columns_that_it_has(table):
    names = [name for name, _, _ in table.columns]
    assert "room_id" in names and set(table.order) <= set(names)
    assert len(set(names)) == len(names)


def test_conditions_hold_values_by_name():
    where, values = TABLES["events"].conditions(["!a:b.test"], FIRST_DAY, FIRST_DAY + 1)
    assert values == {"rooms": ["!a:b.test"], "since": FIRST_DAY, "until": FIRST_DAY + 1}
    assert "!a:b.test" not in where


def test_rooms_have_no_days():
    assert TABLES["rooms"].conditions(None, 1, 2) == ("(true)", {})
