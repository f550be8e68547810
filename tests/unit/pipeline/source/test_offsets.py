"""Offsets of the Spark source, and how what lies between two of them is cut into partitions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.source import offsets
from pipeline.source.offsets import cut_vector, pieces, stretches, target_vector, within

vectors = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 50), max_size=4)
cuts = st.lists(st.integers(0, 60), max_size=6).map(sorted)


@dataclass
class At:
    position: int
    state: str = "active"


@given(vectors, vectors, st.none() | st.integers(0, 60))
def test_no_writer_leaves_an_offset_and_none_goes_back(start, target, beyond):
    end = cut_vector(start, target, beyond)
    assert set(end) == set(start) | set(target)
    assert all(end[writer] >= position for writer, position in start.items())
    assert all(end[writer] <= max(target.get(writer, 0), start.get(writer, 0)) for writer in end)


@given(vectors, st.randoms())
def test_equal_offsets_are_written_alike(vector, random):
    shuffled = dict(random.sample(sorted(vector.items()), len(vector)))
    assert json.dumps(cut_vector({}, vector, None)) == json.dumps(cut_vector({}, shuffled, None))


def test_a_batch_ends_below_the_first_row_that_is_too_much():
    assert cut_vector({"a": 5}, {"a": 90, "b": 40}, 30) == {"a": 29, "b": 29}


def test_only_writers_that_moved_are_read():
    assert stretches({"a": 5, "b": 7}, {"a": 5, "b": 9}) == {"b": (7, 9)}


def test_a_writer_that_joins_is_read_from_where_the_last_one_is():
    assert stretches({"a": 5, "b": 7}, {"a": 5, "b": 7, "new": 12}) == {"new": (5, 12)}


def test_a_writer_that_joins_a_stream_of_lives_is_read_from_the_beginning():
    assert stretches({"a": 5}, {"a": 5, "a~2": 12}, from_zero=True) == {"a~2": (0, 12)}


def test_everything_is_read_where_nothing_was():
    assert stretches({}, {"a": 12}) == {"a": (0, 12)}


def test_each_writer_is_read_as_far_as_it_is():
    assert target_vector({"a": At(9), "b": At(4)}, linear=False) == {"a": 9, "b": 4}


def test_the_linear_view_ends_where_the_slowest_writer_is():
    assert target_vector({"a": At(9), "b": At(4)}, linear=True) == {"a": 4, "b": 4}


@pytest.mark.parametrize("linear", [True, False])
def test_a_retired_writer_holds_nobody_back(linear):
    assert target_vector({"a": At(9), "gone": At(4, "retired")}, linear=linear) == {"a": 9, "gone": 9}


def test_stretches_end_at_the_bounds_that_are_given():
    moved = {"a": (0, 10), "b": (8, 9)}
    assert within(moved, 2, 8) == {"a": (2, 8)}
    assert within(moved, None, None) == moved


def test_writers_of_one_stretch_are_read_together():
    (piece,) = pieces({"a": (1, 9), "b": (1, 9), "c": (4, 9)}, [])
    assert [(bound.writers, bound.after, bound.upto) for bound in piece.bounds] == [(("a", "b"), 1, 9), (("c",), 4, 9)]
    assert (piece.after, piece.upto) == (1, 9)


def test_nothing_that_moved_is_no_piece():
    assert pieces({}, [4]) == []


@given(vectors, vectors, cuts)
def test_every_fact_lies_in_exactly_one_piece(start, end, cuts):
    moved = stretches(start, end)
    found = [
        (writer, token)
        for piece in pieces(moved, cuts)
        for bound in piece.bounds
        for writer in bound.writers
        for token in range(bound.after + 1, bound.upto + 1)
    ]
    expected = [(writer, token) for writer, (after, upto) in moved.items() for token in range(after + 1, upto + 1)]
    assert sorted(found) == sorted(expected)


@given(vectors, cuts)
def test_no_token_is_in_two_pieces(end, cuts):
    found = pieces(stretches({}, end), cuts)
    assert all(one.upto <= other.after for one, other in pairwise(found))


def test_there_are_never_too_many_pieces(monkeypatch):
    monkeypatch.setattr(offsets, "MOST_PIECES", 10)
    found = pieces({"a": (0, 1000)}, list(range(1, 1000)))
    assert 5 <= len(found) <= 11
    assert (found[0].after, found[-1].upto) == (0, 1000)
