"""Work on deeply nested values, whatever the depth of the caller's own calls (pure).

An event may be nested 900 levels deep, and an interpreter allows some 1,000 calls within each other, those of the parser
included. So what one process stored another could not read, or refused, from deeper within its program.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

__all__ = ["on_own_stack"]

P = ParamSpec("P")
T = TypeVar("T")


def on_own_stack(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What the function returns: on the stack of a thread of its own where the caller's has no room for it.

    Raises ``RecursionError`` where that has none either.
    """
    try:
        return function(*args, **kwargs)
    except RecursionError:
        pass
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args, **kwargs).result()
