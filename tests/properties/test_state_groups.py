"""Groups as deltas behave like plain dictionaries, whatever forks and removals there are."""

from hypothesis import given
from hypothesis import strategies as st

from state.groups.deltas import HOPS_LIMIT, ROWS_PER_KEY_LIMIT, SPARE_ROWS, GroupBuilder

KEYS = st.tuples(st.sampled_from(["m.a", "m.b", "m.c"]), st.sampled_from(["", "x"]))
CHANGES = st.dictionaries(KEYS, st.none() | st.sampled_from(["$1", "$2", "$3"]), max_size=3)
STEPS = st.lists(st.tuples(st.integers(0, 10**6), CHANGES), max_size=60)


def grown(steps):
    """The builder, and the state of each of its groups that we asked for, by group number."""
    builder, made = GroupBuilder(), []
    made.append((builder.add_full({("m.create", ""): "$0"}), {("m.create", ""): "$0"}))
    for choice, changes in steps:
        base, state = made[-1 if choice % 3 else choice % len(made)]
        merged = {key: event for key, event in {**state, **changes}.items() if event is not None}
        made.append((builder.add(base, changes), merged))
    return builder, dict(made)


@given(STEPS)
def test_every_group_expands_to_its_state(steps):
    builder, states = grown(steps)
    assert {number: builder.expand(number) for number in states} == states


@given(STEPS)
def test_the_rows_alone_tell_the_same_states(steps):
    """Read as the database does: the spans of the chains, the highest group wins."""
    builder, states = grown(steps)
    groups = {row[0]: row for row in builder.group_rows()}
    rows = list(builder.delta_rows())
    for number, state in states.items():
        found, at, read = {}, number, 0
        while at is not None:
            chain = groups[at][2]
            span = [row for row in rows if row[0] == chain and row[1] <= at]
            read += len(span)
            for _, _, event_type, key, event in sorted(span, key=lambda row: -row[1]):
                found.setdefault((event_type, key), event)
            at = groups[chain][1]
        assert {key: event for key, event in found.items() if event is not None} == state
        assert (groups[number][4], groups[number][5]) == (len(state), read)


@given(STEPS)
def test_bounds_hold_for_every_group(steps):
    builder, _ = grown(steps)
    for number, prev, chain, hops, keys, read in builder.group_rows():
        assert hops <= HOPS_LIMIT and read <= ROWS_PER_KEY_LIMIT * keys + SPARE_ROWS
        assert chain <= number and (prev is None or prev < number)


@given(STEPS, st.integers(0, 10**6), st.integers(0, 10**6))
def test_changes_between_two_groups_turn_one_into_the_other(steps, one, other):
    builder, states = grown(steps)
    numbers = list(states)
    old, new = numbers[one % len(numbers)], numbers[other % len(numbers)]
    changes = builder.changes_between(old, new)
    state = dict(states[old])
    for key, (before, after) in changes.items():
        assert state.pop(key, None) == before
        if after is not None:
            state[key] = after
    assert state == states[new]
