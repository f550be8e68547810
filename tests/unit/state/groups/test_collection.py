"""Which state groups go: by hand, and against a model of full states."""

from hypothesis import given
from hypothesis import strategies as st

from state.groups.collection import GroupPlace, Run, plan_collection


def places(*groups):
    return [GroupPlace(*group) for group in groups]


LINE = places((1, None, 1), (2, 1, 1), (3, 2, 1), (4, 3, 1), (5, 4, 1))


def test_what_nothing_is_built_on_goes_from_the_top():
    found = plan_collection(LINE, {3})
    assert found.deleted == (5, 4)


def test_the_beginning_of_a_chain_takes_the_rest_of_its_run():
    assert plan_collection(LINE, {4, 5}).runs == (Run(1, 1, (2, 3), 4),)


def test_a_run_between_needed_groups_is_merged_upwards():
    assert plan_collection(LINE, {1, 4, 5}).runs == (Run(1, 4, (2, 3), 4),)


def test_the_beginning_alone_stays():
    found = plan_collection(LINE, {2, 3, 4, 5})
    assert (found.deleted, found.runs) == ((), ())


def test_what_another_chain_builds_on_stays():
    found = plan_collection(places((1, None, 1), (2, 1, 1), (3, 2, 1), (4, 2, 4)), {3, 4})
    assert found.runs == ()
    assert plan_collection(places((1, None, 1), (2, 1, 1), (3, 2, 1), (4, 2, 4)), {3}).deleted == (4,)


def test_a_chain_that_only_goes_frees_what_it_stood_on():
    found = plan_collection(places((1, None, 1), (2, 1, 1), (3, 2, 1), (4, 1, 4), (5, 4, 4)), {3})
    assert found.deleted == (5, 4)
    assert found.runs == (Run(1, 1, (2,), 3),)


def test_pieces_can_be_merged_one_after_the_other():
    upwards, root = Run(1, 9, (2, 3, 4, 5, 6), 9), Run(1, 1, (2, 3, 4, 5, 6), 9)
    assert [(piece.absorbed, piece.bounds) for piece in upwards.pieces(2)] == [
        ((6,), (6, 9)),
        ((4, 5), (4, 9)),
        ((2, 3), (2, 9)),
    ]
    assert [(piece.absorbed, piece.bounds) for piece in root.pieces(2)] == [
        ((2, 3), (1, 3)),
        ((4, 5), (1, 5)),
        ((6,), (1, 6)),
    ]


@st.composite
def forests(draw):
    """Groups in chains with deltas of a few keys, and which are needed."""
    groups, deltas, tips = [], {}, {}
    for group in range(1, draw(st.integers(1, 25)) + 1):
        prev = draw(st.sampled_from([None, *range(1, group)])) if group > 1 else None
        on_tip = prev is not None and tips.get(chain_of(groups, prev)) == prev and draw(st.booleans())
        chain = chain_of(groups, prev) if on_tip else group
        tips[chain] = group
        groups.append(GroupPlace(group, prev, chain))
        deltas[group] = draw(
            st.dictionaries(st.sampled_from("abcd"), st.one_of(st.none(), st.integers(0, 9)), min_size=1, max_size=3)
        )
    return groups, deltas, draw(st.sets(st.integers(1, len(groups))))


def chain_of(groups, group):
    return groups[group - 1].chain


def state_of(group, prevs, deltas):
    state = {} if prevs[group] is None else state_of(prevs[group], prevs, deltas)
    state = {**state, **deltas[group]}
    return {key: value for key, value in state.items() if value is not None}


@given(forests(), st.integers(1, 4))
def test_needed_groups_stay_as_they_are_and_rows_never_grow(forest, size):
    groups, deltas, needed = forest
    prevs = {place.group: place.prev for place in groups}
    before = {group: state_of(group, prevs, deltas) for group in needed}
    rows = len(groups) + sum(map(len, deltas.values()))
    found = plan_collection(groups, needed)
    for group in found.deleted:
        assert group not in prevs.values()
        del prevs[group], deltas[group]
    for run in found.runs:
        for piece in run.pieces(size):
            merged = {}
            for group in sorted({*piece.absorbed, piece.target}):
                merged |= deltas[group]
            first = min(piece.absorbed)
            if piece.target > first:
                prevs[piece.target] = prevs[first]
            else:
                prevs.update({g: piece.target for g, prev in prevs.items() if prev == piece.absorbed[-1]})
            deltas[piece.target] = merged
            for group in piece.absorbed:
                del prevs[group], deltas[group]
            assert {group: state_of(group, prevs, deltas) for group in needed} == before
    assert len(prevs) + sum(map(len, deltas.values())) <= rows
    assert (
        plan_collection([GroupPlace(g, prevs[g], p.chain) for p in groups if (g := p.group) in prevs], needed).deleted
        == ()
    )
