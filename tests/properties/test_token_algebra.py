"""The algebra of tokens, as laws over all tokens and over small sites of facts."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from streams.core.tokens import RoomToken, VectorToken
from tests.oracles.token_ranges import in_range

NAMES = {1: "north", 2: "south", 3: "east"}
NUMBERS = {name: number for number, name in NAMES.items()}
WRITERS = st.sampled_from(sorted(NUMBERS))
POSITIONS = st.integers(0, 30)
TOKENS = st.builds(VectorToken.of, POSITIONS, st.dictionaries(WRITERS, POSITIONS))
FACTS = st.lists(WRITERS, min_size=0, max_size=30).map(lambda writers: list(enumerate(writers, start=1)))


@given(TOKENS)
def test_text_comes_back(token):
    assert VectorToken.parse(token.text(NUMBERS), NAMES) == token
    assert RoomToken.parse(RoomToken(token).text(NUMBERS), NAMES) == RoomToken(token)


@given(st.integers(0, 100), st.integers(-100, 100))
def test_historic_text_comes_back(topological, stream):
    token = RoomToken(VectorToken(stream), topological)
    assert RoomToken.parse(token.text(NUMBERS), NAMES) == token


@given(TOKENS, TOKENS)
def test_merge_is_the_smallest_token_that_covers_both(one, other):
    both = one.merge(other)
    assert one.before_or_equal(both)
    assert other.before_or_equal(both)
    assert both == other.merge(one)
    for writer in [*NUMBERS, None]:
        assert both.position_of(writer) == max(one.position_of(writer), other.position_of(writer), both.base)


@given(TOKENS, TOKENS, TOKENS)
def test_merge_does_not_care_for_order_and_repetition(one, two, three):
    assert one.merge(two).merge(three) == one.merge(two.merge(three))
    assert one.merge(one) == one


@given(TOKENS, TOKENS, TOKENS)
def test_before_or_equal_is_a_partial_order(one, two, three):
    assert one.before_or_equal(one)
    if one.before_or_equal(two) and two.before_or_equal(one):
        assert one == two
    if one.before_or_equal(two) and two.before_or_equal(three):
        assert one.before_or_equal(three)


@given(TOKENS, POSITIONS)
def test_bound_covers_nothing_above_and_all_below(token, limit):
    bounded = token.bounded_by(limit)
    assert bounded.highest <= limit
    assert bounded.before_or_equal(token)
    for writer in NUMBERS:
        assert bounded.position_of(writer) == min(token.position_of(writer), limit)


@given(TOKENS, TOKENS, WRITERS, POSITIONS)
def test_in_range_is_covered_by_high_and_not_by_low(low, high, writer, position):
    assert in_range(low, high, writer, position) == (high.covers(writer, position) and not low.covers(writer, position))


@given(TOKENS, TOKENS, FACTS, st.integers(1, 5))
def test_reading_in_parts_sees_every_fact_of_the_range_once(low, high, facts, limit):
    high = low.merge(high)
    seen, at = [], low
    for _ in range(100):
        part = [fact for fact in facts if in_range(at, high, fact[1], fact[0])][:limit]
        if not part:
            break
        seen += part
        at = at.after_partial_read(high, part[-1][0])
        assert at.before_or_equal(high)
    assert sorted(seen) == [fact for fact in facts if in_range(low, high, fact[1], fact[0])]


@given(POSITIONS, st.dictionaries(WRITERS, POSITIONS))
def test_a_token_of_positions_names_those_ahead_only(linear, positions):
    token = VectorToken.of(linear, positions)
    assert all(position > linear for position in token.entries.values())
    for writer, position in positions.items():
        assert token.position_of(writer) == max(position, linear)


@given(st.text(max_size=30))
def test_no_text_breaks_the_reader(text):
    try:
        token = RoomToken.parse(text, NAMES)
    except ValueError:
        return
    assume(token.topological is None)
    assert RoomToken.parse(token.text(NUMBERS), NAMES) == token
