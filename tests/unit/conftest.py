"""Which event loops unit tests run on: that of the standard library, and those that a test names.

A module whose code depends on the loop says ``pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.SelectorEventLoop,
    "uvloop": uvloop.new_event_loop,
}


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    marker = item.get_closest_marker("asyncio")
    wanted = marker.kwargs.get("loop_factories", ()) if marker else ()
    return {name: LOOPS[name] for name in wanted or ["asyncio"]}
