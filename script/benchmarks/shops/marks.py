"""What a shop's process says of its work: times and CPU seconds, when so many facts are handled."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.db import transaction

__all__ = ["Handled", "handled", "in_transaction", "mark"]

Say = Callable[[dict[str, Any]], None]


def mark() -> dict[str, float]:
    """The time, on a clock that all processes of the machine share, and this process's CPU seconds."""
    return {"at": time.monotonic(), "cpu": time.process_time()}


class Handled:
    """Counts facts whose effect is committed. Says a mark at each number of ``until``, with all times at the last."""

    def __init__(self) -> None:
        self._until: list[int] = []
        self._times: dict[str, float] = {}
        self._count = 0
        self._say: Say = lambda _: None

    def begin(self, until: Sequence[int], say: Say) -> None:
        """Counts from here on."""
        self._until, self._say = list(until), say

    def __call__(self, orders: Sequence[str]) -> None:
        """Notes the orders of a transaction that is committed."""
        at = time.monotonic()
        self._times.update(dict.fromkeys(orders, at))
        self._count += len(orders)
        while self._until and self._count >= self._until[0]:
            del self._until[0]
            self._say({**mark(), "times": {} if self._until else self._times})


handled = Handled()


def in_transaction(orders: Sequence[str]) -> None:
    """Notes the orders once Django's transaction is committed."""
    transaction.on_commit(partial(handled, orders))
