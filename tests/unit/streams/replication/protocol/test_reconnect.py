"""Waiting times of a follower between its attempts."""

from __future__ import annotations

import pytest

from streams.replication.protocol.reconnect import Backoff, Outcome


def waits(*attempts: tuple[Outcome, float]) -> list[float]:
    backoff = Backoff()
    return [backoff.seconds_after(outcome, lasted) for outcome, lasted in attempts]


def test_a_server_that_is_away_is_tried_up_to_once_a_second():
    assert waits(*[(Outcome.UNREACHABLE, 0.0)] * 7) == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0])


def test_a_server_that_accepts_and_closes_is_left_alone_for_longer_and_longer():
    found = waits(*[(Outcome.USELESS, 0.0)] * 12)
    assert found == sorted(found)
    assert found[-1] == 30.0
    assert sum(found) > 60


def test_a_good_connection_is_taken_up_again_at_once():
    assert waits((Outcome.UNREACHABLE, 0), (Outcome.UNREACHABLE, 0), (Outcome.USED, 60.0)) == pytest.approx(
        [0.1, 0.2, 0.1]
    )


def test_connections_that_break_again_and_again_slow_down():
    assert waits(*[(Outcome.USED, 0.1)] * 6)[-1] == 1.0


def test_a_server_that_speaks_again_is_not_punished_for_its_past():
    *_, last, again = waits(*[(Outcome.USELESS, 0.0)] * 12, (Outcome.USED, 0.1), (Outcome.USED, 10.0))
    assert (last, again) == (1.0, 0.1)
