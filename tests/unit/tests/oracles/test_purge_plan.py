"""What a purge keeps, against the vectors and by hand."""

import pytest

from tests.oracles.purge_plan import PurgedEvent, purge_plan
from tests.support.room_data import vectors

CASES = vectors("purge/purge_history")


def plan_of(case):
    """The plan for a vector."""
    events = [
        PurgedEvent(
            event_id=event["id"],
            depth=event["depth"],
            prev_event_ids=tuple(event["prev"]),
            group=event["group"],
            is_state=event["state"],
            local=event["sender"].endswith(":" + case["local_server"]),
            outlier=event["outlier"],
        )
        for event in case["events"]
    ]
    built_on = {int(group): base for group, base in case["state_group_delta_of"].items()}
    extremities = case["forward_extremities_before"]
    return purge_plan(
        events, case["before_topological"], extremities, built_on, delete_local=case["delete_local_events"]
    )


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_vector(case):
    plan, expect = plan_of(case), case["expect"]
    if expect.get("refused"):
        assert plan is None
        return
    gaps = expect.get("backward_extremities_if_older_gaps_are_kept", expect["backward_extremities"])
    assert sorted(plan.deleted) == sorted(expect["deleted"])
    assert sorted(plan.become_outliers) == sorted(expect["became_outlier"])
    assert sorted(plan.gaps) == sorted(gaps)
    assert sorted(plan.extremities) == sorted(expect["forward_extremities"])
    assert plan.min_depth == expect["min_depth"]
    assert sorted(plan.groups_looked_at) == sorted(expect["state_groups_looked_at"])
    assert sorted(plan.groups_deleted) == sorted(expect["state_groups_deleted"])
    assert sorted(plan.groups_made_full) == sorted(expect["state_groups_to_make_full"])


def line(length):
    """Events in a line, each a state event of its own group."""
    return [
        PurgedEvent(f"$e{n}", n, (f"$e{n - 1}",) if n > 1 else (), n, is_state=False, local=False, outlier=False)
        for n in range(1, length + 1)
    ]


def test_depth_equal_to_the_cut_stays():
    plan = purge_plan(line(5), 3, ["$e5"], {}, delete_local=False)
    assert plan.deleted == {"$e1", "$e2"} and plan.gaps == {"$e2"} and plan.min_depth == 3


def test_nothing_below_the_cut_changes_nothing():
    plan = purge_plan(line(5), 1, ["$e5"], {2: 1}, delete_local=False)
    assert not any((plan.deleted, plan.become_outliers, plan.gaps, plan.groups_deleted, plan.groups_made_full))
    assert plan.extremities == {"$e5"}


def test_room_that_would_lose_all_leaves_is_refused():
    assert purge_plan(line(5), 6, ["$e5"], {}, delete_local=True) is None


def test_long_chains_of_groups_take_no_recursion():
    count = 10_000
    plan = purge_plan(line(count), count, [f"$e{count}"], {n: n - 1 for n in range(2, count + 1)}, delete_local=False)
    assert len(plan.groups_deleted) == count - 1 and plan.groups_made_full == {count}
