"""What a process handles next of a stream that several share: no fact is left out, given twice, or out of order."""

from __future__ import annotations

import random
from math import inf

import pytest

from streams.errors import BadHandler
from streams.follow import Begin, Handler, View
from streams.follow.part_keys import short_key
from streams.follow.part_plan import PARTS, Part, Window, share_of


def window(*facts: tuple[int, int], upto: int) -> Window:
    made = Window(0)
    made.add(facts, upto)
    return made


def test_the_first_facts_of_the_taken_parts_are_planned():
    found = window((1, 7), (2, 8), (3, 7), (4, 9), (5, 8), upto=10)
    plan = found.plan([Part(7, 0), Part(8, 0)], 3)
    assert plan.facts == ((1, 7), (2, 8), (3, 7))
    assert plan.moves == {7: 10, 8: 4}, "part 8 ends before its next fact, part 7 has none up to the end"
    assert found.plan([Part(8, 0)], 1).moves == {8: 4}
    assert found.plan([], 5).facts == ()


def test_handled_facts_are_passed_over_also_when_another_process_is_ahead():
    found = window((1, 7), (3, 7), upto=5)
    assert found.pass_over(7, 2)
    assert found.plan([Part(7, 2)], 9).facts == ((3, 7),)
    assert found.pass_over(7, 8)
    found.add([(6, 7), (9, 7)], 9)
    assert found.plan([Part(7, 8)], 9) == found.plan([Part(7, 8)], 1)
    assert found.plan([Part(7, 8)], 9).facts == ((9, 7),)
    assert not found.plan([Part(3, 20)], 9).moves, "no part goes back"


def test_a_cursor_that_was_set_back_is_noticed():
    found = window((1, 7), upto=5)
    assert found.pass_over(7, 4)
    assert not found.pass_over(7, 3)


def test_parts_that_wait_are_left_and_those_to_be_handled_apart_are_separate():
    found = window((1, 1), (2, 2), (3, 3), upto=5)
    parts = [Part(1, 0), Part(2, 0, apart_upto=2), Part(3, 0, apart_upto=3, wait_seconds=0.5), Part(4, 0)]
    assert found.ready(parts, apart=False) == [1]
    assert found.ready(parts, apart=True) == [2]
    assert [part.number for part in found.passable(parts)] == [4]
    assert found.next_attempt([parts[2], Part(4, 0, wait_seconds=0.1)]) == 0.5
    assert found.next_attempt([parts[3]]) == inf


def test_facts_that_others_handled_are_counted():
    found = window((1, 7), (3, 7), (4, 8), upto=5)
    found.pass_over(7, 3)
    found.pass_over(9, 8)
    found.add([(6, 9), (9, 9)], 9)
    assert found.missed == 3


@pytest.mark.parametrize(("processes", "share"), [(0, 16), (1, 16), (2, 16), (4, 8), (16, 2), (64, 1), (100, 1)])
def test_processes_have_equal_shares_and_leave_parts_free(processes, share):
    assert share_of(processes) == share


def test_processes_that_take_parts_as_they_like_handle_each_fact_once_and_in_order():
    chance = random.Random(1)
    facts = [(token, chance.randrange(PARTS)) for token in range(1, 2_000)]
    stored = dict.fromkeys(range(PARTS), 0)
    windows = [Window(0) for _ in range(5)]
    handled: list[tuple[int, int]] = []
    while min(stored.values()) < 2_000:
        one = chance.choice(windows)
        if chance.random() < 0.3 and one.upto < 2_000:
            upto = min(2_000, one.upto + chance.randrange(1, 300))
            one.add([fact for fact in facts if one.upto < fact[0] <= upto], upto)
        taken = [Part(number, stored[number]) for number in chance.sample(range(PARTS), chance.randrange(1, 20))]
        assert all(one.pass_over(part.number, part.position) for part in taken)
        plan = one.plan(taken, chance.randrange(1, 40))
        assert list(plan.facts) == sorted(plan.facts)
        handled += plan.facts
        stored |= plan.moves
    assert sorted(handled) == facts
    for part in range(PARTS):
        tokens = [token for token, of in handled if of == part]
        assert tokens == sorted(tokens)


def test_processes_that_have_a_backlog_end_together():
    """Each went on with the parts that it had, and most of them waited for the ones with the larger parts."""
    chance, processes, most = random.Random(1), 16, 16
    part_of_key = [chance.randrange(PARTS) for _ in range(1_000)]
    facts = [(token, chance.choice(part_of_key)) for token in range(1, 20_000)]
    seen, stored = Window(0), dict.fromkeys(range(PARTS), 0)
    seen.add(facts, 20_000)
    held: list[list[int]] = [[] for _ in range(processes)]
    batches = 0
    while len(seen):
        for number in range(processes):
            held[number] = []
            others = {part for parts in held for part in parts}
            free = sorted((position, part) for part, position in stored.items() if part not in others)
            ready = {*seen.ready([Part(part, position) for position, part in free], apart=False)}
            taken = [Part(part, position) for position, part in free if part in ready][: share_of(processes)]
            held[number] = [part.number for part in taken]
            moves = seen.plan(taken, most).moves
            stored |= moves
            for part, position in moves.items():
                seen.pass_over(part, position)
            batches += 1
    assert batches <= 1.1 * len(facts) / most


def test_long_keys_are_stored_short_and_stay_different():
    assert short_key("k") == "k"
    assert len(short_key("k" * 5_000)) < 300
    assert short_key("k" * 5_000) != short_key("k" * 5_001)


def test_a_handler_with_a_key_has_one_order():
    assert Handler("s", "r", print, each=True, by="key", begin=Begin.OLDEST).view is View.LINEAR
    for options in ({}, {"each": True, "atomic": False}, {"each": True, "attempts": None}):
        with pytest.raises(BadHandler, match="by="):
            Handler("s", "r", print, by="key", **options)
