"""Every input that once came near a rule of the wire, and a slice of the fuzzer."""

from __future__ import annotations

import random

import pytest

from streams.replication.protocol.commands import Side
from streams.replication.protocol.connection import CloseReason, State
from tests.fuzz import conversation, inputs, run
from tests.fuzz.conversation import Broken, Heard, check, heard_by_the_book
from tests.fuzz.corpus import saved_inputs

SAVED = dict(saved_inputs())


@pytest.mark.parametrize("about", SAVED)
def test_saved_input(about):
    for number in range(5):
        check(SAVED[about], random.Random(number))


def test_the_corpus_meets_every_reason_that_input_can_cause():
    ends = {heard_by_the_book(data, side).reason for data in SAVED.values() for side in Side}
    assert ends == {
        None, CloseReason.LINE_TOO_LONG, CloseReason.INVALID_UTF8, CloseReason.PARSE_ERROR,
        CloseReason.INVALID_COMMAND, CloseReason.WRONG_REMOTE, CloseReason.SPOKE_HTTP, CloseReason.SPOKE_TLS,
    }  # fmt: skip


def test_an_input_is_made_again_from_its_number():
    assert inputs.data(random.Random("1 2")) == inputs.data(random.Random("1 2"))


def test_another_outcome_than_the_book_says_is_noticed(monkeypatch):
    monkeypatch.setattr(conversation, "heard_by_the_book", lambda *_: Heard((), State.OPEN, None))
    with pytest.raises(Broken, match="differs from the book"):
        check(b"PING 1\n", random.Random(0))


def test_a_broken_input_is_shrunk(monkeypatch):
    def fails_on_x(data, rng):
        if b"X" in data:
            raise Broken("X")

    monkeypatch.setattr(run, "check", fails_on_x)
    assert run.shrunk(b"some bytes around X and more") == b"X"


def test_the_first_broken_rule_ends_the_run_and_names_its_input(monkeypatch):
    def fail(rng):
        raise Broken("made up")

    monkeypatch.setattr(run, "KINDS", {"made up": (fail, 1)})
    with pytest.raises(AssertionError, match="input 0 of seed 5: Broken: made up"):
        run.fuzz(5, 10)
