"""Offsets of the Spark source."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.source import ReplsiteSource, _ranges, cut_vector

vectors = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 50), max_size=4)


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
    (found,) = _ranges({"a": 5, "b": 7}, {"a": 5, "b": 9})
    assert (found.writer, found.after, found.upto) == ("b", 7, 9)


def test_a_writer_that_joins_is_read_from_the_beginning():
    (found,) = _ranges({}, {"new": 12})
    assert (found.after, found.upto) == (0, 12)


@pytest.mark.parametrize(("options", "said"), [({}, "dsn and stream"), ({"dsn": "x"}, "option stream")])
def test_missing_options_are_named(options, said):
    with pytest.raises(ValueError, match=said):
        ReplsiteSource(options).schema()


def test_an_unknown_stream_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="'nonsense'; known streams: events, backfill, presence"):
        ReplsiteSource({"dsn": "x", "stream": "nonsense"}).schema()
