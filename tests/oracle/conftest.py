"""Between tests that commit, this process lets its writer names go and what it keeps of rooms: the tables are emptied."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from streams.testing import forget_writers


@pytest.fixture(autouse=True)
def _writers_let_go(request: pytest.FixtureRequest) -> Iterator[None]:
    marker = request.node.get_closest_marker("django_db")
    if marker and marker.kwargs.get("transaction"):
        request.getfixturevalue("transactional_db")  # so that it is torn down after this one
    yield
    forget_writers()
    if marker:
        from events.stored_room import forget_kept  # needs Django's apps, which are loaded by now

        forget_kept()
