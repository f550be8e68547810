"""The page about a cache: its code runs, and drops what became old."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from streams import caches, registry
from tests.support.waiting import DEADLINE_SECONDS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "keep-a-cache.md"


@pytest.mark.django_db(transaction=True)
def test_the_code_keeps_and_drops() -> None:
    statuses, read = {"4711": "paid"}, []
    names: dict[str, Any] = {
        "read_status": lambda order_id: read.append(order_id) or statuses[order_id],
        "write_status": statuses.__setitem__,
    }
    keeping, telling, of_rooms = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    exec(compile(keeping + of_rooms, str(PAGE), "exec"), names)
    cache = names["cache"]
    cache.clear()
    try:
        assert [names["order_status"]("4711") for _ in range(2)] == ["paid", "paid"] and read == ["4711"]
        exec(compile(telling, str(PAGE), "exec"), names)
        registry.get("caches").wait_for(names["tokens"], DEADLINE_SECONDS)
        assert names["order_status"]("4711") == "shipped"
        cache.set("topic:!r:x", "old")
        (token,) = caches.invalidate_room_state("!r:x")
        registry.get("caches").wait_for(token, DEADLINE_SECONDS)
        assert cache.get("topic:!r:x") is None
    finally:
        names["statuses"].close()
        names["topics"].close()
