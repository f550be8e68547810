"""Figures of jobs, side by side."""

from __future__ import annotations

from streams.jobs.view import Figure, figures_of


def test_numbers_tell_their_change():
    assert figures_of({"rows": 1200, "same": 3}, {"rows": 200, "same": 3}) == [
        Figure("rows", "1,200", "200", "-1,000"),
        Figure("same", "3", "3", "0"),
    ]


def test_what_is_there_once_stands_alone():
    assert figures_of({"old": 1}, {"new": 2}) == [Figure("old", "1", "", ""), Figure("new", "", "2", "")]
    assert figures_of(None, None) == []


def test_other_values_are_shown_as_they_are():
    assert figures_of({"well": True, "cut": "$a"}, {"well": False, "cut": {"x": [1]}}) == [
        Figure("well", "true", "false", ""),
        Figure("cut", "$a", '{"x": [1]}', ""),
    ]


def test_what_is_long_or_not_printable_is_bounded():
    (figure,) = figures_of({"a\x1b[31m": "x" * 1000}, None)
    assert "\x1b" not in figure.name
    assert len(figure.before) == 201
    assert len(figures_of({str(n): n for n in range(1000)}, None)) == 200
