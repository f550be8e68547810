"""State groups built anew: the same states, on the states that they stood on, with fewer rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.columns import EVENT_COLUMNS
from state.errors import StepTooLarge
from state.groups.compaction import Compression, Need, WrittenRows
from state.groups.deltas import HOPS_LIMIT, ROWS_PER_KEY_LIMIT, SPARE_ROWS
from tests.oracle.answers import parsed
from tests.properties.test_state_groups import STEPS, grown
from tests.support.foreign_groups import LAYOUTS, SPREAD, expanded
from tests.support.room_data import ROOM_NAMES
from tests.support.room_results import computed

A, B, C = ("m.a", ""), ("m.b", ""), ("m.c", "key")


def compressed(*groups):
    """``(group, prev, changes, need)`` each."""
    found = Compression()
    for group in groups:
        found.add_group(*group)
    return found


def states_of(found):
    return {group: found.builder.expand(number) for group, number in found.numbers.items()}


def before(found, group):
    """The state that the group of a state event stands on."""
    below = found.builder.step(found.numbers[group])[0]
    return None if below is None else found.builder.expand(below)


def test_a_full_copy_becomes_the_group_that_it_copies():
    found = compressed(
        (1, None, {A: "1", B: "1"}, Need.STATE), (2, None, {A: "1", B: "1"}, Need.NOTHING), (3, 2, {C: "1"}, Need.STATE)
    )
    assert found.rows() == WrittenRows(groups=2, deltas=3)
    assert states_of(found) == {1: {A: "1", B: "1"}, 3: {A: "1", B: "1", C: "1"}}


def test_equal_states_are_stored_once():
    found = compressed((1, None, {A: "1"}, Need.STATE), (4, 1, {B: "1"}, Need.STATE), (9, 1, {B: "1"}, Need.STATE))
    assert found.numbers[4] == found.numbers[9]
    assert found.rows().groups == 2


def test_what_changes_nothing_is_left_out():
    found = compressed((1, None, {A: "1"}, Need.STATE), (2, 1, {A: "1", B: None, C: "1"}, Need.STATE))
    assert found.rows() == WrittenRows(2, 2)


def test_what_nobody_needs_is_left_out_and_what_stands_on_it_is_not():
    found = compressed(
        (1, None, {A: "1"}, Need.STATE),
        (2, 1, {A: "2"}, Need.NOTHING),
        (3, 2, {A: "3"}, Need.NOTHING),
        (4, 3, {B: "4"}, Need.STATE),
    )
    assert found.numbers.keys() == {1, 4}
    assert states_of(found)[4] == {A: "3", B: "4"}
    assert found.rows() == WrittenRows(2, 3)


def test_a_state_from_elsewhere_stands_on_the_nearest_one():
    whole = {("m.room.member", str(n)): "1" for n in range(50)}
    found = compressed((1, None, whole, Need.STATE), (2, None, {**whole, A: "2"}, Need.STATE))
    assert found.rows() == WrittenRows(2, 51)


def test_a_state_event_stands_on_the_state_before_it_even_where_its_state_is_there_already():
    found = compressed(
        (1, None, {A: "1"}, Need.STEP),
        (2, 1, {B: "1"}, Need.STATE),
        (3, 2, {C: "1"}, Need.STATE),
        (4, 1, {C: "1"}, Need.STATE),
        (5, 4, {B: "1"}, Need.STEP),
    )
    assert states_of(found)[3] == states_of(found)[5]
    assert before(found, 5) == {A: "1", C: "1"}


def test_two_state_events_with_the_same_states_before_and_after_share_a_group():
    found = compressed((1, None, {A: "1"}, Need.STEP), (2, 1, {B: "1"}, Need.STEP), (3, 1, {B: "1"}, Need.STEP))
    assert found.numbers[2] == found.numbers[3]


def test_a_state_event_that_puts_what_is_there_keeps_its_row():
    found = compressed((1, None, {A: "1"}, Need.STEP), (2, 1, {A: "1"}, Need.STEP))
    assert before(found, 2) == {A: "1"} == states_of(found)[2]
    assert found.rows() == WrittenRows(2, 2)


def test_a_state_event_without_a_state_before_keeps_none():
    found = compressed((1, None, {A: "1"}, Need.STATE), (2, None, {A: "1", B: "2"}, Need.STEP))
    assert before(found, 2) is None


def test_a_state_event_that_changes_more_than_fits_on_the_state_before_is_refused():
    whole = {("m.a", str(n)): "1" for n in range(500)}
    with pytest.raises(StepTooLarge):
        compressed((1, None, whole, Need.STATE), (2, 1, dict.fromkeys(whole), Need.STEP))


def test_a_group_on_one_that_is_missing_is_refused():
    with pytest.raises(KeyError):
        compressed((2, 1, {A: "1"}, Need.STATE))


def test_a_later_round_goes_on_with_no_chain():
    found = compressed((1, None, {A: "1"}, Need.STEP), (2, 1, {B: "1"}, Need.STEP))
    found.mark_stored({found.numbers[2]: 77})
    found.end_chains()
    found.add_group(78, 77, {C: "1"}, Need.STEP)
    number = found.numbers[78]
    assert [row[2] for row in found.builder.group_rows([number])] == [number]
    assert before(found, 78) == states_of(found)[2]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [name for name in ROOM_NAMES if not name.startswith("large")])
def test_a_shipped_room_stored_by_others_takes_no_more_rows_than_our_own(name, layout):
    result = computed(parsed(name))
    needs = needs_of(result)
    stored = LAYOUTS[layout](result.groups, result.group_deltas)
    found = compressed(
        *((group, prev, changes, needs.get((group - 2) / SPREAD, Need.NOTHING)) for group, prev, _, changes in stored)
    )
    model = expanded(result.groups, result.group_deltas)
    assert {(group - 2) // SPREAD: state for group, state in states_of(found).items()} == {
        group: model[group] for group in needs
    }
    prevs = {row[0]: row[1] for row in result.groups}
    for group, need in needs.items():
        if need is Need.STEP and prevs[group] is not None:
            assert before(found, group * SPREAD + 2) == model[prevs[group]]
    assert found.rows().total <= len(result.groups) + len(result.group_deltas)


def needs_of(result):
    """Group -> what it is there for, from a computed room's events."""
    prevs = {row[0]: row[1] for row in result.groups}
    needs = {}
    for row in result.events:
        event = dict(zip(EVENT_COLUMNS, row, strict=True))
        group = event["state_group"]
        if group is None:
            continue
        if event["state_key"] is not None and event["rejected_reason"] is None:
            needs[group] = Need.STEP
            if prevs[group] is not None:
                needs.setdefault(prevs[group], Need.STATE)
        needs.setdefault(group, Need.STATE)
    return needs


@pytest.mark.parametrize("names", [("m.a", "m.b"), ("m.b", "m.c"), ("x", "y"), ("1", "2")])
def test_entries_that_swap_their_values_make_another_state(names):
    keys = [(name, "") for name in names]
    one, other = dict(zip(keys, ("$1", "$2"), strict=True)), dict(zip(keys, ("$2", "$1"), strict=True))
    found = compressed((0, None, one, Need.STATE), (1, 0, other, Need.STATE))
    assert (states_of(found)[0], states_of(found)[1]) == (one, other)


@given(STEPS, st.lists(st.sampled_from(list(Need)), min_size=130, max_size=130))
def test_any_groups_keep_their_states_and_the_bounds_hold(steps, wanted):
    builder, _ = grown(steps)
    stored = [(row[0], *builder.step(row[0])) for row in builder.group_rows()]
    needs = [Need.STATE if need is Need.STEP and len(stored[n][2]) > 1 else need
             for n, need in enumerate(wanted[: len(stored)])]  # fmt: skip
    for number, prev, _ in stored:
        if needs[number] is Need.STEP and prev is not None and needs[prev] is Need.NOTHING:
            needs[prev] = Need.STATE
    found = compressed(*((*group, need) for group, need in zip(stored, needs, strict=True)))
    for number, prev, _ in stored:
        if needs[number] is not Need.NOTHING:
            assert states_of(found)[number] == builder.expand(number)
        if needs[number] is Need.STEP:
            assert before(found, number) == (None if prev is None else builder.expand(prev))
    for _, _, _, hops, keys, read in found.builder.group_rows():
        assert hops <= HOPS_LIMIT and read <= ROWS_PER_KEY_LIMIT * keys + SPARE_ROWS
