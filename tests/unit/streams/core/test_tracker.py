"""The rules of the tracker, one by one; the worked examples and the state machine hold them together."""

from __future__ import annotations

import pytest

from streams.core.tokens import VectorToken
from streams.core.tracker import PositionTracker, TrackerState
from tests.support.growth import growth


def writer(own: int = 10, linear: int | None = None, **others: int) -> PositionTracker:
    """A tracker of the writer ``me`` at ``own``."""
    positions = {"me": own, **others}
    lowest = min(positions.values()) if linear is None else linear
    return PositionTracker(TrackerState(lowest, positions, "me", own, lowest))


def reader(**positions: int) -> PositionTracker:
    return PositionTracker(TrackerState(min(positions.values()), positions))


def take(tracker: PositionTracker, *ids: int) -> None:
    tracker.end_fetch(tracker.begin_fetch(), ids)


def test_position_waits_for_earlier_fact():
    tracker = writer()
    take(tracker, 11)
    take(tracker, 12)
    assert not tracker.complete([12], written=True)
    assert tracker.announceable == 10
    assert tracker.complete([11], written=True)
    assert (tracker.own_minimum, tracker.linear, tracker.announceable) == (12, 12, 12)


def test_rollback_frees_the_position_of_a_later_commit():
    tracker = writer()
    take(tracker, 11, 12)
    take(tracker, 13)
    tracker.complete([13], written=True)
    assert tracker.complete([11, 12], written=False), "there is something to announce now"
    assert tracker.announceable == 13


def test_rollback_at_the_head_is_announced_but_no_write():
    tracker = writer()
    take(tracker, 11)
    assert tracker.complete([11], written=False)
    assert (tracker.linear, tracker.announceable, tracker.last_write) == (11, 11, 0)


def test_ids_of_a_failed_fetch_are_lost_until_later_ones_come():
    tracker = writer()
    fetch = tracker.begin_fetch()
    assert not tracker.has_lost_ids
    assert tracker.end_fetch(fetch, []), "somebody has to look where the sequence is"
    assert tracker.has_lost_ids
    take(tracker, 13)
    assert not tracker.has_lost_ids
    tracker.complete([13], written=False)
    assert not tracker.has_lost_ids


def test_lost_ids_are_no_matter_while_others_are_on_their_way():
    tracker = writer()
    other = tracker.begin_fetch()
    tracker.end_fetch(tracker.begin_fetch(), [])
    assert not tracker.has_lost_ids
    tracker.end_fetch(other, [])
    assert tracker.has_lost_ids


def test_a_transaction_that_ended_with_its_fetch_is_settled():
    tracker = writer()
    fetch = tracker.begin_fetch()
    assert tracker.settle(fetch, [11, 12])
    assert (tracker.announceable, tracker.last_write, tracker.pending) == (12, 12, [])
    assert tracker.take_counts() == (2, 0)


def test_a_settled_fetch_waits_for_earlier_ones():
    tracker = writer()
    early = tracker.begin_fetch()
    late = tracker.begin_fetch()
    assert not tracker.settle(late, [12])
    assert tracker.announceable == 10
    assert tracker.settle(early, [11])
    assert tracker.announceable == 12


def test_settling_finds_what_others_completed_meanwhile():
    """The table is read for a message in doubt, and shows the facts of others too: those pending here, and those complete."""
    tracker = writer()
    doubtful = tracker.begin_fetch()
    take(tracker, 12, 13)
    tracker.complete([12], written=True)
    tracker.settle(doubtful, [11, 12, 13])
    assert (tracker.announceable, tracker.pending) == (13, [])
    assert not tracker.complete([13], written=True)
    assert tracker.take_counts() == (3, 0)


def test_completing_twice_changes_nothing():
    tracker = writer()
    take(tracker, 11)
    tracker.complete([11], written=True)
    assert not tracker.complete([11], written=False)
    assert tracker.take_counts() == (1, 0)


def test_ids_on_their_way_hold_the_position_back():
    tracker = writer()
    take(tracker, 11)
    fetch = tracker.begin_fetch()  # will bring 12, which the sequence may have given out already
    take(tracker, 13)
    tracker.complete([11, 13], written=True)
    assert tracker.own_minimum == 11
    assert tracker.announceable == 11
    tracker.end_fetch(fetch, [12])
    tracker.complete([12], written=True)
    assert tracker.announceable == 13


def test_a_failed_fetch_lets_the_position_go_on():
    tracker = writer()
    fetch = tracker.begin_fetch()
    take(tracker, 12)
    tracker.complete([12], written=True)
    assert tracker.announceable == 10
    assert tracker.end_fetch(fetch, []), "there is something to announce now"
    assert tracker.announceable == 12


def test_idle_writer_claims_what_others_announced():
    tracker = writer(south=10)
    assert tracker.advance("south", 14)
    assert (tracker.own_maximum, tracker.announceable, tracker.own_minimum) == (14, 14, 10)


def test_busy_writer_does_not_claim_what_others_announced():
    tracker = writer(south=10)
    take(tracker, 11)
    assert not tracker.advance("south", 14)
    assert tracker.announceable == 10
    tracker.complete([11], written=False)
    assert tracker.announceable == 14


def test_late_and_repeated_announcements_are_harmless():
    tracker = reader(north=5, south=9)
    for position in (8, 6, 8, 5):
        tracker.advance("north", position)
    assert (tracker.linear, tracker.position_of("north")) == (8, 8)


def test_a_gapless_run_of_single_ids_moves_beyond_the_minimum():
    tracker = reader(north=36, south=34)
    tracker.advance("north", 37)
    assert tracker.linear == 34
    tracker.advance("south", 35)
    assert tracker.linear == 35
    tracker.advance("north", 36)
    assert tracker.linear == 37


def test_an_announcement_says_nothing_of_the_ids_below_it():
    tracker = reader(north=10, silent=10)
    tracker.advance("north", 12)
    assert tracker.linear == 10


def test_the_start_position_is_not_taken_for_a_complete_id():
    """The sequence stood at 11 when this writer started; 11 may be another's open fact."""
    tracker = writer(own=11, linear=10, south=10)
    take(tracker, 12)
    assert tracker.linear == 10
    tracker.complete([12], written=True)
    assert tracker.linear == 10


def test_only_ids_of_committed_transactions_are_announced():
    """South's 11 is open, 13 of east is committed: this busy writer may claim 11, but 11 is not a fact that it knows."""
    tracker = writer(own=11, linear=10, south=10, east=10)
    take(tracker, 12)
    tracker.advance("east", 13)
    assert tracker.own_maximum == 11
    assert tracker.announceable == 10
    tracker.complete([12], written=True)
    assert tracker.announceable == 13


def test_lone_writer_passes_a_gap_only_when_its_announcement_comes_back():
    """Before that a writer that joined meanwhile may be unheard, and the gap may be its open fact."""
    tracker = writer()
    take(tracker, 12)
    tracker.complete([12], written=True)
    assert (tracker.linear, tracker.announceable) == (10, 12)
    tracker.advance("south", 10)  # it had joined, and holds 11
    tracker.advance("me", 12)
    assert tracker.linear == 10


def test_lone_writer_moves_with_its_own_announcement():
    tracker = writer()
    take(tracker, 12)
    tracker.complete([12], written=True)
    tracker.advance("me", 12)
    assert tracker.linear == 12


def test_retired_writer_leaves_the_minimum():
    tracker = reader(north=20, south=10)
    tracker.retire("south", 10)
    assert tracker.linear == 20


def test_what_a_retired_writer_reached_is_passed_on():
    tracker = writer(south=10)
    tracker.retire("south", 15)
    assert tracker.announceable == 15


def test_with_all_writers_retired_everything_is_complete():
    tracker = reader(north=20, south=10)
    tracker.retire("south", 30)
    tracker.retire("north", 20)
    assert tracker.linear == 30


def test_retired_writer_may_come_back():
    tracker = reader(north=20, south=10)
    tracker.retire("south", 10)
    tracker.advance("south", 20)
    tracker.advance("north", 25)
    assert (tracker.linear, tracker.position_of("south")) == (20, 20)


def test_retired_writer_is_not_reported_lower_than_before():
    tracker = reader(north=5, south=9)
    tracker.retire("south", 9)
    assert (tracker.linear, tracker.position_of("south")) == (5, 9)


def test_the_table_is_learned_at_once():
    """North alone would let the linear position pass south, of which this reader has not heard."""
    tracker = reader(north=1)
    tracker.learn({"north": 3, "south": 1}, {})
    assert tracker.linear == 1


def test_retired_rows_of_the_table_do_not_hold_back():
    tracker = reader(north=1, south=1)
    tracker.learn({"north": 3}, {"south": 2})
    assert (tracker.linear, tracker.position_of("south")) == (3, 3)


def test_unknown_writer_is_where_the_linear_position_is():
    assert reader(north=7).position_of("nobody") == 7


def test_token_names_the_writers_that_are_ahead():
    assert reader(north=7, south=9).token() == VectorToken(7, {"south": 9})


def test_pending_lists_what_is_open():
    tracker = writer()
    take(tracker, 13, 12)
    tracker.complete([12], written=False)
    assert tracker.pending == [13]


def test_last_write_is_the_last_committed_fact_of_this_life():
    tracker = writer()
    assert tracker.last_write == 0
    take(tracker, 11, 12)
    tracker.complete([11], written=True)
    tracker.complete([12], written=False)
    assert tracker.last_write == 11


def test_counts_are_taken_once():
    tracker = writer()
    take(tracker, 11, 12, 13)
    tracker.complete([11, 12], written=True)
    tracker.complete([13], written=False)
    assert tracker.take_counts() == (2, 1)
    assert tracker.take_counts() == (0, 0)


def test_nothing_is_kept_when_everything_is_done():
    tracker = writer(south=10)
    for number in range(11, 1011):
        take(tracker, number)
        tracker.complete([number], written=number % 3 == 0)
        tracker.advance("south", number)
    assert tracker._known_done == []
    assert tracker._real_above == tracker._finished_above == tracker.pending == []


@pytest.mark.speed
def test_a_large_block_takes_linear_time():
    def make(size):
        def block():
            tracker, ids = writer(), range(11, 11 + size)
            take(tracker, *ids)
            tracker.complete(ids, written=True)
            assert tracker.linear == 10 + size

        return block

    assert growth(make, 10_000, runs=3) < 10


@pytest.mark.speed
def test_many_open_reservations_take_linear_time():
    def make(size):
        def reserve():
            tracker = writer()
            for number in range(11, 11 + size):
                take(tracker, number)
            for number in reversed(range(11, 11 + size)):
                tracker.complete([number], written=True)
            assert tracker.announceable == 10 + size

        return reserve

    assert growth(make, 2_000, runs=3) < 10


# --- what is kept while a writer holds the stream back ---------------------------------------------------------------


def small(own: int = 10, **others: int) -> PositionTracker:
    """A tracker that keeps four single IDs above the linear position."""
    positions = {"me": own, **others}
    return PositionTracker(TrackerState(min(positions.values()), positions, "me", own), known_done_limit=4)


def test_known_done_is_bounded_while_another_writer_is_stuck():
    tracker = small(silent=10)
    for number in range(12, 1_000):
        take(tracker, number)
        tracker.complete([number], written=True)
        assert len(tracker._known_done) <= 4
    assert tracker.linear == 10


def with_dropped_ids() -> PositionTracker:
    """One that completed 12 to 29 while ``silent`` had 11 open: it keeps the smallest, and a few of the last."""
    tracker = small(silent=10)
    for number in range(12, 30):
        take(tracker, number)
        tracker.complete([number], written=True)
    return tracker


def test_a_run_ends_before_a_dropped_id():
    tracker = with_dropped_ids()
    tracker.advance("silent", 11)
    assert tracker.linear == 13
    assert tracker.announceable == 29


def test_the_slow_writers_next_announcement_passes_dropped_ids():
    """Once idle it claims what it has heard of: 29."""
    tracker = with_dropped_ids()
    tracker.advance("silent", 11)
    tracker.advance("silent", 29)
    assert (tracker.linear, tracker._known_done) == (29, [])


def test_a_gap_above_dropped_ids_is_not_passed():
    """What is missing may be a fact of the silent writer that is not committed."""
    tracker = with_dropped_ids()
    tracker.advance("silent", 20)
    assert tracker.linear == 20
    take(tracker, 31)
    tracker.complete([31], written=True)
    tracker.advance("silent", 29)
    assert tracker.linear == 29
    tracker.advance("silent", 30)
    assert tracker.linear == 31


def test_complete_ids_above_an_unfinished_one_take_bounded_memory():
    tracker = writer()
    take(tracker, 11)
    for number in range(12, 40_000):
        take(tracker, number)
        tracker.complete([number], written=True)
    assert len(tracker._finished_above) + len(tracker._real_above) < 30_000
    tracker.complete([11], written=False)
    assert (tracker.own_minimum, tracker.announceable) == (39_999, 39_999)


def test_thinned_out_positions_are_those_of_before():
    """Between two unfinished IDs the last complete one counts, also when a fetch of long ago brings an ID below it."""
    tracker = writer()
    take(tracker, 11)
    slow = tracker.begin_fetch()
    take(tracker, *range(12, 20_000), *range(20_001, 40_000))
    tracker.complete([*range(12, 15_000), *range(15_001, 20_000), *range(20_001, 40_000)], written=True)
    tracker.end_fetch(slow, [20_000])
    assert tracker.own_minimum == 10
    tracker.complete([11], written=True)
    assert tracker.own_minimum == 14_999
    tracker.complete([15_000], written=True)
    assert tracker.own_minimum == 19_999
    tracker.complete([20_000], written=True)
    assert tracker.own_minimum == tracker.announceable == 39_999
