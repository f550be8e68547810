"""After each test this process lets go what would outlive the tables; rooms and processes that many tests talk in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.letting_go import everything_let_go
from tests.room_talker import USERS, Talker, talkers

if TYPE_CHECKING:
    from events.creating import LocalRoom


@pytest.fixture(autouse=True)
def _nothing_kept(request: pytest.FixtureRequest) -> Iterator[None]:
    with everything_let_go(request):
        yield
    if "transactional_db" in request.fixturenames:
        _bring_sequences_back()


def _bring_sequences_back() -> None:
    """Emptying the tables leaves sequences where they are; one that a test moved far ahead would change what others see."""
    from streams import database
    from tests.writing import session

    # The test may have cut Django's connection, or the way to the server; such a test moves no sequence far.
    with suppress(database.DatabaseError), session() as cursor:
        cursor.execute(
            "SELECT setval(quote_ident(schemaname) || '.' || quote_ident(sequencename), 1) FROM pg_sequences "
            "WHERE last_value > 100000000 AND sequencename LIKE '%seq'"
        )


@pytest.fixture
def no_cached_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has none: those of other test modules make appends drop cached values."""
    monkeypatch.setattr("streams.effects.all_stores", list)


@pytest.fixture
def room(transactional_db: None) -> LocalRoom:
    """A room that the first user of ``tests.room_talker`` created."""
    from events.creating import create_room

    return create_room(USERS[0])


@pytest.fixture
def other(database_url: str) -> Iterator[Talker]:
    """Another process, the instance ``other``, that talks in rooms."""
    with talkers(database_url, "other") as (talker,):
        yield talker
