"""Figures of the last five minutes, by steps."""

from __future__ import annotations

import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from replsite.status.series import STEP_SECONDS, STEPS, Recent
from tests.support.effort import examples


def test_a_step_keeps_the_highest_value():
    recent = Recent()
    for at, value in ((0, 3), (5, 9), (10, 4), (16, 2)):
        found = recent.highest(at, {"r": value})["r"]
    assert found[-2:] == (9, 2)


def test_steps_in_which_nobody_looked_are_none():
    recent = Recent()
    recent.highest(0, {"r": 1})
    found = recent.highest(3 * STEP_SECONDS, {"r": 2})["r"]
    assert found[-4:] == (1, None, None, 2)
    assert len(found) == STEPS


def test_rate_is_growth_per_second_also_when_looked_at_once_a_step():
    recent = Recent()
    for step in range(4):
        found = recent.rates(step * STEP_SECONDS, {"w": step * 30})["w"]
    assert found[-4:] == (None, 2, 2, 2)


def test_rate_of_the_present_step_is_over_its_time_so_far():
    recent = Recent()
    for at, value in ((0, 0), (14, 14), (16, 20), (19, 39)):
        found = recent.rates(at, {"w": value})["w"]
    assert found[-2:] == (1, 5)


def test_counter_that_went_back_begins_anew():
    recent = Recent()
    for at, value in ((0, 1_000), (5, 1_100), (16, 10), (20, 18)):
        found = recent.rates(at, {"w": value})["w"]
    assert found[-2:] == (20, 2)


def test_counter_that_was_not_seen_for_long_tells_no_rate_of_the_gap():
    recent = Recent()
    recent.rates(0, {"w": 0})
    found = recent.rates(300, {"w": 9_000})["w"]
    assert set(found) == {None}


def test_memory_is_bounded_and_others_are_forgotten():
    recent = Recent()
    for at in range(0, 100_000, 7):
        recent.highest(at, {"r": at})
    assert len(recent._steps["r"].values) == STEPS
    recent.forget_others({"x"})
    assert recent._steps == {}


def test_seed_fills_earlier_steps_and_keeps_what_is_known():
    recent = Recent()
    assert recent.is_cold(100)
    recent.seed("r", [(70, 5), (85, 6)])
    found = recent.highest(100, {"r": 1})["r"]
    assert found[-3:] == (5, 6, 1)
    assert not recent.is_cold(120)
    assert recent.is_cold(200)


def test_many_figures_take_little_memory():
    """A thousand connections are 15,000 figures: in five minutes they took 18 MB."""
    figures, recent = 300, Recent()
    tracemalloc.start()
    try:
        for at in range(0, STEPS * STEP_SECONDS, STEP_SECONDS):
            recent.highest(at, dict.fromkeys(range(figures), 5))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < figures * 500, f"{held / figures:.0f} bytes for each"


@settings(max_examples=examples(50))
@given(
    st.lists(st.tuples(st.integers(-200, 400), st.integers(0, 9)), max_size=30),
    st.lists(st.tuples(st.integers(0, 900), st.integers(0, 9)), max_size=5),
)
def test_the_highest_of_each_step_is_told_however_time_goes(moves, before):
    """Also back, when the clock of the database is set; what lies ahead then is told when its time comes."""
    recent, plain, at = Recent(), {}, 1_000
    recent.seed("r", before)
    for moment, value in before:
        plain.setdefault(moment // STEP_SECONDS, value)
    for by, value in moves:
        at += max(by, -100)
        step = at // STEP_SECONDS
        plain[step] = max(value, plain.get(step, value))
        latest = max(plain)
        expected = [plain.get(one) if one > latest - STEPS else None for one in range(step - STEPS + 1, step + 1)]
        assert list(recent.highest(at, {"r": value})["r"]) == expected
