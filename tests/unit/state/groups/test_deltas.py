"""State groups as chains of deltas."""

import pytest

from state.groups.deltas import HOPS_LIMIT, ROWS_PER_KEY_LIMIT, SPARE_ROWS, GroupBuilder, StoredGroup
from state.groups.layered import LayeredState, layered_on_base
from tests.support.room_data import ROOM_NAMES, oracle
from tests.unit.state.groups.test_layered import Stored

A, B, C = ("m.a", ""), ("m.b", ""), ("m.c", "key")


def built(*changes):
    """A builder with one linear chain."""
    builder = GroupBuilder()
    number = builder.add_full(changes[0])
    for change in changes[1:]:
        number = builder.add(number, change)
    return builder


def test_linear_groups_share_one_chain_of_single_rows():
    builder = built({A: "1"}, {B: "2"}, {A: "3"})
    assert list(builder.group_rows()) == [(0, None, 0, 0, 1, 1), (1, 0, 0, 0, 2, 2), (2, 1, 0, 0, 2, 3)]
    assert list(builder.delta_rows()) == [(0, 0, *A, "1"), (0, 1, *B, "2"), (0, 2, *A, "3")]


def test_later_entry_wins_and_earlier_groups_stay_as_they_were():
    builder = built({A: "1"}, {B: "2"}, {A: "3"})
    assert builder.expand(1) == {A: "1", B: "2"}
    assert builder.expand(2) == {A: "3", B: "2"}


def test_removed_key_is_gone_and_counted():
    builder = built({A: "1", B: "2"}, {A: None}, {A: "3"})
    assert builder.expand(1) == {B: "2"}
    assert builder.lookup(1, A) is None
    assert [row[4] for row in builder.group_rows()] == [2, 1, 2]


def test_fork_opens_a_chain_that_builds_on_the_old_one():
    builder = built({A: "1"}, {B: "2"})
    fork = builder.add(0, {B: "other"})
    assert list(builder.group_rows())[fork] == (2, 0, 2, 1, 2, 2)
    assert builder.expand(fork) == {A: "1", B: "other"}
    assert builder.add(1, {C: "3"}) == 3
    assert list(builder.group_rows())[3][2] == 0, "the old chain goes on at its tip"


def test_lookup_does_not_see_what_came_later_in_the_chain():
    builder = built({A: "1"}, {B: "2"}, {B: "3"})
    fork = builder.add(1, {C: "4"})
    assert builder.lookup(fork, B) == "2"
    assert builder.lookup(0, B) is None


def test_too_many_hops_store_the_state_in_full():
    builder = GroupBuilder()
    number = builder.add_full({A: "0"})
    for step in range(HOPS_LIMIT + 3):
        builder.add(number, {B: f"tip{step}"})
        number = builder.add(number, {C: f"{step}"})
    rows = list(builder.group_rows())
    assert max(row[3] for row in rows) == HOPS_LIMIT
    assert sum(row[1] is None for row in rows) >= 2
    assert builder.expand(number) == {A: "0", C: f"{HOPS_LIMIT + 2}"}


def test_rows_to_read_stay_bounded_however_often_one_key_changes():
    builder = GroupBuilder()
    number = builder.add_full({A: "0"})
    for step in range(2000):
        number = builder.add(number, {A: str(step)})
    assert all(read <= ROWS_PER_KEY_LIMIT * keys + SPARE_ROWS for *_, keys, read in builder.group_rows())
    assert len(list(builder.delta_rows())) < 1.02 * 2001, "a full copy of one entry is one row as well"


def test_a_single_change_builds_on_the_group_below_or_its_copy():
    """So the state before a state event is that of the previous group."""
    builder = GroupBuilder()
    number = builder.add_full({A: "0"})
    for step in range(300):
        before = builder.expand(number)
        number = builder.add(number, {A: str(step)})
        assert builder.expand(list(builder.group_rows())[number][1]) == before


def test_nearest_base_takes_the_fewest_rows_and_an_equal_one_takes_none():
    builder = GroupBuilder()
    root = builder.add_full({A: "1", B: "1"})
    near, far = builder.add(root, {C: "1"}), builder.add(root, {A: "2", B: "2"})
    bases = {group: builder.expand(group) for group in (near, far)}
    assert builder.add_nearest(bases, {A: "2", B: "2"}) == far
    found = builder.add_nearest(bases, {B: "1", C: "1"})
    assert list(builder.group_rows())[found][1] == near
    assert builder.expand(found) == {B: "1", C: "1"}


def test_only_what_is_built_on_is_kept():
    builder = built({A: "1"}, {B: "2"}, {A: "3"})
    fork = builder.add(0, {C: "1"})
    kept = builder.kept([fork])
    assert kept == {0, fork}
    assert [row[0] for row in builder.group_rows(kept)] == [0, fork]
    assert {row[1] for row in builder.delta_rows(kept)} == {0, fork}


def test_changes_along_a_line():
    builder = built({A: "1"}, {B: "2"}, {A: "3"}, {C: "4"}, {C: None})
    assert builder.changes_between(1, 4) == {A: ("1", "3")}
    assert builder.changes_between(None, 1) == {A: (None, "1"), B: (None, "2")}
    assert builder.changes_between(2, 2) == {}


def test_changes_across_a_fork_and_across_a_full_copy():
    builder = built({A: "1"}, {B: "2"})
    fork = builder.add(0, {C: "3"})
    assert builder.changes_between(1, fork) == {B: ("2", None), C: (None, "3")}
    full = builder.add_full({A: "1"})
    assert builder.changes_between(fork, full) == {C: ("3", None)}


def test_many_forks_from_a_deep_group_copy_its_state_once():
    builder = GroupBuilder()
    number = builder.add_full({("m.room.member", f"@{user}"): "$j" for user in range(1000)})
    for step in range(HOPS_LIMIT):
        builder.add(number, {B: f"tip{step}"})
        number = builder.add(number, {C: f"{step}"})
    builder.add(number, {B: "tip"})
    before = len(list(builder.delta_rows()))
    forks = [builder.add(number, {A: str(fork)}) for fork in range(50)]
    assert len(list(builder.delta_rows())) - before == 1001 + 50
    assert builder.changes_between(number, forks[7]) == {A: (None, "7")}


def test_taking_most_of_a_state_away_stores_what_is_left():
    keys = [("m.x", str(number)) for number in range(1000)]
    builder = GroupBuilder()
    rest = builder.add(builder.add_full(dict.fromkeys(keys, "$1")), dict.fromkeys(keys[1:]))
    assert builder.expand(rest) == {keys[0]: "$1"}
    assert list(builder.group_rows())[rest] == (1, None, 1, 0, 1, 1)


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_a_real_rooms_groups_expand_to_the_same_states(room):
    builder, states, numbers = GroupBuilder(), {}, {}
    groups = [row for row in oracle(room, "state_groups") if row["kind"] == "group"]
    for row in sorted(groups, key=lambda row: row["state_group"])[:600]:
        own, prev = row["state_group"], row["prev_group"]
        delta = {(event_type, key): event_id for event_type, key, event_id in row["delta"]}
        states[own] = delta if prev is None else {**states[prev], **delta}
        numbers[own] = builder.add_full(delta) if prev is None else builder.add(numbers[prev], delta)
    assert all(builder.expand(numbers[own]) == state for own, state in states.items())
    keys = {row[0]: row[4] for row in builder.group_rows()}
    assert all(keys[numbers[own]] == len(state) for own, state in states.items())


def adopted(state, is_tip=True, hops=3, rows=50):
    """A builder on top of a stored group."""
    builder = GroupBuilder()
    return builder, builder.adopt(StoredGroup(state, hops, len(state), rows, is_tip))


def test_new_group_goes_on_in_the_chain_of_a_stored_tip():
    builder, base = adopted({A: "1", B: "1"})
    new = builder.add(base, {A: "2"})
    assert list(builder.group_rows([new])) == [(new, base, base, 3, 2, 51)]
    assert (builder.lookup(new, A), builder.lookup(new, B), builder.lookup(base, A)) == ("2", "1", "1")
    assert builder.expand(new) == {A: "2", B: "1"}
    assert builder.changes_between(base, new) == {A: ("1", "2")}


def test_new_group_on_a_stored_group_inside_its_chain_opens_a_chain():
    builder, base = adopted({A: "1"}, is_tip=False)
    new = builder.add(base, {B: "1"})
    assert list(builder.group_rows([new])) == [(new, base, new, 4, 2, 51)]
    assert builder.expand(new) == {A: "1", B: "1"}
    assert builder.lookup(new, A) == "1"


def test_stored_group_at_a_bound_is_copied():
    builder, base = adopted({A: "1"}, is_tip=False, hops=HOPS_LIMIT)
    new = builder.add(base, {B: "1"})
    copy = list(builder.group_rows())[new][1]
    assert copy != base and builder.expand(copy) == {A: "1"} and builder.expand(new) == {A: "1", B: "1"}


def test_stored_group_with_too_many_hops_is_copied_on_one_further_down():
    entries = {("m.room.member", str(number)): "$" for number in range(20)}
    builder = GroupBuilder(lambda number: below if number == base else None)
    below = builder.adopt(StoredGroup(entries, 2, 20, 20, False))
    base = builder.adopt(StoredGroup({**entries, A: "1", B: "1"}, HOPS_LIMIT, 22, 25, False))
    on_base = builder.add(base, {A: "2"})
    new, other = builder.add(on_base, {C: "1"}), builder.add(base, {B: "2"})
    copy = builder.step(on_base)[0]
    rows = {row[0]: row[1:] for row in builder.group_rows([copy, on_base, new, other])}
    assert rows[copy] == (below, copy, 3, 22, 22)
    assert rows[on_base] == (copy, copy, 3, 22, 23)
    assert rows[new] == (on_base, copy, 3, 23, 24)
    assert rows[other] == (copy, other, 4, 22, 23)
    assert builder.expand(new) == {**entries, A: "2", B: "1", C: "1"}
    assert builder.expand(other) == {**entries, A: "1", B: "2"}
    assert builder.changes_between(new, other) == {A: ("2", "1"), B: ("1", "2"), C: ("1", None)}


@pytest.mark.parametrize(("hops", "rows"), [(HOPS_LIMIT - 1, 20), (2, int(ROWS_PER_KEY_LIMIT * 22) + SPARE_ROWS - 2)])
def test_copy_on_which_nothing_more_fits_is_stored_in_full(hops, rows):
    """The state before each state event is that of the group below, also of those that find the copy at a bound."""
    entries = {("m.room.member", str(number)): "$" for number in range(20)}
    state = {**entries, A: "1", B: "1"}
    builder = GroupBuilder(lambda number: below if number == base else None)
    below = builder.adopt(StoredGroup(entries, hops, 20, rows, False))
    base = builder.adopt(StoredGroup(state, HOPS_LIMIT, 22, 25, False))
    forks = [builder.add(base, {A: str(fork)}) for fork in range(2, 6)]
    assert [builder.expand(builder.step(fork)[0]) for fork in forks] == [state] * 4
    assert [builder.step(fork)[1] for fork in forks] == [{A: str(fork)} for fork in range(2, 6)]
    assert [builder.expand(fork)[A] for fork in forks] == ["2", "3", "4", "5"]
    assert sum(len(builder.step(number)[1]) for number in range(base + 1, len(builder))) <= 2 + 22 + 4
    assert builder.changes_between(base, forks[3]) == {A: ("1", "5")}


def test_two_stored_groups_differ_by_their_states():
    builder, one = adopted({A: "1", B: "1"})
    other = builder.adopt(StoredGroup({A: "1", C: "2"}, 0, 2, 2, True))
    assert builder.changes_between(one, other) == {B: ("1", None), C: (None, "2")}


def test_stored_groups_that_are_read_by_key_differ_by_what_is_read():
    one, other = {A: "1", B: "1"}, {A: "1", C: "2"}
    shared = LayeredState({}, {}, Stored(one))
    builder, first = adopted(shared)
    second = builder.adopt(StoredGroup(layered_on_base(shared, {B: None, C: "2"}, Stored(other)), 0, 2, 2, True))
    third = builder.adopt(StoredGroup(LayeredState({}, {}, Stored(other)), 0, 2, 2, True))
    assert builder.changes_between(first, second) == {B: ("1", None), C: (None, "2")}
    assert shared.base == {B: "1", C: None}
    assert builder.changes_between(first, third) == {B: ("1", None), C: (None, "2")}
    new = builder.add(second, {B: "3"})
    assert builder.apart([first, new, third]) == [{}, {B: "3", C: "2"}, {B: None, C: "2"}]
    assert next(builder.group_rows([new]))[4] == 3
