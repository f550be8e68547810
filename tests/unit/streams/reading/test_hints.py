"""Payloads of hints and answers, which nobody takes for a stream."""

from __future__ import annotations

from streams.reading.hints import answer_to, answered_word, hinted_streams, hinted_word, more_follows


def test_words_come_back():
    assert hinted_word("?a1") == "a1"
    assert [more_follows(word) for word in ("a1", "a1+", "a1 orders+", "a1+ orders")] == [False, True, False, True]
    assert hinted_streams("?a1+ orders events") == ["orders", "events"]
    assert hinted_streams("?a1") == hinted_streams("orders events") == []
    assert answered_word(answer_to("a1")) == "a1"
    for payload in ("orders", "orders north 5", "", answer_to("a1")):
        assert hinted_word(payload) is None
    for payload in ("orders", "orders north 5", "", "?a1"):
        assert answered_word(payload) is None
