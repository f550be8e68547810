"""State groups in the database read back as they were built, by one query of bounded cost."""

import json

import pytest
from django.db import connection

from state.errors import UnknownStateGroup
from state.groups.deltas import HOPS_LIMIT, GroupBuilder
from state.store import FULL_STATE, entries, full_state, reserve_group_ids, state_digest
from tests.support.room_data import oracle
from tests.support.stored_rooms import store_groups

pytestmark = pytest.mark.django_db


def stored(builder):
    return store_groups("!r:a", builder.group_rows(), builder.delta_rows())


def from_oracle(room):
    """A real room's tree of groups, forks and all."""
    builder, numbers = GroupBuilder(), {}
    groups = [row for row in oracle(room, "state_groups") if row["kind"] == "group"]
    for row in sorted(groups, key=lambda row: row["state_group"]):
        delta = {(event_type, key): event_id for event_type, key, event_id in row["delta"]}
        prev = numbers.get(row["prev_group"])
        numbers[row["state_group"]] = builder.add_full(delta) if prev is None else builder.add(prev, delta)
    return builder


@pytest.mark.parametrize("room", ["v11_fork_walk", "v12_power_fork", "v9_restricted"])
def test_every_group_of_a_real_room_reads_back(room):
    builder = from_oracle(room)
    ids = stored(builder)
    assert all(full_state(ids[number]) == builder.expand(number) for number in range(len(builder)))


def test_removed_key_is_not_read():
    builder = GroupBuilder()
    removed = builder.add(builder.add_full({("m.a", ""): "$1", ("m.b", ""): "$2"}), {("m.a", ""): None})
    assert full_state(stored(builder)[removed]) == {("m.b", ""): "$2"}


def test_later_groups_of_the_chain_are_not_read():
    builder = GroupBuilder()
    first = builder.add_full({("m.a", ""): "$1"})
    builder.add(first, {("m.a", ""): "$2"})
    fork = builder.add(first, {("m.b", ""): "$3"})
    ids = stored(builder)
    assert full_state(ids[first]) == {("m.a", ""): "$1"}
    assert full_state(ids[fork]) == {("m.a", ""): "$1", ("m.b", ""): "$3"}


def test_missing_group_is_an_error_not_an_empty_state():
    with pytest.raises(UnknownStateGroup, match="987654321"):
        full_state(987654321)


def test_reserved_ids_ascend_and_are_new():
    with connection.cursor() as cursor:
        one, other = reserve_group_ids(cursor, 3), reserve_group_ids(cursor, 2)
    assert [*one, *other] == sorted({*one, *other}) and len({*one, *other}) == 5


def plan_nodes(plan):
    yield plan
    for below in plan.get("Plans", []):
        yield from plan_nodes(below)


@pytest.mark.usefixtures("new_tables")
def test_full_state_reads_index_ranges_of_its_chains_only():
    builder = from_oracle("v11_fork_walk")
    ids = stored(builder)
    deepest = max(builder.group_rows(), key=lambda row: row[3])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE state_stategroup, state_stategroupdelta")
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + FULL_STATE, {"group": ids[deepest[0]]})
        answer = cursor.fetchone()[0]
    plan = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
    scans = [node for node in plan_nodes(plan) if node.get("Relation Name") == "state_stategroupdelta"]
    assert {node.get("Index Name") for node in scans} == {"state_stategroupdelta_pkey"}
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in scans) == pytest.approx(
        deepest[5], abs=HOPS_LIMIT
    )


def test_entries_of_many_groups_at_some_keys():
    builder = from_oracle("v11_fork_walk")
    ids = stored(builder)
    keys = [("m.room.create", ""), ("m.room.topic", ""), ("m.room.nothing", "x")]
    found = entries(ids, keys)
    for number, group in enumerate(ids):
        whole = builder.expand(number)
        assert found[group] == {key: whole[key] for key in keys if key in whole}


def test_entry_that_was_removed_is_left_out():
    builder = GroupBuilder()
    first = builder.add_full({("m.a", ""): "$1"})
    removed = builder.add(first, {("m.a", ""): None})
    ids = stored(builder)
    assert entries([ids[first], ids[removed]], [("m.a", "")]) == {ids[first]: {("m.a", ""): "$1"}, ids[removed]: {}}
    assert entries([], [("m.a", "")]) == {}


# --- digests ----------------------------------------------------------------------------------------------------------


def test_groups_of_equal_state_have_equal_digests_however_they_are_stored():
    builder = GroupBuilder()
    base = builder.add_full({("m.a", ""): "$1", ("m.b", "x"): "$2"})
    long_way = builder.add(builder.add(base, {("m.c", ""): "$3", ("m.a", ""): None}), {("m.a", ""): "$4"})
    short_way = builder.add_full({("m.a", ""): "$4", ("m.b", "x"): "$2", ("m.c", ""): "$3"})
    ids = stored(builder)
    found = state_digest(ids[long_way])
    assert found == state_digest(ids[short_way]) != state_digest(ids[base])
    assert found.entries == 3


def test_states_that_only_look_alike_have_other_digests():
    builder = GroupBuilder()
    alike = [{("a", "b,c"): "$d"}, {("a,b", "c"): "$d"}, {("a", "b"): "c,$d"}, {("a", 'b)(",'): "$d"}, {}]
    groups = [builder.add_full(state) for state in alike]
    ids = stored(builder)
    assert len({state_digest(ids[group]) for group in groups}) == len(alike)
    assert state_digest(987654321) is None
