"""A state read through a filter is the whole state, filtered: for every group, by one query, of no more rows than needed."""

import json
import random

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from state.errors import UnknownStateGroup
from state.groups.deltas import GroupBuilder
from state.groups.filters import EVERYTHING, MEMBER, StateFilter
from state.store import _AT_KEYS, _FILTERED, FULL_STATE, ONE_BY_ONE, _condition, entries, full_state, full_states
from tests.oracle.answers import parsed
from tests.support.effort import examples
from tests.support.room_data import ROOM_NAMES
from tests.support.room_results import computed
from tests.support.stored_rooms import store_groups

pytestmark = pytest.mark.django_db

CREATE, NAME = ("m.room.create", ""), ("m.room.name", "")
KEYS = st.tuples(st.sampled_from(["m.a", "m.b", MEMBER]), st.sampled_from(["", "@x", "@y"]))
CHANGES = st.dictionaries(KEYS, st.none() | st.sampled_from(["$1", "$2", "$3"]), max_size=3)
STEPS = st.lists(st.tuples(st.integers(0, 10**6), CHANGES), max_size=25)
TYPES = st.frozensets(st.sampled_from(["m.a", "m.b", MEMBER, "m.none"]))
FILTERS = st.builds(StateFilter, st.frozensets(KEYS), TYPES, st.none() | TYPES)


def filters(state, chosen):
    """What is usually asked for, and sets of keys below and above the number that walk alone."""
    keys = sorted(state)
    few, many = chosen.sample(keys, min(len(keys), ONE_BY_ONE)), chosen.sample(keys, min(len(keys), 3 * ONE_BY_ONE))
    users = [key[1] for key in keys if key[0] == MEMBER]
    return [
        EVERYTHING,
        StateFilter(),
        StateFilter.at([CREATE]),
        StateFilter.at([*few, ("m.none", "")][-ONE_BY_ONE:]),
        StateFilter.at([*many, ("m.none", "")]),
        StateFilter.of_types(["m.room.join_rules", "m.room.power_levels"]),
        StateFilter.members(),
        StateFilter.without_members(),
        StateFilter.lazy(chosen.sample(users, min(len(users), 3))),
    ]


@pytest.mark.parametrize("room", ROOM_NAMES)
def test_filtered_state_is_the_full_state_filtered(room):
    chosen = random.Random(room)
    result = computed(parsed(room))
    ids = store_groups(result.room_id, result.groups, result.group_deltas)
    sample = chosen.sample(ids, min(len(ids), 40))
    whole = full_states(sample)
    for group in sample:
        assert full_state(group) == whole[group]
    for only in filters(whole[sample[0]], chosen):
        wanted = {group: only.apply(state) for group, state in whole.items()}
        assert full_states(sample, only=only) == wanted
        for group in sample[:8]:
            assert full_state(group, only=only) == wanted[group]


@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=STEPS, only=FILTERS)
def test_generated_chains_and_filters(steps, only):
    builder = GroupBuilder()
    made = [builder.add_full({CREATE: "$0"})]
    for choice, changes in steps:
        made.append(builder.add(made[-1 if choice % 3 else choice % len(made)], changes))
    ids = store_groups("!r:a", builder.group_rows(), builder.delta_rows())
    wanted = {ids[number]: only.apply(builder.expand(number)) for number in range(len(builder))}
    assert full_states(ids, only=only) == wanted
    last = ids[made[-1]]
    assert full_state(last, only=only) == wanted[last]
    assert entries(ids, only.keys) == {
        ids[n]: StateFilter.at(only.keys).apply(builder.expand(n)) for n in range(len(ids))
    }


@pytest.fixture
def line(new_tables):
    """A chain of a hundred names, and a fork of it that removes the name."""
    builder = GroupBuilder()
    at = builder.add_full({CREATE: "$c", **{(MEMBER, f"@{n}:x"): f"${n}" for n in range(60)}})
    for number in range(100):
        at = builder.add(at, {NAME: f"$name{number}"})
    fork = builder.add(at - 1, {NAME: None})
    ids = store_groups("!r:a", builder.group_rows(), builder.delta_rows())
    return ids[at], ids[fork]


def rows_read(query, values):
    """Rows that a query takes from the table of deltas."""
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE state_stategroup, state_stategroupdelta")
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + query, values)
        answer = cursor.fetchone()[0]
    nodes, found = [(json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]], 0
    while nodes:
        node = nodes.pop()
        nodes += node.get("Plans", [])
        if node.get("Relation Name") == "state_stategroupdelta":
            assert node["Index Name"] in ("state_stategroupdelta_pkey", "state_stategroupdelta_key")
            found += round(node["Actual Rows"] * node["Actual Loops"])
    return found


def test_one_key_stops_at_its_first_hit(line):
    last, fork = line
    for group, key in ((last, NAME), (last, CREATE), (fork, CREATE), (fork, NAME)):
        assert rows_read(_AT_KEYS, {"groups": [group], "types": [key[0]], "keys": [key[1]]}) == 1
    assert (full_state(last, only=StateFilter.at([NAME])), full_state(fork, only=StateFilter.at([NAME]))) == (
        {NAME: "$name99"},
        {},
    )


def test_types_that_are_not_wanted_are_not_read(line):
    last, _ = line
    condition, values = _condition(StateFilter.of_types(["m.room.create"]))
    assert rows_read(_FILTERED.format(condition=condition), {"group": last, **values}) == 1


@pytest.mark.parametrize(
    "only",
    [EVERYTHING, StateFilter.at([NAME]), StateFilter.members(), StateFilter()],
    ids=["all", "key", "types", "none"],
)
def test_missing_group_is_an_error_whatever_is_asked(only, line):
    with pytest.raises(UnknownStateGroup, match="987654321"):
        full_state(987654321, only=only)
    with pytest.raises(UnknownStateGroup, match="987654321"):
        full_states([line[0], 987654321], only=only)


@pytest.mark.parametrize("text", ["\0", "a\0b", "\ud800", "'; --", "%s", "{condition}"])
def test_text_that_no_entry_has_finds_nothing(line, text):
    for only in (
        StateFilter.at([(text, ""), ("m.room.name", text)]),
        StateFilter.at([(text, str(n)) for n in range(2 * ONE_BY_ONE)]),
        StateFilter.of_types([text]),
    ):
        assert full_state(line[0], only=only) == {}
    assert full_state(line[0], only=StateFilter(all_but=frozenset({text}))) == full_state(line[0])


def test_many_groups_are_one_query_and_each_row_is_read_once(line, django_assert_num_queries):
    last, fork = line
    groups = list(range(last - 50, last + 1))
    with django_assert_num_queries(1):
        assert len(full_states([*groups, *groups, fork])) == 52
    assert full_states([]) == {}


def test_planned_function_is_the_query():
    with connection.cursor() as cursor:
        cursor.execute("SELECT prosrc FROM pg_proc WHERE proname = 'state_full_state'")
        (body,) = cursor.fetchone()
    assert (
        FULL_STATE.replace("%(group)s", "wanted").split() == body.partition("QUERY")[2].rpartition(";\nEND")[0].split()
    )
