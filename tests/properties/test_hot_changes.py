"""Last changes against an obvious slow version: every change kept, each question answered by looking at all of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from events.notifier.change_index import LastChanges
from streams.core.tokens import VectorToken
from tests.support.effort import examples

ENTITIES = [f"!r{n}" for n in range(8)]
WRITERS = ["a", "b", "c"]


class Everything:
    """The slow version."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, str, int]] = []

    def changed(self, since: VectorToken) -> set[str]:
        return {entity for entity, writer, at in self.changes if at > since.position_of(writer)}


changes_made = st.lists(st.tuples(st.sampled_from(ENTITIES), st.sampled_from(WRITERS)), max_size=60)
tokens = st.builds(
    VectorToken.of, st.integers(0, 61), st.dictionaries(st.sampled_from(WRITERS), st.integers(0, 61), max_size=3)
)


def filled(made: list[tuple[str, str]], order: list[int], limit: int) -> tuple[LastChanges, Everything]:
    """Each change has its own position; they are added in another order, as writers are heard of."""
    found, slow = LastChanges(limit), Everything()
    for number in order:
        entity, writer = made[number]
        found.add(entity, writer, number + 1)
        slow.changes.append((entity, writer, number + 1))
    return found, slow


@settings(max_examples=examples(100), deadline=None)
@given(changes_made, tokens, st.integers(1, 20), st.randoms())
def test_never_says_no_wrongly(made, since, limit, random):
    order = list(range(len(made)))
    random.shuffle(order)
    found, slow = filled(made, order, limit)
    answer, truth = found.changed_since(since), slow.changed(since)
    assert answer is None or answer == truth
    among = found.changed_among(frozenset(ENTITIES[:5]), since)
    assert (among is None) == (answer is None)
    assert among is None or among == truth & set(ENTITIES[:5])
    for entity in ENTITIES:
        assert found.may_have_changed(entity, since) or entity not in truth


@settings(max_examples=examples(80), deadline=None)
@given(changes_made, tokens)
def test_is_exact_as_long_as_everything_fits(made, since):
    found, slow = filled(made, list(range(len(made))), limit=100)
    assert found.changed_since(since) == slow.changed(since)
    assert {e for e in ENTITIES if found.may_have_changed(e, since)} == slow.changed(since)


@settings(max_examples=examples(50), deadline=None)
@given(changes_made, st.integers(1, 10))
def test_stays_within_its_limit(made, limit):
    found, _ = filled(made, list(range(len(made))), limit)
    assert len(found) <= limit
    assert len(found._log) <= 2 * limit + 64
    assert len(found._last) <= limit
