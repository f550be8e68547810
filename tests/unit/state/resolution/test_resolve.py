"""State resolution against the vectors: every merge, and the states after all events."""

import hashlib
from functools import cache

import pytest

from tests.support.room_data import vectors
from tests.support.rule_cases import ResolutionCase

FILES = ("classic", "random_v1", "random_v2", "random_v21")


@cache
def cases(file):
    return vectors(f"state_resolution/{file}")


def digest(event_ids):
    return hashlib.sha256("\n".join(sorted(event_ids)).encode()).hexdigest()[:16]


@pytest.mark.parametrize("file", FILES)
def test_merges_resolve_as_in_the_vectors(file):
    checked, wrong = 0, []
    for case in cases(file):
        ids = [event["event_id"] for event in case["events"]]
        resolver = ResolutionCase(case["room_version"], case["events"])
        for merge in case["resolutions"]:
            found = resolver.resolve([[ids[n] for n in numbers] for numbers in merge["state_sets"]])
            checked += 1
            if set(found.values()) != {ids[n] for n in merge["resolved"]}:
                wrong.append((case["name"], merge["before"]))
    assert checked >= 100 and wrong == []


@pytest.mark.parametrize("file", FILES)
def test_states_after_all_events_are_those_of_the_vectors(file):
    wrong = []
    for case in cases(file):
        after = ResolutionCase(case["room_version"], case["events"]).states_after()
        for event, wanted in zip(case["events"], case.get("state_digest_after", []), strict=False):
            if digest(after[event["event_id"]].values()) != wanted:
                wrong.append((case["name"], event["event_id"]))
    assert wrong == []


def first_case(file):
    case = cases(file)[0]
    return case, ResolutionCase(case["room_version"], case["events"])


@pytest.mark.parametrize("file", FILES)
def test_events_that_are_not_here_neither_win_nor_break_anything(file):
    case, resolver = first_case(file)
    key = ("m.room.topic", "")
    base = resolver.state([event["event_id"] for event in case["events"][:3]])
    topics = [event.event_id for event in resolver.events.values() if event.type == "m.room.topic"]
    known = topics[:1] or [case["events"][2]["event_id"]]
    found = resolve_maps(resolver, [{**base, key: "$gone"}, {**base, key: known[0]}, {**base, key: "$lost"}])
    assert found.get(key) in (known[0], None)
    assert base.items() <= found.items()


def resolve_maps(resolver, maps):
    from state.resolution.resolve import resolve

    return resolve(resolver.rules, resolver.graph, maps)


def test_one_state_is_its_own_resolution():
    _, resolver = first_case("random_v2")
    state = {("a", "b"): "$never seen"}
    assert resolve_maps(resolver, [state]) == resolve_maps(resolver, [state, dict(state)]) == state


def test_thousand_forks_of_a_long_room_take_no_recursion():
    """A line of 5,000 power level events, each the auth event of the next, and two topics at its ends."""
    create = {"type": "m.room.create", "state_key": "", "sender": "@c:a", "content": {"creator": "@c:a"}}
    room = [("$create", create, [])]
    room.append(("$me", {"type": "m.room.member", "state_key": "@c:a", "sender": "@c:a",
                         "content": {"membership": "join"}, "prev_events": ["$create"]}, ["$create"]))  # fmt: skip
    for number in range(5_000):
        levels = {"type": "m.room.power_levels", "state_key": "", "sender": "@c:a", "content": {"users": {"@c:a": 100}}}
        room.append((f"$p{number}", levels, ["$create", "$me", *([f"$p{number - 1}"] if number else [])]))
    for name, levels in (("old", "$p0"), ("new", "$p4999")):
        topic = {"type": "m.room.topic", "state_key": "", "sender": "@c:a", "content": {}}
        room.append((f"${name}", topic, ["$create", "$me", levels]))
    events = [
        {"event_id": event_id, "pdu": {**pdu, "room_id": "!r:a", "auth_events": auth}} for event_id, pdu, auth in room
    ]
    resolver = ResolutionCase("10", events)
    found = resolver.resolve([["$create", "$me", "$p0", "$old"], ["$create", "$me", "$p4999", "$new"]])
    assert set(found.values()) == {"$create", "$me", "$p4999", "$new"}
