"""Runs functions on deeply nested values, however much of its own stack the caller has used (pure).

JSON may be nested 900 levels deep. The interpreter allows about 1,000 nested calls, including those of the parser. So a
caller that is deep in its own call stack might refuse or fail to read a value that another process has stored.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def on_own_stack(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls the function and returns its result. If the caller's stack has no room, calls it again in a new thread.

    Raises ``RecursionError`` if the stack of the new thread has no room either.
    """
    try:
        return function(*args, **kwargs)
    except RecursionError:
        pass
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args, **kwargs).result()
