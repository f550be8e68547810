"""Payloads of hints and answers, which nobody takes for a stream."""

from __future__ import annotations

from streams.reading.hints import answer_to, answered_word, hinted_word


def test_words_come_back():
    assert hinted_word("?a1") == "a1"
    assert answered_word(answer_to("a1")) == "a1"
    for payload in ("orders", "orders north 5", "", answer_to("a1")):
        assert hinted_word(payload) is None
    for payload in ("orders", "orders north 5", "", "?a1"):
        assert answered_word(payload) is None
