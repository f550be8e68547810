"""Walks down a room's graph, against the plain way to do the same."""

import random

import pytest

from events.federation.graph_walk import Place, breadth_first, deepest_first


def graph(edges, depths=None):
    """Event -> its place; depth from the edges unless told."""
    places = {}
    for number, (event, prev) in enumerate(edges.items()):
        depth = 1 + max((places[p].topological_ordering for p in prev if p in places), default=0)
        places[event] = Place(event, (depths or {}).get(event, depth), number, tuple(prev))
    return places


def reader(places, asked=None):
    def read(ids):
        if asked is not None:
            asked.append(list(ids))
        return [places[i] for i in ids if i in places]

    return read


FORK = graph({"a": [], "b": ["a"], "c": ["b"], "d": ["b"], "e": ["c", "d"], "f": ["e"]})


def test_deepest_comes_first_and_each_event_once():
    assert [p.event_id for p in deepest_first(["f"], reader(FORK))] == ["f", "e", "d", "c", "b", "a"]


def test_walk_begins_at_several_events_and_leaves_out_what_is_not_here():
    assert [p.event_id for p in deepest_first(["c", "gone", "d"], reader(FORK))] == ["d", "c", "b", "a"]
    assert list(deepest_first([], reader(FORK))) == list(deepest_first(["gone"], reader(FORK))) == []


def test_nothing_is_read_that_the_caller_does_not_come_to():
    asked = []
    walk = deepest_first(["f"], reader(FORK, asked))
    next(walk)
    assert asked == [["f"]]


def test_what_was_read_ahead_is_not_read_again():
    asked = []

    def read(ids):
        asked.append(list(ids))
        return FORK.values()

    assert len(list(deepest_first(["f"], read))) == 6 and asked == [["f"]]


@pytest.mark.parametrize("walk", [deepest_first, breadth_first])
def test_circles_end(walk):
    places = {"a": Place("a", 1, 1, ("b",)), "b": Place("b", 1, 2, ("a", "b"))}
    assert {p.event_id for p in walk(["a"], reader(places))} <= {"a", "b"}


def test_lying_depths_do_not_lose_events():
    places = graph({"a": [], "b": ["a"], "c": ["b"]}, depths={"a": 5_000, "b": 1, "c": 2**53})
    assert [p.event_id for p in deepest_first(["c"], reader(places))] == ["c", "b", "a"]


def test_breadth_first_leaves_out_both_ends():
    assert [p.event_id for p in breadth_first(["f"], reader(FORK), ["b"])] == ["e", "d", "c"]
    assert [p.event_id for p in breadth_first(["e"], reader(FORK), ["c"])] == ["d", "b", "a"]


def test_breadth_first_stops_at_the_least_depth():
    assert [p.event_id for p in breadth_first(["f"], reader(FORK), min_depth=3)] == ["e", "d", "c"]


@pytest.mark.parametrize("seed", range(30))
def test_walks_meet_exactly_what_is_below(seed):
    rng = random.Random(seed)
    edges = {}
    for n in range(60):
        edges[n] = rng.sample(range(max(0, n - 8), n), min(n, rng.randint(1, 3)))
    places = graph({str(n): [str(p) for p in prev] for n, prev in edges.items()})
    below, todo = set(), ["59"]
    while todo:
        event = todo.pop()
        if event not in below:
            below.add(event)
            todo += places[event].prev_event_ids
    met = list(deepest_first(["59"], reader(places)))
    assert {p.event_id for p in met} == below and met == sorted(met, key=lambda p: p.order, reverse=True)
    assert {p.event_id for p in breadth_first(["59"], reader(places))} == below - {"59"}
