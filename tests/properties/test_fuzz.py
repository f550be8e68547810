"""A few seconds of the fuzzers; `python -m tests.fuzz --inputs 1000000` is the long run by hand."""

from __future__ import annotations

import random

import pytest

from streams.replication.protocol.announcer import Announcer
from streams.replication.protocol.cursors import Cursors
from streams.replication.protocol.ordering import LinearView
from tests.fuzz import run
from tests.fuzz.conversation import Broken
from tests.fuzz.following import check_history, check_linear_view
from tests.support.effort import SEED


def test_no_input_breaks_a_rule():
    done = run.fuzz(SEED, 10**9, seconds=4.0)
    assert done.keys() == run.KINDS.keys()


@pytest.mark.parametrize("kind", ["history", "lies", "linear view"])
def test_followers_rules(kind):
    for number in range(100):
        try:
            run.KINDS[kind][0](random.Random(f"{SEED} {number}"))
        except Exception as error:
            raise AssertionError(f"{kind}: random.Random('{SEED} {number}')") from error


def first_broken(check, tries: int) -> str:
    for number in range(tries):
        try:
            check(random.Random(number))
        except Broken as broken:
            return str(broken)
    return ""


def test_a_view_that_forgets_what_is_missing_is_noticed(monkeypatch):
    monkeypatch.setattr(LinearView, "miss", lambda self, upto: None)
    assert first_broken(check_linear_view, 50)


def test_a_follower_that_takes_rows_before_a_position_is_noticed(monkeypatch):
    """What was sent between two connections would be passed over."""
    begin = Cursors.begin_connection

    def keep_positioned(self):
        kept = {name: set(state.positioned) for name, state in self._streams.items()}
        begin(self)
        for name, state in self._streams.items():
            state.positioned |= kept[name]

    monkeypatch.setattr(Cursors, "begin_connection", keep_positioned)
    assert first_broken(check_history, 300)


def test_a_server_that_announces_a_new_writer_late_is_noticed(monkeypatch):
    """The rule that a writer nobody was told of comes before anything else of its stream."""
    steps = Announcer.steps
    monkeypatch.setattr(Announcer, "steps", lambda self, *arguments: list(steps(self, *arguments))[::-1])
    assert first_broken(check_history, 300)
