"""How far a table of the live pipeline has every fact, of every writer."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pipeline.live.named_table import ready_upto


@dataclass
class At:
    position: int
    state: str = "active"


@pytest.mark.parametrize(
    ("stored", "vector", "upto"),
    [
        ({"a": At(9)}, {"a": 9}, 9),
        ({"a": At(9)}, {"a": 4}, 4),
        ({"a": At(9)}, {}, 0),
        ({"a": At(9), "b": At(5)}, {"a": 9, "b": 5}, 5),  # b may still write 6
        ({"a": At(9), "b": At(5, "retired")}, {"a": 9, "b": 5}, 9),
        ({"a": At(9), "b": At(5, "retired")}, {"a": 9, "b": 3}, 3),
        ({"a": At(9), "b": At(7)}, {"a": 6, "b": 4}, 4),
        ({"a": At(4)}, {"a": 9}, 4),
        ({}, {}, 1),
    ],
)
def test_ready_is_what_is_complete_and_taken_of_every_writer(stored, vector, upto):
    assert ready_upto(stored, vector) == upto
