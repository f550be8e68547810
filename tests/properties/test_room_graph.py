"""Leaves found one by one equal the leaves of the finished graph, in any order of arrival."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from events.room.graph import causal_order, is_accepted
from tests.support.arrived_events import ArrivedExtremities


@dataclass
class Node:
    event_id: str
    prev_event_ids: tuple[str, ...]
    outlier: bool
    rejected_reason: str | None
    soft_failed: bool
    backfilled: bool = False
    auth_event_ids: tuple[str, ...] = ()


@st.composite
def rooms(draw):
    """Events that refer backwards, a few to events that are not there, arriving in any order."""
    nodes = []
    live = draw(st.integers(0, 3))
    for number in range(draw(st.integers(1, 15))):
        prevs = draw(st.lists(st.integers(-1, number - 1), max_size=3, unique=True))
        kind = draw(st.sampled_from(["normal"] * 5 + ["outlier", "rejected", "soft"]))
        ids = tuple(f"${prev}" if prev >= 0 else "$gone" for prev in prevs)
        old = draw(st.integers(1, 3)) > live
        reason = "auth" if kind == "rejected" else None
        nodes.append(Node(f"${number}", ids, kind == "outlier", reason, kind == "soft", old))
    return draw(st.permutations(nodes))


def counting(nodes):
    """Accepted live events; accepted backfilled ones in a room without any."""
    accepted = [node for node in nodes if is_accepted(node)]
    return [node for node in accepted if not node.backfilled] or accepted


def slow_extremities(nodes):
    """By definition: events that count and that no event which counts reaches through events that do not."""
    by_id = {node.event_id: node for node in nodes if not node.outlier}
    counts = {node.event_id for node in counting(nodes)}

    def reached(node):
        for prev in node.prev_event_ids:
            yield prev
            if prev in by_id and prev not in counts:
                yield from reached(by_id[prev])

    return counts - {event_id for node in counting(nodes) for event_id in reached(node)}


@given(rooms())
def test_leaves_equal_the_definition(nodes):
    extremities = ArrivedExtremities()
    for node in nodes:
        if not node.outlier:
            extremities.add(node)
    assert set(extremities.current) == slow_extremities(nodes)


@given(rooms())
def test_leaves_of_events_that_are_all_at_hand_are_the_same(nodes):
    live = any(is_accepted(node) and not node.backfilled for node in nodes)
    extremities = ArrivedExtremities(live=live)
    extremities.arrived.update((node.event_id, node) for node in nodes if not node.outlier)
    for node in nodes:
        if not (node.outlier or (live and node.backfilled)):
            extremities.add(node)
    assert set(extremities.current) == slow_extremities(nodes)


@given(rooms())
def test_order_is_complete_and_causal(nodes):
    order, cyclic = causal_order(nodes)
    place = {nodes[number].event_id: at for at, number in enumerate(order)}
    assert sorted(order) == list(range(len(nodes))) and cyclic == []
    graph = [node for node in nodes if not node.outlier]  # outliers have no place in it
    assert all(place[p] < place[n.event_id] for n in graph for p in n.prev_event_ids if p in place)
