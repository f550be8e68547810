"""Between tests that commit, this process lets its writer names go: the tables are emptied after each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from streams.testing import forget_writers


@pytest.fixture(autouse=True)
def _writers_let_go(request: pytest.FixtureRequest) -> Iterator[None]:
    marker = request.node.get_closest_marker("django_db")
    if "transactional_db" in request.fixturenames or (marker and marker.kwargs.get("transaction")):
        request.getfixturevalue("transactional_db")  # so that it is torn down after this one
    yield
    forget_writers()
