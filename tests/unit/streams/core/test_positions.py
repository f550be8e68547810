"""What the table of positions says of a stream."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from streams.core.positions import active_and_retired, linear_position, positions_to_show


@dataclass
class At:
    """A stored position."""

    position: int
    state: str = "active"


@pytest.mark.parametrize(
    ("writers", "expected"),
    [
        ([], 1),
        ([At(5)], 5),
        ([At(5), At(3)], 3),
        ([At(5), At(3, "retired")], 5),
        ([At(5), At(9, "retired")], 5),
        ([At(5, "retired"), At(7, "retired")], 7),
        ([At(5, "retired"), At(3, "retired")], 5),
    ],
)
def test_linear_position(writers, expected):
    assert linear_position(iter(writers)) == expected


def test_a_retired_writer_is_as_far_as_the_stream():
    assert positions_to_show({"gone": At(3, "retired"), "here": At(7), "slow": At(5)}, 5) == {
        "gone": 5, "here": 7, "slow": 5,
    }  # fmt: skip


def test_a_retired_writer_never_goes_back():
    assert positions_to_show({"gone": At(9, "retired"), "here": At(7)}, 7)["gone"] == 9


def test_active_writers_and_retired_ones():
    stored = {"gone": At(3, "retired"), "slow": At(4), "here": At(7)}
    assert active_and_retired(stored) == ({"slow": 4, "here": 7}, {"gone": 3})
