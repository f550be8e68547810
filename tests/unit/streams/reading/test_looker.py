"""When the looker looks, and what it hears."""

from __future__ import annotations

import time

import pytest

from streams.reading import looker
from streams.reading.hints import HINT_GAP_SECONDS, answer_to
from streams.reading.looker import SAFETY_SECONDS, Looker, Pace


@pytest.mark.parametrize("took", [0.0, 0.0007, 0.004, 0.03])
@pytest.mark.parametrize("news", [True, False])
def test_the_last_of_the_looks_begins_when_no_facts_without_a_hint_can_come(took: float, news: bool):
    pace, begun, looks = Pace(), 0.0, 0
    while (pause := pace.next_pause(took, HINT_GAP_SECONDS - begun, news=news)) < SAFETY_SECONDS:
        begun, looks = begun + took + pause, looks + 1
        assert pause >= Pace.QUICK_SECONDS
    assert begun >= HINT_GAP_SECONDS
    assert looks <= (8 if news else 4)


def test_nothing_is_looked_at_while_nothing_is_expected():
    assert Pace().next_pause(0.0, -1.0, news=True) == SAFETY_SECONDS


def test_while_looks_find_news_the_next_comes_at_once():
    pace = Pace()
    assert {pace.next_pause(0.0, HINT_GAP_SECONDS, news=True) for _ in range(10)} == {Pace.QUICK_SECONDS}


def test_looks_that_take_long_are_made_less_often():
    assert Pace().next_pause(0.1, HINT_GAP_SECONDS, news=True) >= 0.3


def test_looks_go_on_only_after_a_hint_that_says_that_more_follows():
    one = Looker("default")
    one.received([(1, "?a")])
    assert one._expected_until < time.monotonic()
    one.received([(1, "?b+")])
    assert one._expected_until > time.monotonic()


def test_an_answer_answers_the_hint_and_all_before_it():
    one = Looker("default")
    one.received([(1, "?a"), (1, "?b"), (2, "?c")])
    one.received([(9, "orders"), (9, answer_to("b"))])
    assert [*one._unanswered] == ["c"]
    one.received([(9, answer_to("unknown"))])
    assert [*one._unanswered] == ["c"]
    one.received([(9, answer_to("c"))])
    assert not one._unanswered


def test_only_one_listener_of_a_process_is_its_ear(monkeypatch):
    """A second one might hear a hint after the first has heard the answer to it."""
    first, second = object(), object()
    one = Looker("x")
    monkeypatch.setitem(looker._lookers, "x", one)
    monkeypatch.setitem(looker._ears, "x", [first, second])
    looker.received("x", first, [(1, "?a"), (9, answer_to("a"))])
    looker.received("x", second, [(1, "?a")])
    assert not one._unanswered
    looker.received("x", first, [(1, "?b")])
    looker.received("x", first, None)
    assert not one._unanswered
