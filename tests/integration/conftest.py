"""Between tests that commit, this process lets its writer names go: the tables are emptied after each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from streams.testing import forget_writers


@pytest.fixture(autouse=True)
def _writers_let_go(request: pytest.FixtureRequest) -> Iterator[None]:
    marker = request.node.get_closest_marker("django_db")
    if "transactional_db" in request.fixturenames or (marker and marker.kwargs.get("transaction")):
        request.getfixturevalue("transactional_db")  # so that it is torn down after this one
    yield
    forget_writers()
    if "transactional_db" in request.fixturenames or (marker and marker.kwargs.get("transaction")):
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
