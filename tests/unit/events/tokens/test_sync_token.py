"""The one token over all streams: text, bounds, streams that join and go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.tokens.sync_token import LONGEST_TOKEN, MOST_STREAMS, SyncToken
from streams.core.tokens import VectorToken
from streams.errors import TokenError

NAMES = {"events": {1: "north", 2: "south"}, "receipts": {}, "typing": {7: "west"}}
NUMBERS = {stream: {name: number for number, name in names.items()} for stream, names in NAMES.items()}
VECTORS = st.builds(
    VectorToken.of, st.integers(0, 99), st.dictionaries(st.sampled_from(["north", "south"]), st.integers(0, 120))
)
TOKENS = st.builds(SyncToken, st.dictionaries(st.sampled_from(["events", "receipts", "typing"]), VECTORS))


def parse(text):
    return SyncToken.parse(text, NAMES.get)


def text(token):
    return token.text(NUMBERS.__getitem__)


def token(**parts):
    return SyncToken({stream: VectorToken(part) if isinstance(part, int) else part for stream, part in parts.items()})


def test_text_names_streams_in_order_and_the_epoch_last():
    written = SyncToken({"receipts": VectorToken(31), "events": VectorToken(5, {"north": 7})}, "k3xw9")
    assert text(written) == "events-m5~1.7,receipts-31@k3xw9"
    assert parse("events-m5~1.7,receipts-31@k3xw9") == written


def test_text_without_epoch_and_entries_is_plain():
    assert text(token(events=5)) == "events-5"
    assert parse("events-5") == token(events=5)


def test_writing_a_plain_part_asks_nobody_for_numbers():
    assert token(events=5).text({}.__getitem__) == "events-5"


@given(st.dictionaries(st.sampled_from(["events"]), VECTORS, min_size=1))
def test_what_is_written_is_read_again(parts):
    assert parse(text(SyncToken(parts, "abc"))) == SyncToken(parts, "abc")


@pytest.mark.parametrize(
    "bad",
    [
        *("", " ", "5", "events", "events-", "-5", "events-x", "events--5", "events-5,", ",events-5"),
        *("Events-5", "events-5@", "events-5@a b", "events-5@A", "events-5@a@b", "events-5,events-6"),
        *("events-m5~9.7", "events-m5~1.5", "events-m5~1", "events-5\n", "events-5@abc\n", "événements-5"),
        *(
            "events-99999999999999999999",
            "typing-5!",
            "typing-5!x",
            "typing-5!3!3",
            "x" * (LONGEST_TOKEN + 1),
            None,
            5,
            b"events-5",
        ),
        ",".join(f"s{number}-1" for number in range(MOST_STREAMS + 1)),
    ],
)
def test_what_is_no_token_is_refused(bad):
    with pytest.raises(TokenError):
        parse(bad)


def test_a_token_of_the_largest_size_is_read():
    largest = ",".join(f"s{number}-1" for number in range(MOST_STREAMS))
    assert len(SyncToken.parse(largest, lambda stream: {}).parts) == MOST_STREAMS


# --- streams that join and go -----------------------------------------------------------------------------------------


def test_a_stream_that_joined_later_has_no_position_in_an_old_token():
    assert token(events=5).of("receipts") is None
    assert token(events=5).of("events") == VectorToken(5)


def test_the_next_token_has_the_stream_that_joined():
    assert token(events=5).followed_by(token(events=6, receipts=2)) == token(events=6, receipts=2)


def test_a_part_of_an_unknown_stream_is_carried_along():
    since = parse("events-5,knocks-m3~4.9@abc")
    assert since.of("knocks") is None
    following = since.followed_by(SyncToken({"events": VectorToken(8)}, "abc"))
    assert text(following) == "events-8,knocks-m3~4.9@abc"


def test_a_carried_part_gives_way_to_one_that_is_known():
    since = parse("events-5,knocks-m3~4.9")
    assert since.followed_by(token(events=8, knocks=11)) == token(events=8, knocks=11)
    assert since.replace(knocks=VectorToken(4)).carried == {}


def test_a_stream_that_this_answer_left_out_keeps_its_position():
    assert token(events=5, receipts=3).followed_by(token(events=6)) == token(events=6, receipts=3)


def test_a_generation_stands_behind_the_position():
    since = parse("events-5,typing-m5~7.9!3@abc")
    assert since.generations == {"typing": 3}
    assert text(since) == "events-5,typing-m5~7.9!3@abc"


def test_a_stream_that_began_anew_counts_as_not_in_the_token():
    since, now = parse("events-5,typing-57!3"), parse("events-9,typing-2!4")
    assert since.known_to(now) == token(events=5)
    assert since.known_to(parse("events-9,typing-60!3")) == since
    assert text(since.known_to(now).followed_by(now)) == "events-9,typing-2!4"


def test_a_carried_part_keeps_its_generation():
    assert text(parse("ghosts-57!3").followed_by(token(events=1))) == "events-1,ghosts-57!3"


# --- comparing, bounding ----------------------------------------------------------------------------------------------


def test_ahead_of_names_the_streams_to_wait_for():
    since = token(events=VectorToken(5, {"north": 9}), receipts=3)
    assert since.ahead_of(token(events=6, receipts=3)) == {"events": VectorToken(5, {"north": 9})}
    assert since.ahead_of(token(events=9, receipts=3)) == {}


def test_bounding_takes_back_only_what_is_ahead():
    since = token(events=VectorToken(5, {"north": 9}), receipts=3)
    assert since.bounded_by(token(events=6, receipts=8)) == token(events=VectorToken(5, {"north": 6}), receipts=3)


def test_a_made_up_future_is_bounded():
    assert token(events=10**18).bounded_by(token(events=6)) == token(events=6)


def test_an_old_token_lies_before_one_with_more_streams():
    assert token(events=5).before_or_equal(token(events=5, receipts=1))
    assert not token(events=5, receipts=1).before_or_equal(token(events=5))


@given(TOKENS, TOKENS)
def test_bounded_tokens_are_covered(since, now):
    bounded = since.bounded_by(now)
    assert bounded.ahead_of(now) == {}
    assert bounded.before_or_equal(since)


@given(TOKENS, TOKENS)
def test_bounding_changes_nothing_that_is_covered(since, now):
    merged = since.merge(now)
    assert since.bounded_by(merged) == since
    assert since.before_or_equal(merged)
    assert now.before_or_equal(merged)


@given(VECTORS, VECTORS, st.sampled_from(["north", "south", "other"]), st.integers(0, 130))
def test_a_meeting_covers_what_both_cover(one, other, writer, position):
    both = one.covers(writer, position) and other.covers(writer, position)
    assert one.intersect(other).covers(writer, position) == both


def test_equal_tokens_have_equal_hashes():
    assert hash(parse("events-m5~1.7,x-1@a")) == hash(parse("x-1,events-m5~1.7@a"))
