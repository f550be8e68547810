"""Lag in facts and in time, held against a slow obvious count."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from replsite.status.unread import EMPTY, Window, unread
from streams.core.positions import lowest_unread, position_of

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(number):
    return START + timedelta(seconds=number)


def facts(*pairs):
    return [(number, writer, at(number)) for number, writer in pairs]


def test_equal_positions_have_no_lag():
    found = unread({"a": 5}, {"a": 5}, EMPTY)
    assert (found.facts, found.exact, found.oldest_at) == (0, True, None)


def test_ids_of_other_writers_and_gaps_do_not_count():
    window = Window(facts((6, "a"), (7, "b"), (9, "a")), 5)
    found = unread({"a": 5, "b": 7}, {"a": 9, "b": 7}, window)
    assert (found.facts, found.oldest_at) == (2, at(6))


def test_facts_above_the_writers_position_do_not_count():
    assert unread({"a": 5}, {"a": 6}, Window(facts((6, "a"), (7, "a")), 5)).facts == 1


def test_fact_of_several_rows_counts_once_and_is_as_old_as_its_oldest_row():
    window = Window([(6, "a", at(8)), (6, "a", at(7))], 5)
    found = unread({"a": 5}, {"a": 6}, window)
    assert (found.facts, found.oldest_at) == (1, at(7))


def test_reader_below_the_window_is_estimated_and_says_so():
    found = unread({"a": 10}, {"a": 102}, Window(facts((101, "a"), (102, "a")), 100))
    assert (found.facts, found.exact, found.below_window) == (92, False, True)


def test_writer_that_a_reader_has_not_met_starts_at_its_lowest_position():
    assert position_of({"a": 7, "b": 5}, "new") == 5
    assert unread({"a": 7, "b": 5}, {"new": 6}, Window(facts((6, "new")), 4)).facts == 1


def test_lowest_unread_looks_only_at_writers_that_are_ahead():
    assert lowest_unread({"a": 2, "b": 9}, {"a": 2, "b": 12}) == 9
    assert lowest_unread({"a": 2, "b": 9}, {"a": 2, "b": 9}) is None


WRITERS = st.sampled_from("abc")


@given(
    st.dictionaries(st.integers(1, 40), WRITERS),
    st.dictionaries(WRITERS, st.integers(0, 40), min_size=1),
    st.integers(1, 40),
)
def test_within_the_window_lag_is_the_plain_count(table, have, head):
    upto = dict.fromkeys("abc", head)
    missing = [n for n, writer in sorted(table.items()) if position_of(have, writer) < n <= head]
    found = unread(have, upto, Window(facts(*table.items()), 0))
    assert found.facts == len(missing)
    assert found.exact
    assert found.oldest_at == (at(missing[0]) if missing else None)


@given(st.dictionaries(st.integers(1, 40), WRITERS), st.integers(0, 40), st.integers(0, 40))
def test_estimate_is_never_below_the_truth(table, position, cut):
    window = Window(facts(*((n, w) for n, w in table.items() if n > cut)), cut)
    truth = sum(n > position for n in table)
    assert unread({"a": position}, dict.fromkeys("abc", 40), window).facts >= truth
