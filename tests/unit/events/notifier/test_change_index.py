"""When things changed last: floors, entries of tokens, and the time that a question takes."""

from __future__ import annotations

import pytest

from events.notifier.change_index import NOTHING, LastChanges
from streams.core.tokens import VectorToken
from tests.support.growth import growth


def test_what_was_forgotten_is_answered_with_maybe():
    found = LastChanges(2)
    for number, room in enumerate(["!a", "!b", "!c", "!d"], start=1):
        found.add(room, "w", number)
    assert found.changed_since(VectorToken(0)) is None
    assert found.may_have_changed("!never", VectorToken(0))
    assert found.changed_since(VectorToken(3)) == {"!d"}
    assert not found.may_have_changed("!never", VectorToken(3))


def test_floors_of_the_beginning_count():
    found = LastChanges(10, {"w": 50})
    assert found.changed_since(VectorToken(49)) is None
    assert found.changed_since(VectorToken(50)) == NOTHING
    assert found.changed_since(VectorToken.of(40, {"w": 50})) == NOTHING


def test_a_change_below_the_floor_that_comes_late_is_not_kept():
    found = LastChanges(10, {"w": 50})
    found.add("!a", "w", 50)
    assert len(found) == 0


def test_entries_of_a_token_cover_their_writers_only():
    found = LastChanges(10)
    found.add("!a", "fast", 9)
    found.add("!b", "slow", 7)
    since = VectorToken.of(5, {"fast": 9})
    assert found.changed_since(since) == {"!b"}
    assert not found.may_have_changed("!a", since)


def test_an_older_change_of_another_writer_is_not_hidden_by_a_newer_one():
    found = LastChanges(10)
    found.add("!a", "fast", 9)
    found.add("!a", "slow", 7)
    assert found.may_have_changed("!a", VectorToken.of(5, {"fast": 9}))


def test_a_cache_of_nothing_is_refused():
    with pytest.raises(ValueError, match="give it one at least"):
        LastChanges(0)


@pytest.mark.speed
def test_a_thousand_entities_are_asked_about_quickly():
    """It does not matter of how many entities changes are known."""

    def make(known):
        found = LastChanges(known)
        for number in range(known):
            found.add(f"!{number}", "w", number + 1)
        mine = frozenset(f"!{number}" for number in range(1000))

        def ask():
            for _ in range(100):
                assert found.changed_among(mine, VectorToken(1000)) == NOTHING

        return ask

    assert growth(make, 2_500, times=20) < 5
