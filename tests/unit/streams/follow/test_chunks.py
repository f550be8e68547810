"""Chunks without a database: facts, and halves of whole facts."""

from __future__ import annotations

import pytest

from streams.follow.chunks import Chunk
from streams.replication.protocol.ordering import FollowedRow


def chunk(*tokens: int) -> Chunk:
    return Chunk(
        "caches", [FollowedRow("caches", f"w{token % 2}", token, [n]) for n, token in enumerate(tokens)], "default"
    )


def test_rows_of_a_token_are_one_fact():
    facts = list(chunk(2, 3, 3, 5))
    assert [(fact.token, fact.writer, fact.rows) for fact in facts] == [
        (2, "w0", ([0],)),
        (3, "w1", ([1], [2])),
        (5, "w1", ([3],)),
    ]
    assert len(chunk(2, 3, 3, 5)) == 3


@pytest.mark.parametrize(
    ("tokens", "first", "second"),
    [
        ((1, 2), (1,), (2,)),
        ((1, 2, 2, 2), (1,), (2, 2, 2)),
        ((1, 1, 1, 2), (1, 1, 1), (2,)),
        ((1, 2, 3, 4, 5), (1, 2), (3, 4, 5)),
        ((1, 1, 1, 1, 1, 2), (1, 1, 1, 1, 1), (2,)),
    ],
)
def test_halves_split_no_fact_and_lose_none(tokens, first, second):
    halves = chunk(*tokens).halves()
    assert tuple(tuple(row.token for row in half.rows) for half in halves) == (first, second)


def test_halving_ends_at_single_facts():
    waiting, singles = [chunk(*range(1, 40))], []
    while waiting:
        part = waiting.pop()
        if part.fact_count == 1:
            singles.append(part.rows[0].token)
        else:
            waiting += reversed(part.halves())
    assert singles == list(range(1, 40))


def test_the_error_of_a_handler_that_expects_an_instance_says_what_to_declare():
    with pytest.raises(AttributeError, match=r"no 'order_id'.*each=True"):
        chunk(2).order_id  # noqa: B018
