"""What the broadcaster says, from positions and rows alone."""

from dataclasses import dataclass
from typing import Any

import pytest

from streams.replication.protocol.announcer import Announce, Announcer, Move, Read, encode_rows


@dataclass
class At:
    position: int
    state: str = "active"
    generation: int = 0


@dataclass
class Row:
    token: int
    row: Any


def announcer(**writers: At) -> Announcer:
    made = Announcer(["s"], stand_in="master")
    made.start({"s": writers})
    return made


def do(made: Announcer, now: float = 10.0, **writers: At) -> list[Any]:
    """One round with all its steps carried out."""
    steps = made.steps({"s": writers}, now)
    for step in steps:
        position = {Announce: "position", Read: "upto", Move: "new"}[type(step)]
        made.record_sent("s", step.writer, getattr(step, position))
    return steps


def test_nothing_is_said_of_what_did_not_move():
    assert do(announcer(a=At(5)), a=At(5)) == []


def test_a_moved_writer_is_read():
    assert do(announcer(a=At(5), b=At(7)), a=At(9), b=At(7)) == [Read("s", "a", 5, 9)]


def test_a_new_writer_is_announced_before_anything_else_at_the_old_linear_position():
    steps = do(announcer(b=At(5)), b=At(9), a=At(8))
    assert steps[0] == Announce("s", "a", 5)
    assert set(steps[1:]) == {Read("s", "b", 5, 9), Read("s", "a", 5, 8)}


def test_a_new_writer_below_the_linear_position_is_announced_where_it_is():
    assert do(announcer(b=At(12)), b=At(12), a=At(10)) == [Announce("s", "a", 10)]


def test_a_retired_writer_goes_with_the_linear_position_after_all_rows():
    made = announcer(gone=At(3, "retired"), z=At(5))
    assert do(made, gone=At(3, "retired"), z=At(9)) == [Read("s", "z", 5, 9), Move("s", "gone", 5, 9)]


def test_a_retired_writers_last_rows_are_read_first():
    made = announcer(a=At(3), z=At(5))
    steps = do(made, a=At(7, "retired"), z=At(9))
    assert steps == [Read("s", "a", 3, 7), Read("s", "z", 5, 9), Move("s", "a", 7, 9)]


def test_moving_the_retired_is_put_together():
    made = announcer(gone=At(3, "retired"), z=At(5))
    do(made, 10.0, gone=At(3, "retired"), z=At(9))
    assert do(made, 10.05, gone=At(3, "retired"), z=At(11)) == [Read("s", "z", 9, 11)]
    assert made.wants_round_at == pytest.approx(10.1)
    assert do(made, 10.1, gone=At(3, "retired"), z=At(11)) == [Move("s", "gone", 9, 11)]


def test_thousands_of_retired_writers_are_moved_at_a_bounded_rate():
    """Ten times a second each, and a follower would get 50,000 lines a second about writers that are gone."""
    gone = {f"w{number}": At(3, "retired") for number in range(5_000)}
    made = announcer(**gone, z=At(5))
    lines = 0
    for tenth in range(100):
        lines += len(do(made, 10 + tenth / 10, **gone, z=At(6 + tenth)))
    assert lines == 100 + 2 * 5_000
    assert made.wants_round_at == pytest.approx(20)


def test_a_writer_whose_row_is_gone_holds_nobody_back():
    assert do(announcer(a=At(3), b=At(5)), b=At(8)) == [Read("s", "b", 5, 8), Move("s", "a", 3, 8)]


def test_a_stream_without_writers_shows_a_stand_in():
    made = announcer()
    assert list(made.positions()) == [("s", "master", 1)]
    assert do(made, w=At(1)) == [Announce("s", "w", 1)]
    assert do(made, 20.0, w=At(4)) == [Read("s", "w", 1, 4), Move("s", "master", 1, 4)]


def test_the_stand_in_becomes_a_writer_like_any_other():
    assert do(announcer(), master=At(6)) == [Read("s", "master", 1, 6)]


def test_a_position_that_fell_is_not_said():
    assert do(announcer(a=At(9)), a=At(4)) == []


def test_what_was_not_carried_out_comes_again():
    made = announcer(a=At(5))
    made.steps({"s": {"a": At(9)}}, 1.0)
    made.record_sent("s", "a", 7)
    assert made.steps({"s": {"a": At(9)}}, 2.0) == [Read("s", "a", 7, 9)]


def test_with_nobody_listening_positions_are_followed_without_a_word():
    made = announcer(a=At(5), old=At(2, "retired"))
    made.jump_to({"s": {"a": At(50), "old": At(2, "retired"), "new": At(60)}})
    assert list(made.positions()) == [("s", "a", 50), ("s", "new", 60), ("s", "old", 50)]


def test_streams_are_announced_in_the_order_of_the_table():
    made = Announcer(["z", "a"], stand_in="m")
    made.start({})
    assert [stream for stream, _, _ in made.positions()] == ["z", "a"]


# --- lines --------------------------------------------------------------------------------------------------------

STEP = Read("s", "w", 5, 9)


def lines(rows, reached=9, **limits):
    encoded = encode_rows(STEP, rows, reached, **limits)
    assert encoded.count == encoded.data.count(b"\n")
    return encoded.data.decode().splitlines()


def test_a_row_of_its_own_has_its_token():
    assert lines([Row(9, ["x"])]) == ['RDATA s w 9 ["x"]']


def test_all_but_the_last_row_of_a_fact_are_batch():
    assert lines([Row(8, [1]), Row(8, [2]), Row(8, [3]), Row(9, [4])]) == [
        "RDATA s w batch [1]",
        "RDATA s w batch [2]",
        "RDATA s w 8 [3]",
        "RDATA s w 9 [4]",
    ]


def test_no_rows_are_a_position_from_the_last_one():
    assert lines([]) == ["POSITION s w 5 9"]


def test_reaching_beyond_the_last_row_is_a_position_from_it():
    assert lines([Row(7, [])]) == ["RDATA s w 7 []", "POSITION s w 7 9"]


def test_a_cut_read_says_only_how_far_it_got():
    assert lines([Row(7, [])], reached=7) == ["RDATA s w 7 []"]


def test_a_row_too_long_for_a_line_makes_followers_fetch_its_fact():
    rows = [Row(7, [1]), Row(8, ["small"]), Row(8, ["x" * 100]), Row(9, [2])]
    assert lines(rows, limit=60) == ["RDATA s w 7 [1]", "POSITION s w 8 8", "RDATA s w 9 [2]"]


def test_a_line_of_exactly_the_limit_is_sent():
    size = len(b'RDATA s w 9 [""]')
    assert lines([Row(9, ["x" * (40 - size)])], limit=40) == [f'RDATA s w 9 ["{"x" * (40 - size)}"]']


def test_long_rows_are_counted():
    encoded = encode_rows(STEP, [Row(8, ["x" * 100]), Row(9, [])], 9, limit=60)
    assert (encoded.oversize, encoded.facts) == (1, 2)


def test_rows_are_ascii():
    assert lines([Row(9, ["\u2615"])]) == ['RDATA s w 9 ["\\u2615"]']


def two_streams() -> Announcer:
    made = Announcer(["s", "t"], stand_in="master")
    made.start({"s": {"a": At(5)}, "t": {"a": At(5)}})
    return made


def test_a_round_of_some_streams_says_nothing_of_the_others():
    made = two_streams()
    assert made.steps({"s": {"a": At(9)}}, 10.0, {"s"}) == [Read("s", "a", 5, 9)]


def test_a_round_of_some_streams_forgets_no_due_move_of_the_others():
    made = Announcer(["s", "t"], stand_in="master")
    made.start({"s": {"gone": At(5, "retired"), "a": At(5)}, "t": {"a": At(5)}})
    do_all(made, {"s": {"gone": At(5, "retired"), "a": At(7)}, "t": {"a": At(5)}}, 10.0)
    do_all(made, {"s": {"gone": At(5, "retired"), "a": At(9)}, "t": {"a": At(5)}}, 10.01)
    due = made.wants_round_at
    assert 10.01 < due <= 10.1
    made.steps({"t": {"a": At(8)}}, 10.02, {"t"})
    assert made.wants_round_at == due


def do_all(made: Announcer, snapshot: dict[str, dict[str, At]], now: float) -> None:
    for step in made.steps(snapshot, now):
        position = {Announce: "position", Read: "upto", Move: "new"}[type(step)]
        made.record_sent(step.stream, step.writer, getattr(step, position))


def one_name(**writers: At) -> Announcer:
    made = Announcer(["s"], stand_in="web-1", announced_as={"s": "master"})
    made.start({"s": writers})
    return made


def test_a_stream_under_one_name_goes_no_further_than_its_slowest_writer():
    made = one_name(a=At(5), b=At(7))
    assert list(made.positions()) == [("s", "master", 5)]
    assert do(made, a=At(9), b=At(7)) == [Read("s", "master", 5, 7)]
    assert do(made, 20.0, a=At(9), b=At(9, "retired")) == [Read("s", "master", 7, 9)]


def test_a_writer_that_comes_to_a_stream_under_one_name_is_not_named():
    made = one_name(a=At(5))
    assert do(made, a=At(9), b=At(5)) == []
    assert do(made, 20.0, a=At(9), b=At(8)) == [Read("s", "master", 5, 8)]


def test_an_empty_stream_under_one_name_is_told_under_it():
    assert list(one_name().positions()) == [("s", "master", 1)]


# --- streams in memory --------------------------------------------------------------------------------------------


def in_memory(**writers: At) -> Announcer:
    made = Announcer(["s"], stand_in="master", in_memory=["s"])
    made.start({"s": writers})
    return made


def test_empty_stream_in_memory_is_at_zero():
    assert list(in_memory().positions()) == [("s", "master", 0)]


def test_stream_that_began_anew_is_told_before_its_rows():
    made = in_memory(a=At(5))
    assert do(made, a=At(2, generation=1)) == [Announce("s", "a", 0), Read("s", "a", 0, 2)]
    assert do(made, a=At(2, generation=1)) == []


def test_stream_that_began_anew_and_went_further_is_told_too():
    assert do(in_memory(a=At(5)), a=At(7, generation=1)) == [Announce("s", "a", 0), Read("s", "a", 0, 7)]


def test_new_beginning_is_told_again_when_the_round_failed():
    made = in_memory(a=At(5), b=At(5))
    made.steps({"s": {"a": At(1, generation=1), "b": At(0, "retired", generation=1)}}, 10.0)
    steps = do(made, a=At(1, generation=1), b=At(0, "retired", generation=1))
    assert steps[:2] == [Announce("s", "a", 0), Announce("s", "b", 0)]
    assert Read("s", "a", 0, 1) in steps


def test_new_beginning_that_nobody_hears_is_where_the_next_client_starts():
    made = in_memory(a=At(5))
    made.jump_to({"s": {"a": At(3, generation=1)}})
    assert list(made.positions()) == [("s", "a", 3)]
    assert do(made, a=At(4, generation=1)) == [Read("s", "a", 3, 4)]


def test_lower_position_of_the_same_generation_is_no_new_beginning():
    assert do(in_memory(a=At(5, generation=1)), a=At(4, generation=1)) == []
