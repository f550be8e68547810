"""What holds for every resolution, and its walks against slow, obvious versions."""

from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from state.resolution.auth_graph import AuthGraph
from state.resolution.local_difference import Naming, local_difference
from state.resolution.resolve import resolve
from state.resolution.v2 import mainline_order
from state.rules.auth_selection import state_key_of
from state.rules.room_versions import room_version
from tests.support.effort import examples
from tests.support.room_data import vectors
from tests.support.rule_cases import ResolutionCase, ruled

FILES = ("random_v1", "random_v2", "random_v21")


@cache
def prepared(file, number):
    case = vectors(f"state_resolution/{file}")[number]
    resolver = ResolutionCase(case["room_version"], case["events"])
    return resolver, [state for state in resolver.states_after().values() if state]


@st.composite
def merges(draw):
    """States after any events of a random room, which may never have met."""
    resolver, states = prepared(draw(st.sampled_from(FILES)), draw(st.integers(0, 9)))
    return resolver, draw(st.lists(st.sampled_from(states), min_size=2, max_size=4))


def outcome(resolver, states):
    return resolve(resolver.rules, resolver.graph, states)


@settings(deadline=None)
@given(merges(), st.randoms(use_true_random=False))
def test_order_of_the_states_and_of_their_entries_does_not_matter(merge, random):
    resolver, states = merge
    shuffled = [dict(random.sample(list(state.items()), len(state))) for state in random.sample(states, len(states))]
    assert outcome(resolver, shuffled) == outcome(resolver, states)


@settings(deadline=None)
@given(merges())
def test_the_same_state_twice_counts_once(merge):
    resolver, states = merge
    assert outcome(resolver, [*states, states[0]]) == outcome(resolver, states)


@settings(deadline=None)
@given(merges())
def test_resolving_the_outcome_again_changes_nothing(merge):
    resolver, states = merge
    found = outcome(resolver, states)
    assert outcome(resolver, [found, found]) == found


@settings(deadline=None)
@given(merges())
def test_what_all_states_agree_on_stays_and_nothing_is_made_up(merge):
    resolver, states = merge
    found = outcome(resolver, states)
    agreed = set.intersection(*(set(state.items()) for state in states))
    assert agreed <= found.items()
    for key, event_id in found.items():
        event = resolver.events[event_id]
        assert (event.type, event.state_key) == key and event.rejected_reason is None


# --- the walks ----------------------------------------------------------------------------------------------------


@st.composite
def graphs(draw, most=14):
    """Auth graphs: power level events, topics, some events missing; in any order of insertion, v12 or not."""
    version = draw(st.sampled_from(["10", "12"]))
    count = draw(st.integers(1, most))
    events = {}
    for number in range(count):
        kind = draw(st.sampled_from(["m.room.power_levels", "m.room.topic", "x"])) if number else "m.room.create"
        auth = draw(st.lists(st.integers(-1, number - 1), max_size=3, unique=True)) if number else []
        parts = {"type": kind, "state_key": "", "sender": "@c:a", "content": {}, "origin_server_ts": number % 3}
        parts["auth_events"] = [f"${other}" if other >= 0 else "$gone" for other in auth]
        events[f"${number}"] = ruled(parts, f"${number}")
    order = draw(st.permutations(sorted(events)))
    return AuthGraph({event_id: events[event_id] for event_id in order}, room_version(version), "$0")


def subsets(graph, **size):
    return st.lists(st.sampled_from(sorted(graph.events)), unique=True, **size)


def chain(graph, event_ids):
    """By definition: the events and everything that their auth events lead to."""
    found, new = set(), set(event_ids)
    while new:
        found |= new
        new = {other for event_id in new for other in graph.auth_ids(event_id)} - found
    return found


@settings(deadline=None)
@given(st.data())
def test_difference_of_auth_chains_equals_the_definition(data):
    graph = data.draw(graphs())
    common = data.draw(subsets(graph, max_size=3))
    sets = data.draw(st.lists(subsets(graph, max_size=3), min_size=2, max_size=4))
    chains = [chain(graph, {*members, *common}) for members in sets]
    assert graph.difference(sets, common) == set.union(*chains) - set.intersection(*chains)


def masked(sets):
    """The events with the sets that have them, as bits; all bits."""
    masks = {}
    for number, members in enumerate(sets):
        for event_id in members:
            masks[event_id] = masks.get(event_id, 0) | 1 << number
    return masks, (1 << len(sets)) - 1


@settings(deadline=None)
@given(st.data(), st.booleans())
def test_difference_by_the_latest_events_is_that_of_whole_chains_or_unknown(data, ranked):
    graph = data.draw(graphs())
    common = set(data.draw(subsets(graph, max_size=3)))
    sets = [
        set(members) - common for members in data.draw(st.lists(subsets(graph, max_size=3), min_size=2, max_size=4))
    ]
    for event_id in graph.events if ranked else ():
        graph.rank(event_id)
    masks, full = masked(sets)
    found = graph.recent_difference(masks, full, common.__contains__, data.draw(st.integers(0, 15)))
    assert found is None or found == graph.difference(sets, common)
    assert not ranked or graph.recent_difference(masks, full, common.__contains__, 15) is not None


class Neighbours:
    """The events of a graph, of which a search reads those that it needs: at most ``most`` that name one event."""

    def __init__(self, graph, most):
        self.graph, self.most = graph, most

    def load(self, event_ids):
        """All are in memory."""

    load_chains = load

    def naming(self, event_ids):
        events = self.graph.events.values()
        above = {e: [o.event_id for o in events if e in o.auth_event_ids] for e in event_ids}
        return {
            e: Naming([(o, state_key_of(self.graph.events[o])) for o in found[: self.most]], len(found) <= self.most)
            for e, found in above.items()
        }


class Common(set):
    """The events that all states share."""

    def load(self, keys):
        """All are in memory."""

    def holds(self, event_id, _key):
        return event_id in self


@settings(deadline=None, max_examples=examples(200))
@given(st.data(), graphs(most=20), st.sampled_from([0, 1, 2, 99]))
def test_difference_without_ranks_is_that_of_whole_chains_or_unknown(data, graph, most):
    common = set(data.draw(subsets(graph, max_size=3)))
    sets = [
        set(members) - common for members in data.draw(st.lists(subsets(graph, max_size=3), min_size=2, max_size=4))
    ]
    masks, full = masked(sets)
    found = local_difference(graph, masks, full, Common(common), Neighbours(graph, most))
    assert found is None or found | masks.keys() == graph.difference(sets, common) | masks.keys()
    # In room version 12 all events lead to the create event, without naming it. It is in all states of a real room.
    assert most < 99 or "$0" in common or graph.implied or found is not None


@settings(deadline=None)
@given(st.data())
def test_events_between_equal_the_definition(data):
    graph = data.draw(graphs())
    ends = set(data.draw(subsets(graph, max_size=4)))
    below = chain(graph, ends)
    assert graph.between(ends) == {event_id for event_id in below if chain(graph, {event_id}) & ends}


@settings(deadline=None)
@given(graphs())
def test_auth_events_have_lower_ranks(graph):
    for event_id in graph.events:
        assert all(graph.rank(other) < graph.rank(event_id) for other in graph.auth_ids(event_id))


def slow_epoch(graph, mainline, event_id):
    while event_id is not None:
        if event_id in mainline:
            return len(mainline) - mainline.index(event_id)
        event_id = graph.power_levels_event(event_id)
    return 0


@settings(deadline=None)
@given(graphs())
def test_mainline_order_equals_the_definition(graph):
    levels = [event_id for event_id, event in graph.events.items() if event.type == "m.room.power_levels"]
    current = max(levels, key=graph.rank, default=None)
    mainline, at = [], current
    while at is not None:
        mainline.append(at)
        at = graph.power_levels_event(at)
    wanted = sorted(graph.events, key=lambda e: (slow_epoch(graph, mainline, e), graph.events[e].origin_server_ts, e))
    assert mainline_order(graph, list(graph.events), current) == wanted


def test_circles_of_chosen_ids_end_every_walk():
    events = {}
    for number in range(6):
        parts = {"type": "m.room.power_levels", "state_key": "", "sender": "@c:a", "content": {}}
        events[f"${number}"] = ruled({**parts, "auth_events": [f"${(number + 1) % 6}"]}, f"${number}")
    graph = AuthGraph(events, room_version("2"), None)
    assert graph.difference([["$0"], ["$3"]], []) <= set(events)
    assert graph.between(["$0", "$3"]) >= {"$0", "$3"}
    assert sorted(mainline_order(graph, list(events), "$0")) == sorted(events)
