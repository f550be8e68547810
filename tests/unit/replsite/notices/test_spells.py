"""When people are told that the site is wrong, and that it is well again."""

from __future__ import annotations

from replsite.notices.spells import Spell


def told(*wrong: int, after: float = 10, well_after: float = 60) -> list[tuple[int, str]]:
    """What is told, and when, if the site is wrong in these seconds of five minutes."""
    spell, last, found = Spell(after, well_after), "", []
    for second in range(300):
        if word := spell.step(last, second, is_wrong=second in wrong):
            last = word
            found.append((second, word))
    return found


def test_a_site_that_turns_wrong_and_well_gives_two_messages():
    assert told(*range(20, 100)) == [(30, "wrong"), (160, "well")]


def test_a_moment_of_trouble_is_no_message():
    assert told(*range(20, 25)) == []


def test_a_site_that_is_wrong_every_few_seconds_gives_two_messages():
    assert told(*(second for second in range(20, 200) if second % 16 < 8)) == [(32, "wrong"), (260, "well")]


def test_two_spells_are_told_apart():
    assert [word for _, word in told(*range(20, 40), *range(150, 170))] == ["wrong", "well", "wrong", "well"]


def test_without_waiting_each_change_is_told():
    assert told(3, 5, after=0, well_after=0) == [(3, "wrong"), (4, "well"), (5, "wrong"), (6, "well")]


def test_a_process_that_takes_over_tells_that_it_is_well_again_and_not_again_that_it_is_wrong():
    spell = Spell(10, 60)
    assert [spell.step("wrong", second, is_wrong=second < 30) for second in range(91)] == [""] * 90 + ["well"]
