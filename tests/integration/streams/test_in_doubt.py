"""What the server says of transactions whose end is not known; answers that are lost are in ``test_appends``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from streams.writing.in_doubt import ASK_AGAIN_SECONDS, InDoubt, _outcomes
from streams.writing.transaction import OpenTransaction
from tests.support.writing import session

pytestmark = pytest.mark.django_db(transaction=True)


def begun(cursor: Any) -> int:
    """Begins a transaction; its number."""
    cursor.execute("BEGIN")
    cursor.execute("SELECT pg_current_xact_id()::text::bigint")
    return int(cursor.fetchone()[0])


@pytest.fixture
def other() -> Iterator[Any]:
    """A session whose transaction is open."""
    with session() as cursor:
        yield cursor


@pytest.fixture
def numbers(other: Any) -> list[int]:
    """Of transactions that were committed, rolled back, and are open; and two that were never given out."""
    with session() as one:
        committed = begun(one)
        one.execute("COMMIT")
        rolled_back = begun(one)
        one.execute("ROLLBACK")
        return [committed, rolled_back, begun(other), 2**40, 2**41]


def test_each_transaction_gets_its_own_answer(numbers):
    with session() as cursor:
        found = _outcomes(cursor, numbers[:3])
    assert [found[number] for number in numbers[:3]] == ["committed", "aborted", "in progress"]


def test_numbers_from_the_future_leave_the_others_their_answers(numbers):
    """As after a crash that the server forgot them by: the open one must not be taken for ended."""
    with session() as cursor:
        found = _outcomes(cursor, numbers)
    assert [found[number] for number in numbers] == ["committed", "aborted", "in progress", None, None]


class Writer:
    """Counts how often something may be announced."""

    announced = 0

    def watch(self, transaction: OpenTransaction) -> None: ...

    def ask(self, transaction: OpenTransaction) -> None: ...

    def announce_soon(self) -> None:
        self.announced += 1


def test_an_open_transaction_is_asked_about_until_it_has_ended(numbers, other):
    woken: list[None] = []
    in_doubt = InDoubt(lambda: woken.append(None))
    records = [OpenTransaction(Writer(), number) for number in numbers]
    ends: dict[int, bool] = {}
    for record in records:
        record.at_end.append(lambda written, number=record.number: ends.update({number: written}))
        in_doubt.watch(record)
        in_doubt.ask(record)
    assert len(woken) == len(records)
    with session() as cursor:
        in_doubt.ask_outcomes(cursor, 100.0)
        committed, rolled_back, still_open, never, nor_this = numbers
        assert ends == {committed: True, rolled_back: False, never: False, nor_this: False}
        assert [record.number for record in in_doubt.open_transactions()] == [still_open]
        assert in_doubt.due(100.0) == [100.0 + ASK_AGAIN_SECONDS]
        assert not in_doubt.is_empty
        other.execute("COMMIT")
        in_doubt.ask_outcomes(cursor, 100.01)
        assert still_open not in ends, "too soon to ask again"
        in_doubt.ask_outcomes(cursor, 100.1)
    assert ends[still_open] is True
    assert in_doubt.is_empty
    assert in_doubt.due(200.0) == []
