"""Leaves found one by one equal the leaves of the finished graph, in any order of arrival."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from events.graph import Leaves, backward_extremities, causal_order, is_accepted


@dataclass
class Node:
    event_id: str
    prev_event_ids: tuple[str, ...]
    outlier: bool
    rejected_reason: str | None
    soft_failed: bool
    auth_event_ids: tuple[str, ...] = ()


@st.composite
def rooms(draw):
    """Events that refer backwards, a few to events that are not there, arriving in any order."""
    nodes = []
    for number in range(draw(st.integers(1, 15))):
        prevs = draw(st.lists(st.integers(-1, number - 1), max_size=3, unique=True))
        kind = draw(st.sampled_from(["normal"] * 5 + ["outlier", "rejected", "soft"]))
        ids = tuple(f"${prev}" if prev >= 0 else "$gone" for prev in prevs)
        nodes.append(Node(f"${number}", ids, kind == "outlier", "auth" if kind == "rejected" else None, kind == "soft"))
    return draw(st.permutations(nodes))


def slow_leaves(nodes):
    """By definition: accepted events that no accepted event reaches through events that are not accepted."""
    by_id = {node.event_id: node for node in nodes if not node.outlier}

    def reached(node):
        for prev in node.prev_event_ids:
            yield prev
            if prev in by_id and not is_accepted(by_id[prev]):
                yield from reached(by_id[prev])

    gone = {event_id for node in nodes if is_accepted(node) for event_id in reached(node)}
    return {node.event_id for node in nodes if is_accepted(node)} - gone


@given(rooms())
def test_leaves_equal_the_definition(nodes):
    leaves = Leaves()
    for node in nodes:
        if not node.outlier:
            leaves.add(node)
    assert set(leaves.current) == slow_leaves(nodes)


@given(rooms())
def test_order_is_complete_and_causal(nodes):
    order, cyclic = causal_order(nodes)
    place = {nodes[number].event_id: at for at, number in enumerate(order)}
    assert sorted(order) == list(range(len(nodes))) and cyclic == []
    assert all(place[p] < place[n.event_id] for n in nodes for p in n.prev_event_ids if p in place)


@given(rooms())
def test_gaps_are_never_held_events(nodes):
    held = {node.event_id for node in nodes if not node.outlier}
    assert held.isdisjoint(backward_extremities(nodes))
