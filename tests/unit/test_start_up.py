"""What a starting process takes as given, rule by rule."""

from __future__ import annotations

from typing import Any

import pytest

from streams.errors import SequenceBehind
from streams.start_up import StreamFindings, sequence_verdict, start


def findings(**given: Any) -> StreamFindings:
    values: dict[str, Any] = {"table_maximum": 10, "sequence_value": 10, "stored": {}, "writers": ["me"]}
    return StreamFindings(stream="test", **{**values, **given})


def test_right_sequence_is_left_alone():
    assert sequence_verdict(findings()) is None
    assert sequence_verdict(findings(sequence_value=15)) is None


def test_sequence_behind_the_table_moves_to_it():
    assert sequence_verdict(findings(sequence_value=7)) == 10


def test_sequence_behind_a_stored_position_is_refused_with_the_way_out():
    with pytest.raises(SequenceBehind) as error:
        sequence_verdict(findings(stored={"south": 11}))
    for word in ("test", "south", "11", "10", "check_streams --repair"):
        assert word in str(error.value)


def test_stored_positions_are_compared_with_the_sequence_as_it_was_found():
    with pytest.raises(SequenceBehind):
        sequence_verdict(findings(table_maximum=20, sequence_value=10, stored={"south": 15}))


def test_own_position_is_where_the_sequence_is():
    assert start(findings(sequence_value=15, stored={"me": 3}), "me").positions["me"] == 15


def test_own_position_is_where_the_sequence_is_moved_to():
    assert start(findings(sequence_value=7), "me").positions["me"] == 10


def test_linear_position_is_the_minimum_of_the_writers():
    outcome = start(findings(stored={"south": 4, "north": 9}, writers=["me", "north", "south"]), "me")
    assert outcome.linear == 4


def test_positions_of_those_who_are_no_writers_are_dropped():
    outcome = start(findings(stored={"gone": 2, "me": 9}), "me")
    assert (outcome.dropped_writers, outcome.linear) == (("gone",), 10)


def test_new_stream_starts_at_one():
    outcome = start(findings(table_maximum=0, sequence_value=1), "me")
    assert (outcome.linear, outcome.positions) == (1, {"me": 1})


def test_reader_without_stored_positions_starts_at_the_table():
    assert start(findings(writers=["north"]), None).linear == 10


def test_anybody_may_write():
    outcome = start(findings(writers=None, stored={"x": 12}, sequence_value=12), "me")
    assert (outcome.linear, outcome.own_name) == (12, "me")


def test_rows_above_the_minimum_move_the_linear_position_in_a_gapless_run():
    given = findings(stored={"south": 7, "me": 7}, writers=["me", "south"])
    rows = [("south", 8), ("attic", 9), ("me", 10)]
    assert start(given, "me").tracker(rows, given).linear == 10


def test_a_gap_stops_the_run():
    given = findings(stored={"south": 7, "me": 7}, writers=["me", "south"])
    assert start(given, "me").tracker([("south", 8), ("me", 10)], given).linear == 8


def test_writers_without_a_position_enter_at_the_linear_one():
    given = findings(stored={"me": 10}, writers=["me", "new"])
    assert start(given, None).tracker([], given).position_of("new") == 10


def test_what_is_announced_first_is_a_fact():
    given = findings(sequence_value=15)
    tracker = start(given, "me").tracker([("me", 10)], given)
    assert (tracker.announceable, tracker.own_maximum) == (10, 15)
