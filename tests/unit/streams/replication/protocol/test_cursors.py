"""What a follower makes of RDATA and POSITION."""

import pytest

from streams.replication.errors import TooManyWriters
from streams.replication.protocol import cursors as cursors_module
from streams.replication.protocol.commands import parse_line
from streams.replication.protocol.cursors import Cursors, Fact, Ignored, MissingRange, Moved, Reset


def at(linear=10, **positions) -> Cursors:
    """Cursors of the stream ``s`` with known writers, on a fresh connection."""
    cursors = Cursors(can_reset=lambda stream: stream == "typing")
    cursors.start("s", linear, positions or {"w": linear})
    cursors.begin_connection()
    return cursors


def take(cursors: Cursors, *lines: str):
    """What the last of the lines means."""
    return [cursors.apply(parse_line(line)) for line in lines][-1]


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ("POSITION s w 10 10", Moved("s", "w", 10)),
        ("POSITION s w 10 15", Moved("s", "w", 15)),
        ("POSITION s w 5 15", Moved("s", "w", 15)),
        ("POSITION s w 12 15", MissingRange("s", "w", 10, 15)),
        ("POSITION s w 15 15", MissingRange("s", "w", 10, 15)),
        ("POSITION s w 5 5", None),
    ],
)
def test_position_against_the_cursor(line, event):
    assert take(at(10), line) == event


def test_a_gap_moves_nothing_until_it_was_fetched():
    cursors = at(10)
    take(cursors, "POSITION s w 15 15")
    assert cursors.positions() == {"s": {"w": 10}}
    cursors.reached("s", "w", 15)
    assert cursors.positions() == {"s": {"w": 15}}


def test_rows_before_the_first_position_of_the_connection_are_dropped():
    cursors = at(10)
    assert take(cursors, "RDATA s w 11 []") is None
    assert cursors.ignored[Ignored.BEFORE_POSITION] == 1


def test_rows_of_a_writer_without_a_position_are_dropped():
    assert take(at(10), "POSITION s w 10 10", "RDATA s other 11 []") is None


def test_a_row_is_a_fact():
    cursors = at(10)
    assert take(cursors, "POSITION s w 10 10", "RDATA s w 12 [1]") == Fact("s", "w", 12, ([1],))
    assert cursors.positions() == {"s": {"w": 12}}


def test_known_tokens_are_dropped_with_their_batch():
    cursors = at(10)
    assert take(cursors, "POSITION s w 10 10", "RDATA s w batch [1]", "RDATA s w 10 [2]") is None
    assert take(cursors, "RDATA s w 11 [3]") == Fact("s", "w", 11, ([3],))


def test_batch_rows_come_with_the_token():
    lines = ("POSITION s w 10 10", "RDATA s w batch [1]", "RDATA s w batch [2]", "RDATA s w 11 [3]")
    assert take(at(10), *lines) == Fact("s", "w", 11, ([1], [2], [3]))


def test_batches_of_two_writers_do_not_mix():
    lines = ("POSITION s a 10 10", "POSITION s b 10 10", "RDATA s a batch [1]", "RDATA s b 11 [2]", "RDATA s a 12 [3]")
    assert take(at(10, a=10, b=10), *lines) == Fact("s", "a", 12, ([1], [3]))


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(cursors_module, "BATCHES_LIMIT_BYTES", 1_000)


def test_a_batch_that_is_too_large_to_keep_is_a_gap(small_batches):
    cursors = at(10)
    take(cursors, "POSITION s w 10 10", *['RDATA s w batch ["0123456789"]'] * 20)
    assert take(cursors, "RDATA s w 12 [2]") == MissingRange("s", "w", 10, 12)
    cursors.reached("s", "w", 12)
    assert take(cursors, "RDATA s w batch [3]", "RDATA s w 13 [4]") == Fact("s", "w", 13, ([3], [4]))


def test_batches_of_all_writers_share_the_limit(small_batches):
    cursors = at(10, **{f"w{n}": 10 for n in range(20)})
    for n in range(20):
        take(cursors, f"POSITION s w{n} 10 10", f'RDATA s w{n} batch ["a", {{"b": "c"}}]')
    assert isinstance(take(cursors, "RDATA s w0 11 [1]"), Fact)
    assert isinstance(take(cursors, "RDATA s w19 12 [1]"), MissingRange)


@pytest.mark.parametrize("end", ["RDATA s w {} [2]", "POSITION s w {} {}"])
def test_batches_that_ended_no_longer_count(small_batches, end):
    cursors = at(10)
    take(cursors, "POSITION s w 10 10")
    for token in range(11, 60):
        take(cursors, "RDATA s w batch [1]", end.format(token, token))
        cursors.reached("s", "w", token)
    cursors.begin_connection()
    assert isinstance(take(cursors, "POSITION s w 59 59", "RDATA s w batch [1]", "RDATA s w 70 [2]"), Fact)


def test_a_server_with_names_without_end_is_given_up(monkeypatch):
    monkeypatch.setattr(cursors_module, "NAMES_LIMIT", 50)
    cursors = Cursors()
    for n in range(25):
        take(cursors, f"POSITION s{n} w 1 1", f"POSITION s w{n} 1 1", f"POSITION s w{n} 2 2")
    with pytest.raises(TooManyWriters, match="more than 50"):
        take(cursors, "POSITION s w-new 1 1")


def test_a_gone_writer_that_is_named_again_and_again_counts_once(monkeypatch):
    monkeypatch.setattr(cursors_module, "NAMES_LIMIT", 5)
    cursors = at(10)
    for _ in range(20):
        cursors.begin_connection()
        take(cursors, "POSITION s w 10 10", "POSITION s gone 10 10")
        cursors.learn("s", ["w"])
    assert cursors.positions() == {"s": {"w": 10}}


def test_a_position_throws_the_collected_batch_away():
    lines = ("POSITION s w 10 10", "RDATA s w batch [1]", "POSITION s w 11 11")
    cursors = at(10)
    assert take(cursors, *lines) == MissingRange("s", "w", 10, 11)
    cursors.reached("s", "w", 11)
    assert take(cursors, "RDATA s w 12 [2]") == Fact("s", "w", 12, ([2],))


def test_a_new_connection_voids_batches_and_positions():
    cursors = at(10)
    take(cursors, "POSITION s w 10 10", "RDATA s w batch [1]")
    cursors.begin_connection()
    assert take(cursors, "RDATA s w 11 [2]") is None
    assert take(cursors, "POSITION s w 10 10", "RDATA s w 11 [2]") == Fact("s", "w", 11, ([2],))


def test_facts_missed_between_connections_are_a_gap():
    cursors = at(10)
    take(cursors, "POSITION s w 10 10", "RDATA s w 11 []")
    cursors.begin_connection()
    assert take(cursors, "POSITION s w 20 20") == MissingRange("s", "w", 11, 20)


def test_own_echo_is_ignored():
    cursors = Cursors(own_instance="me")
    assert take(cursors, "POSITION s me 10 10") is None
    assert cursors.ignored[Ignored.OWN_ECHO] == 1


def test_unwanted_streams_are_ignored():
    cursors = Cursors(streams=["s"])
    assert take(cursors, "POSITION t w 10 10") is None
    assert cursors.ignored[Ignored.OTHER_STREAM] == 1


def test_a_stream_in_memory_that_goes_back_was_reset():
    cursors = at()
    take(cursors, "POSITION typing m 8 8")
    cursors.begin_connection()
    assert take(cursors, "POSITION typing m 0 0") == Reset("typing", "m", 0)
    assert take(cursors, "RDATA typing m 1 []") == Fact("typing", "m", 1, ([],))


# --- several writers ----------------------------------------------------------------------------------------------


def typing_at(linear: int, *writers: str) -> Cursors:
    cursors = Cursors(can_reset=lambda stream: stream == "typing")
    cursors.start("typing", linear, dict.fromkeys(writers, linear))
    cursors.begin_connection()
    return cursors


def test_a_stream_in_memory_that_began_anew_at_another_writer_was_reset():
    """It moved to another worker while we were away: its tokens begin again, far below ours."""
    cursors = typing_at(100, "w")
    assert take(cursors, "POSITION typing other 3 3") == Reset("typing", "other", 3)
    assert take(cursors, "RDATA typing other 4 [1]") == Fact("typing", "other", 4, ([1],))


def test_a_writer_that_joined_a_stream_after_it_began_anew_starts_at_its_beginning():
    cursors = typing_at(100, "w")
    assert take(cursors, "POSITION typing w 3 3", "POSITION typing x 5 5") == MissingRange("typing", "x", 0, 5)


def test_a_writer_that_joined_where_another_holds_the_stream_back_is_no_reset():
    cursors = typing_at(100, "v", "w")
    take(
        cursors,
        "POSITION typing v 100 100",
        "POSITION typing w 100 100",
        *[f"RDATA typing w {n} []" for n in (101, 102)],
    )
    assert cursors.linear("typing") == 102
    cursors.begin_connection()
    assert take(cursors, "POSITION typing a 100 100") is None


def test_an_unknown_writer_below_us_is_no_reset_where_tokens_do_not_begin_again_or_when_it_joins_later():
    assert take(at(100, w=100), "POSITION s x 3 3") is None
    assert (
        take(typing_at(100, "w"), "POSITION typing w 100 100", "RDATA typing w 101 []", "POSITION typing x 99 99")
        is None
    )


def test_an_unknown_stream_starts_where_the_run_of_positions_says():
    cursors = Cursors()
    take(cursors, "POSITION s a 100 100", "POSITION s b 90 90", "POSITION s c 95 95")
    assert cursors.positions() == {"s": {"a": 100, "b": 90, "c": 95}}
    assert cursors.linear("s") == 90


def test_a_stream_started_by_a_run_does_not_start_again_after_a_reconnection():
    cursors = Cursors()
    take(cursors, "POSITION s a 100 100")
    cursors.begin_connection()
    assert take(cursors, "POSITION s a 120 120") == MissingRange("s", "a", 100, 120)


def test_a_writer_that_came_while_we_were_away_starts_where_we_were():
    cursors = at(10, a=10)
    assert take(cursors, "POSITION s a 10 30", "POSITION s b 30 30") == MissingRange("s", "b", 10, 30)


def test_a_writer_that_joins_later_starts_at_our_linear_position():
    cursors = at(10, a=10)
    take(cursors, "POSITION s a 10 10", "RDATA s a 14 []")
    assert take(cursors, "POSITION s b 10 10") is None
    assert take(cursors, "RDATA s b 15 []") == Fact("s", "b", 15, ([],))


def test_a_writer_that_is_slow_to_name_itself_is_heard_from_where_it_is():
    """Over Redis each process answers in its own time: what it had pending below the others comes after that."""
    cursors = Cursors()
    take(cursors, "POSITION s a 100 100", "RDATA s a 101 []")
    assert take(cursors, "POSITION s slow 90 90") is None
    assert take(cursors, "RDATA s slow 95 [1]") == Fact("s", "slow", 95, ([1],))
    assert take(cursors, "RDATA s slow 95 [1]", "RDATA s slow 102 []") == Fact("s", "slow", 102, ([],))
    assert cursors.linear("s") == 102


def test_the_linear_position_is_the_minimum():
    cursors = at(10, a=10, b=10)
    take(cursors, "POSITION s a 10 40", "POSITION s b 10 30")
    cursors.end_run()
    assert cursors.linear("s") == 30


def test_the_linear_position_runs_on_over_received_facts():
    cursors = at(10, a=10, b=10)
    take(cursors, "POSITION s a 10 10", "POSITION s b 10 10", "RDATA s a 12 []", "RDATA s b 11 []")
    assert cursors.linear("s") == 12


def test_the_linear_position_never_runs_over_an_announcement():
    """An idle writer may claim 11 before 11, another one's fact, has come to us."""
    cursors = at(10, a=10, b=10)
    take(cursors, "POSITION s a 10 11", "POSITION s b 10 10")
    assert cursors.linear("s") == 10


def test_learning_places_writers_nobody_told_of():
    cursors = at(10, a=10)
    cursors.learn("s", ["a", "b"])
    take(cursors, "POSITION s a 10 40")
    assert cursors.linear("s") == 10


def test_learning_lets_go_of_writers_that_are_gone():
    cursors = at(10, a=20, gone=10)
    cursors.learn("s", ["a"])
    assert cursors.linear("s") == 20


def test_positions_are_never_below_the_linear_position():
    cursors = at(30, a=10)
    assert cursors.positions() == {"s": {"a": 30}}


def telling(*lines: str) -> Cursors:
    """On a new connection, cursors that know the stream up to 1 hear these lines."""
    cursors = Cursors()
    cursors.start("s", 1, {})
    cursors.begin_connection()
    for line in lines:
        event = cursors.apply(parse_line(line))
        if isinstance(event, MissingRange):
            cursors.reached(event.stream, event.instance, event.upto)
    return cursors


def test_linear_position_waits_while_more_writers_may_be_named():
    """Else whoever fetched the first writer's facts would claim those of the second."""
    assert telling("POSITION s north 9 9").linear("s") == 1
    assert telling("POSITION s north 9 9").positions() == {"s": {"north": 9}}


@pytest.mark.parametrize("other", ["POSITION t north 5 5", "RDATA s north 10 []", "POSITION t north 1 1"])
def test_another_command_ends_the_waiting(other):
    cursors = telling("POSITION s north 9 9", "POSITION s south 7 7", other)
    assert cursors.linear("s") == 7
    assert cursors.settled() == {"s"}
    assert cursors.settled() == set()


def test_any_other_command_ends_the_waiting_when_told():
    cursors = telling("POSITION s north 9 9")
    cursors.end_run()
    assert cursors.linear("s") == 9


def test_whoever_has_learned_the_writers_does_not_wait():
    cursors = Cursors()
    cursors.start("s", 1, {"north": 1})
    cursors.begin_connection()
    cursors.learn("s", ["north"])
    cursors.apply(parse_line("POSITION s north 1 9"))
    assert cursors.linear("s") == 9
