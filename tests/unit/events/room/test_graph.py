"""Causal order, leaves and gaps."""

from dataclasses import dataclass

import pytest

from events.room.graph import causal_order, cycles
from tests.support.arrived_events import ArrivedExtremities
from tests.support.growth import growth


@dataclass
class Node:
    event_id: str
    prev_event_ids: tuple = ()
    auth_event_ids: tuple = ()
    outlier: bool = False
    rejected_reason: str | None = None
    soft_failed: bool = False
    backfilled: bool = False


def extremities_of(*nodes):
    found = ArrivedExtremities()
    for node in nodes:
        found.add(node)
    return list(found.current)


def test_order_puts_prev_events_first_and_else_keeps_the_given_order():
    nodes = [Node("d", ("b", "c")), Node("b", ("a",)), Node("x"), Node("c", ("a",)), Node("a")]
    order, cyclic = causal_order(nodes)
    assert [nodes[number].event_id for number in order] == ["x", "a", "b", "c", "d"]
    assert cyclic == []


def test_cycle_and_what_lies_above_it_is_told_apart():
    nodes = [Node("a"), Node("b", ("c",)), Node("c", ("b",)), Node("d", ("b",)), Node("e", ("a",))]
    order, cyclic = causal_order(nodes)
    assert (order, cyclic) == ([0, 4], [1, 2, 3])


def test_those_above_a_cycle_are_not_on_it():
    nodes = [Node("b", ("c",)), Node("c", ("b",)), Node("d", ("b",)), Node("e", ("d",))]
    assert cycles(nodes, causal_order(nodes)[1]) == [0, 1]


def test_auth_events_come_first_when_asked_and_can_close_a_cycle():
    nodes = [Node("a", (), ("b",)), Node("b"), Node("c", ("d",)), Node("d", (), ("c",))]
    assert causal_order(nodes)[1] == []
    order, left = causal_order(nodes, auth=True)
    assert (order, left, cycles(nodes, left, auth=True)) == ([1, 0], [2, 3], [2, 3])


def test_event_that_names_itself_is_a_cycle_in_a_history_in_order_too():
    assert causal_order([Node("a"), Node("b", ("a", "b"))]) == ([0], [1])
    assert causal_order([Node("a"), Node("b", ("a",))], also={"b": ["b"]}) == ([0], [1])


def test_missing_prev_events_do_not_hold_anything_up():
    assert causal_order([Node("a", ("gone",))]) == ([0], [])


def test_line_has_one_leaf_and_fork_has_two():
    assert extremities_of(Node("a"), Node("b", ("a",))) == ["b"]
    assert extremities_of(Node("a"), Node("b", ("a",)), Node("c", ("a",))) == ["b", "c"]


def test_late_parent_is_no_leaf():
    assert extremities_of(Node("b", ("a",)), Node("a")) == ["b"]


def test_rejected_and_soft_failed_events_are_no_leaves_and_remove_none():
    rejected = Node("r", ("a",), rejected_reason="auth")
    failed = Node("s", ("a",), soft_failed=True)
    assert extremities_of(Node("a"), rejected, failed) == ["a"]


def test_event_on_top_of_a_rejected_one_looks_through_it():
    nodes = [
        Node("a"),
        Node("r", ("a",), rejected_reason="auth"),
        Node("s", ("r",), soft_failed=True),
        Node("b", ("s",)),
    ]
    assert extremities_of(*nodes) == ["b"]
    assert extremities_of(nodes[3], *nodes[:3]) == ["b"], "also when the events below come later"


@pytest.mark.speed
def test_many_events_on_one_long_rejected_branch_take_linear_time():
    def make(size):
        rejected = [Node("r0", rejected_reason="x")]
        rejected += [Node(f"r{n}", (f"r{n - 1}",), rejected_reason="x") for n in range(1, size)]
        nodes = [*rejected, *(Node(f"t{n}", (f"r{size - 1}",)) for n in range(size))]

        def found():
            assert len(extremities_of(*nodes)) == size

        return found

    assert growth(make, 1_000) < 10


def grown(*nodes):
    found = ArrivedExtremities()
    for one in nodes:
        found.add(one)
    return found


def test_the_short_way_for_an_event_on_just_the_leaves_is_the_long_one():
    fork = [Node("a"), Node("b", ("a",)), Node("c", ("a",))]
    short, long = grown(*fork), grown(*fork)
    assert short.replace_all("d", ("c", "b")) and long.add(Node("d", ("c", "b"))) == (True, ["c", "b"])
    assert list(short.current) == list(long.current) == ["d"]
    assert short.add(Node("late", ("d",))) == long.add(Node("late", ("d",))) == (True, ["d"])


@pytest.mark.parametrize("prevs", [(), ("b",), ("b", "x"), ("a", "b", "c")], ids=" ".join)
def test_the_short_way_is_not_for_events_on_others_than_the_leaves(prevs):
    extremities = grown(Node("a"), Node("b", ("a",)), Node("c", ("a",)))
    assert not extremities.replace_all("d", prevs) and list(extremities.current) == ["b", "c"]


def test_the_short_way_is_not_for_an_event_that_something_stands_on_already():
    extremities = grown(Node("a"), Node("c", ("b",)))
    assert not extremities.replace_all("b", ("a", "c")) and list(extremities.current) == ["a", "c"]
