"""Memory of earlier snapshots: who moves, and whose lag grows."""

from __future__ import annotations

from replsite.trends import WINDOW_SECONDS, History, Motion, Sample


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
    assert len(history._tracks["r"].samples) <= WINDOW_SECONDS + 2


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
