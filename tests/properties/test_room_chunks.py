"""A room's history by chunks of any size, on generated rooms: every row is that of the whole."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import examples
from tests.support.generated_rooms import forked_rooms
from tests.unit.events.history.test_chunked_walk import assert_chunks_make_no_difference


@settings(deadline=None, max_examples=examples(40))
@given(forked_rooms(), st.booleans(), st.randoms(use_true_random=False))
def test_made_rooms(made, shuffled, choose):
    events = list(made.events)
    if shuffled:
        choose.shuffle(events)
    assert_chunks_make_no_difference(events, [1, 3, 7])


@settings(deadline=None, max_examples=examples(40))
@given(forked_rooms(verdicts=False), st.sets(st.integers(0, 20), max_size=3))
def test_judged_rooms_with_events_missing(made, missing):
    assert_chunks_make_no_difference([e for number, e in enumerate(made.events) if number not in missing], [1, 3, 7])
