"""States that share the entries of an older one."""

from math import isqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.groups.deltas import GroupBuilder, StoredGroup
from state.groups.layered import LayeredState, differing_keys, layered, layered_on_base, stored_as, whole

KEYS = st.tuples(st.sampled_from(["m.a", "m.b"]), st.integers(0, 120).map(str))
CHANGES = st.dictionaries(KEYS, st.none() | st.sampled_from(["$1", "$2"]), max_size=40)


@given(st.dictionaries(KEYS, st.just("$0"), max_size=100), st.lists(CHANGES, max_size=12))
def test_layers_are_plain_dictionaries(first, steps):
    state, plain = dict(first), dict(first)
    for changes in steps:
        state, older = layered(state, changes), whole(state)
        plain = {key: event for key, event in {**plain, **changes}.items() if event is not None}
        assert dict(state.items()) == whole(state) == plain
        assert len(state) == len(plain)
        for key in {*changes, *older}:
            assert state.get(key) == plain.get(key)
            assert (key in state) == (key in plain)


def test_a_change_shares_the_entries_below_it():
    large = {("m.room.member", f"@{number}:x"): f"${number}" for number in range(10_000)}
    state, merges = large, 0
    for number in range(1_000):
        before = state
        state = layered(state, {("m.room.member", f"@new{number}:x"): "$"})
        merges += isinstance(before, LayeredState) and not isinstance(state, LayeredState)
        if isinstance(state, LayeredState):
            assert len(state.changes) <= isqrt(10_000) + 20
    assert merges <= 10
    assert len(state) == 11_000


def test_no_change_is_the_state_itself():
    state = {("m.a", ""): "$1"}
    assert layered(state, {}) is state


def test_a_removed_entry_is_no_entry():
    state = layered({("m.a", ""): "$1"}, {("m.a", ""): None})
    assert len(state) == 0
    with pytest.raises(KeyError):
        state["m.a", ""]


def test_a_group_on_an_adopted_one_shares_its_state():
    large = {("m.room.member", f"@{number}:x"): f"${number}" for number in range(1_000)}
    builder = GroupBuilder()
    adopted = builder.adopt(StoredGroup(large, 0, 1_000, 1_000, is_tip=True))
    new = builder.add(adopted, {("m.room.member", "@new:x"): "$new"})
    shared = builder.shared(new)
    assert isinstance(shared, LayeredState)
    assert shared.base is large
    again = GroupBuilder()
    group = again.adopt(StoredGroup(shared, 0, 1_001, 1_001, is_tip=True))
    assert again.expand(group) == builder.expand(new) == {**large, ("m.room.member", "@new:x"): "$new"}
    assert again.lookup(group, ("m.room.member", "@7:x")) == "$7"


@given(st.dictionaries(KEYS, st.just("$0"), max_size=100), CHANGES, CHANGES, st.booleans())
def test_keys_apart_are_those_with_other_entries(first, changes, other_changes, shared):
    below = dict(first)
    one, other = layered(below, changes), layered(below if shared else dict(first), other_changes)
    plain, other_plain = whole(one), whole(other)
    differing = {key for key in {*plain, *other_plain} if plain.get(key) != other_plain.get(key)}
    compared = {}
    assert differing_keys(one, other, compared) == differing_keys(other, one, compared) == differing
    assert differing_keys(one, other, compared) == differing


def test_states_that_share_entries_are_compared_by_their_changes():
    class Untouched(dict):
        def items(self):
            raise AssertionError("the shared entries were read")

        __iter__ = keys = items

    below = Untouched({("m.room.member", f"@{number}:x"): f"${number}" for number in range(100)})
    key = ("m.room.topic", "")
    assert differing_keys(LayeredState(below, {key: "$a"}), LayeredState(below, {key: "$b"}), {}) == {key}


class Stored:
    """A stored state; ``read`` has the keys that were read, ``None`` for all of them."""

    def __init__(self, state):
        self.state, self.read = dict(state), []

    def entries(self, keys):
        self.read += keys
        return {key: self.state[key] for key in keys if key in self.state}

    def everything(self):
        self.read.append(None)
        return dict(self.state)


def changed(state, changes):
    return {key: event for key, event in {**state, **changes}.items() if event is not None}


@given(
    st.dictionaries(KEYS, st.just("$0"), max_size=100),
    st.lists(st.tuples(CHANGES, st.lists(KEYS, max_size=5)), max_size=12),
    CHANGES,
    st.booleans(),
)
def test_states_that_are_read_by_key_are_the_stored_ones(first, steps, changes, by_key):
    plain, state = dict(first), LayeredState({}, {}, Stored(first))
    for new, asked in steps:
        state.load(asked)
        unsaved = layered(state, new)
        plain = changed(plain, new)
        assert whole(unsaved) == plain
        state = stored_as(unsaved, Stored(plain))
        assert len(state) == len(plain) and set(state) == set(plain)
        assert [state.get(key) for key in (*new, *asked)] == [plain.get(key) for key in (*new, *asked)]
    other = changed(plain, changes)
    fork = layered_on_base(state, changes, Stored(other)) if by_key else LayeredState({}, {}, Stored(other))
    differing = {key for key in {*plain, *other} if plain.get(key) != other.get(key)}
    assert differing_keys(state, fork, {}) == (differing if by_key else None)
    assert (whole(state), whole(fork)) == (plain, other)


def test_what_was_read_of_one_state_is_known_of_all_that_share_it():
    stored = {("m.room.member", f"@{number}:x"): f"${number}" for number in range(10_000)}
    one, new = LayeredState({}, {}, Stored(stored)), ("m.room.member", "@new:x")
    joined = stored_as(layered(one, {new: "$new"}), Stored(stored | {new: "$new"}))
    one.load([("m.room.member", "@7:x"), ("m.room.topic", "")])
    assert (joined.get(("m.room.member", "@7:x")), joined.get(("m.room.topic", ""))) == ("$7", None)
    assert joined.get(new) == "$new" and joined.reads.read == []
    assert joined.get(("m.room.member", "@8:x")) == "$8" == one.get(("m.room.member", "@8:x"))
    assert (joined.reads.read, len(one.reads.read)) == ([("m.room.member", "@8:x")], 2)
