"""The verdict of the torture on logs made by hand: each rule is broken once, and only that is told."""

from __future__ import annotations

import pytest

from tests.torture.logs import Seen
from tests.torture.verdict import Commits, TableFact, check_follower, check_writers, read_writer_lines

TABLE = {("s", 2): TableFact("a", (20,)), ("s", 3): TableFact("b", (30, 31)), ("s", 4): TableFact("a", (40,))}
#: COMMIT was sent at these times.
SENT = Commits(sent_at={("s", 2): 1.0, ("s", 3): 2.0, ("s", 4): 3.0})


def rules(*steps: Seen, is_linear: bool = False, is_over: bool = True) -> set[str]:
    found = check_follower("f", steps, TABLE, SENT, is_linear=is_linear, is_over=is_over)
    return {violation.rule for violation in found}


def two(time: float = 1.5) -> Seen:
    return Seen("s", time, [("a", 2, 20)], 2, {"a": 2})


def three(time: float = 2.5) -> Seen:
    return Seen("s", time, [("b", 3, 30), ("b", 3, 31)], 3, {"b": 3})


def four(time: float = 3.5) -> Seen:
    return Seen("s", time, [("a", 4, 40)], 4, {"a": 4})


def test_a_log_that_equals_the_table():
    assert rules(two(), three(), four()) == set()
    assert rules(two(), three(), four(), is_linear=True) == set()


def test_writers_may_overtake_each_other_only_in_the_writer_view():
    late = Seen("s", 4.0, [("b", 3, 30), ("b", 3, 31)], 4, {"b": 3})
    early = Seen("s", 3.5, [("a", 4, 40)], 2, {"a": 4})
    assert rules(two(), early, late) == set()
    assert rules(two(), early, late, is_linear=True) == {"fact out of order"}


@pytest.mark.parametrize(
    ("steps", "rule"),
    [
        ((two(), four()), "fact is missing"),
        ((two(), two(), three(), four()), "fact came twice"),
        ((two(), three(1.9), four()), "row seen before its commit"),
        ((two(), Seen("s", 2.5, [("b", 3, 30)], 3, {"b": 3}), four()), "fact has other rows than the table"),
        ((two(), three(), four(), Seen("s", 5.0, [("a", 9, 1)], 9)), "fact that is not in the table"),
        ((two(), Seen("s", 1.6, (), 2, {"b": 3}), three(), four()), "position passed a fact before its commit"),
        ((two(), Seen("s", 1.6, (), 3), three(), four()), "position passed a fact before its commit"),
    ],
)
def test_each_rule(steps, rule):
    assert rule in rules(*steps)


def test_streams_are_judged_apart():
    other = Seen("t", 0.5, [("a", 2, 20)], 2, {"a": 2})
    assert rules(two(), three(), other, four()) == {"fact that is not in the table"}


def test_facts_of_one_writer_out_of_order():
    first = Seen("s", 3.5, [("a", 4, 40)], 1)
    assert "fact out of order" in rules(first, Seen("s", 3.6, [("a", 2, 20)], 1), three())


def test_before_the_end_nothing_is_missing_yet():
    assert rules(two(), is_over=False) == set()


def test_a_restart_that_tells_a_lower_position_excuses_nothing():
    assert "position passed a fact before its commit" in rules(
        two(), Seen("s", 1.6, (), 3), Seen("s", 1.7, (), 2), three(), four()
    )


def test_writers_logs_against_the_table():
    commits = Commits()
    read_writer_lines(["S 1.0 s 2 4", "D s 2", "S 2.0 s 3", "R WriterFenced", "S 2.5 s 7 8", "D s 7"], commits)
    found = [str(violation) for violation in check_writers(TABLE | {("s", 9): TableFact("c", (1,))}, commits)]
    assert found == [
        "table: acknowledged fact is not in the table: s 7",
        "table: acknowledged fact is not in the table: s 8",
        "table: fact that no writer sent: s 9",
    ]
    assert commits.refused == {"WriterFenced": 1}


def test_facts_of_a_writer_that_did_not_live_to_learn_their_ids():
    commits = Commits()
    read_writer_lines(["I 1.5 s 30 40"], commits)
    commits.find_intended(TABLE)
    assert commits.sent_at == {("s", 3): 1.5, ("s", 4): 1.5}


def test_an_error_that_nobody_expects_is_told():
    commits = Commits()
    read_writer_lines(["E ValueError: odd"], commits)
    assert [violation.rule for violation in check_writers({}, commits)] == ["unexpected error"]
