"""Between tests this process lets its writer names go and what it keeps of rooms."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.letting_go import everything_let_go


@pytest.fixture(autouse=True)
def _nothing_kept(request: pytest.FixtureRequest) -> Iterator[None]:
    with everything_let_go(request):
        yield
