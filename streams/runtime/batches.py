"""Divides work into batches of bounded size (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")


def bounded_batches(
    items: Iterable[_Item], size_of: Callable[[_Item], int], most: int, most_items: int | None = None
) -> Iterator[list[_Item]]:
    """Yields the items in their order, in lists whose sizes add up to at most ``most``. A larger item is a list of its own.

    With ``most_items``, no list has more items than that.
    """
    batch: list[_Item] = []
    size = 0
    for item in items:
        if batch and (size + size_of(item) > most or len(batch) == most_items):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += size_of(item)
    if batch:
        yield batch
