"""Memory of earlier snapshots: who moves, and whose lag grows."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from replsite.status.trends import SHORTEST_SECONDS, WINDOW_SECONDS, Growth, History, Motion, Sample
from tests.support.effort import examples


def test_first_sample_tells_nothing():
    assert History().add(100, {"r": Sample({"w": 5}, 1)}) == {"r": Motion()}


def test_unmoved_time_counts_from_the_last_move():
    history = History()
    for time, position in ((0, 1), (2, 2), (4, 2), (9, 2)):
        motion = history.add(time, {"r": Sample({"w": position}, 3)})["r"]
    assert motion.unmoved_seconds == 7


def test_change_of_lag_is_per_second_over_the_window():
    history = History()
    history.add(0, {"r": Sample({"w": 1}, 100)})
    assert history.add(4, {"r": Sample({"w": 2}, 60)})["r"].lag_change_per_second == -10


def test_change_of_lag_is_not_judged_over_a_moment():
    history = History()
    history.add(0, {"r": Sample({"w": 1}, 100)})
    assert history.add(1, {"r": Sample({"w": 2}, 60)})["r"].lag_change_per_second is None


def test_samples_beyond_the_window_do_not_count():
    history = History()
    history.add(0, {"r": Sample({"w": 1}, 10_000)})
    for time in range(10, 200, 5):
        motion = history.add(time, {"r": Sample({"w": time}, 50)})["r"]
    assert motion.lag_change_per_second == 0


def test_memory_is_bounded():
    history = History()
    for time in range(10_000):
        history.add(time, {"r": Sample({"w": time}, 1)})
    assert len(history._tracks["r"].lags) <= WINDOW_SECONDS + 2


def test_readers_that_stand_still_take_the_same_memory_from_one_snapshot_to_the_next():
    """A thousand connections are 15,000 positions: each kept 30 times took 190 MB."""
    readers, history = 300, History()

    def after(moments: range) -> int:
        for at in moments:
            history.add(at, {number: Sample({"w": 5_000 + number}, 7_000 + number) for number in range(readers)})
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        early = after(range(5))
        grown = after(range(5, 40)) - early
    finally:
        tracemalloc.stop()
    assert grown < readers * 100, f"{grown:,} bytes more"


def plain(told: list[tuple[float, Sample]]) -> Motion:
    """The same from everything that was ever told, the last of it now."""
    at, now = told[-1]
    if len(told) == 1:
        return Motion()
    moves = [(t, b, a) for (_, b), (t, a) in pairwise(told) if a.position != b.position]
    backs = [t for t, b, a in moves if any(p < b.position.get(w, p) for w, p in a.position.items())]
    then, before = max([one for one in told[:-1] if one[0] <= at - WINDOW_SECONDS] or told[:1], key=lambda one: one[0])
    change = (now.lag_facts - before.lag_facts) / (at - then) if at - then >= SHORTEST_SECONDS else None
    return Motion(at - max([told[0][0], *(t for t, _, _ in moves)]), change, at - backs[-1] if backs else None)


@settings(max_examples=examples(25))
@given(st.data())
def test_motion_is_what_the_whole_past_tells(data):
    history, told, at = History(), {"a": [], "b": []}, 0.0
    for _ in range(data.draw(st.integers(1, 30))):
        at += data.draw(st.sampled_from([0.5, 1.0, 2.0, 9.0, 40.0]))
        samples = {}
        for key in data.draw(st.sampled_from([("a",), ("a", "b"), ("a", "b")])):
            position = {writer: data.draw(st.integers(1, 3)) for writer in data.draw(st.sampled_from(["v", "vw"]))}
            samples[key] = Sample(position, data.draw(st.integers(0, 2)))
        for key, past in told.items():
            past.append((at, samples[key])) if key in samples else past.clear()
        assert history.add(at, samples) == {key: plain(told[key]) for key in samples}


def test_keys_that_are_gone_are_forgotten():
    history = History()
    history.add(0, {"r": Sample({"w": 1}, 1)})
    history.add(1, {})
    assert history.add(2, {"r": Sample({"w": 1}, 1)}) == {"r": Motion()}


def test_position_that_became_lower_is_told_for_its_writer():
    history = History()
    history.add(0, {"r": Sample({"a": 5, "b": 5}, 0)})
    history.add(4, {"r": Sample({"a": 9, "b": 4}, 0)})
    assert history.add(10, {"r": Sample({"a": 9, "b": 9}, 0)})["r"].went_back_seconds == 6


def test_writer_that_came_or_left_is_no_going_back():
    history = History()
    history.add(0, {"r": Sample({"a": 5}, 0)})
    assert history.add(4, {"r": Sample({"b": 1}, 0)})["r"].went_back_seconds is None


def test_growth_in_an_hour_is_known_after_an_hour_and_forgets_what_is_older():
    hours = Growth(3_600, 3_600, 60)
    found = [hours.add(60.0 * minute, {"a": (10 * minute,)})["a"] for minute in range(200)]
    assert found[:60] == [None] * 60
    assert set(found[60:]) == {(3_600.0, (600,))}
    assert len(hours._seen["a"]) <= 62
    assert hours.add(0.0, {}) == {}
    assert not hours._seen
