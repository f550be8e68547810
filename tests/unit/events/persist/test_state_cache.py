"""States that are kept share entries, which are counted once."""

from hypothesis import given
from hypothesis import strategies as st

from events.persist.state_cache import StateCache
from state.groups.layered import LayeredState, parts

OLDER = [{("m.a", str(number)): "$0" for number in range(size)} for size in (0, 5, 20)]
STATES = st.one_of(
    st.sampled_from(OLDER),
    st.builds(
        LayeredState,
        st.sampled_from(OLDER),
        st.dictionaries(st.tuples(st.just("m.b"), st.sampled_from("abcdef")), st.sampled_from(["$1", None])),
    ),
)


def weight(states):
    shared = {id(parts(state)[0]): len(parts(state)[0]) for state in states}
    return sum(shared.values()) + sum(1 + len(parts(state)[1]) for state in states)


@given(st.integers(0, 60), st.lists(st.tuples(st.integers(0, 8), st.booleans(), STATES), max_size=40))
def test_the_latest_states_are_kept_up_to_the_limit(limit, steps):
    cache, expected = StateCache(limit), {}
    for key, is_put, state in steps:
        if is_put:
            cache.put(key, state)
            expected.pop(key, None)
            expected[key] = state
            while weight(expected.values()) > limit:
                del expected[next(iter(expected))]
        else:
            assert cache.get(key) is expected.get(key)
            if key in expected:
                expected[key] = expected.pop(key)
        assert cache.weight == weight(expected.values())
    assert cache.get_all(range(9)) == [expected.get(key) for key in range(9)]
    cache.clear()
    assert cache.weight == 0
    assert cache.get_all([1, 2]) == [None, None]


def test_many_forks_of_a_large_state_are_kept():
    older = {("m.room.member", str(number)): "$0" for number in range(1_000)}
    cache = StateCache(2_000)
    for number in range(400):
        cache.put(number, LayeredState(older, {("m.room.topic", ""): f"${number}"}))
    assert None not in cache.get_all(range(400))


def test_entries_that_were_read_since_are_counted_with_the_next_state():
    older, cache = {("m.a", "0"): "$0"}, StateCache(20)
    cache.put(1, LayeredState(older, {}))
    older.update({("m.a", str(number)): "$0" for number in range(10)})
    cache.put(2, LayeredState(older, {("m.b", ""): "$1"}))
    assert cache.weight == 10 + 1 + 2
    older.update({("m.a", str(number)): "$0" for number in range(30)})
    cache.put(3, LayeredState(older, {}))
    assert (cache.weight, cache.get_all([1, 2, 3])) == (0, [None, None, None])
