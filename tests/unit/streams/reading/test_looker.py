"""When the looker looks, and what it hears."""

from __future__ import annotations

from streams.reading import looker
from streams.reading.hints import HINT_GAP_SECONDS, answer_to
from streams.reading.looker import SAFETY_SECONDS, Looker, Pace


def pauses(pace: Pace, *, hinted: bool = False, news: bool = False, took: float = 0.0) -> list[float]:
    """The pauses after one look of that kind, and after further ones that find nothing, up to the first long one."""
    found = [pace.next_pause(took, hinted=hinted, news=news)]
    while found[-1] < SAFETY_SECONDS:
        found.append(pace.next_pause(took, hinted=False, news=False))
    return found


def test_nothing_is_looked_at_while_nothing_happens():
    pace = Pace()
    assert [pace.next_pause(0.0, hinted=False, news=False) for _ in range(3)] == [SAFETY_SECONDS] * 3


def test_looks_after_a_hint_reach_beyond_the_time_in_which_no_second_one_is_sent():
    *looks, _ = pauses(Pace(), hinted=True)
    assert sum(looks) > HINT_GAP_SECONDS
    assert looks == sorted(looks)


def test_while_looks_find_news_the_next_comes_at_once():
    pace = Pace()
    assert {pace.next_pause(0.0, hinted=False, news=True) for _ in range(10)} == {Pace.QUICK_SECONDS}
    assert pauses(pace)[-1] == SAFETY_SECONDS


def test_looks_that_take_long_are_made_less_often():
    assert Pace().next_pause(0.1, hinted=True, news=True) >= 0.3


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
