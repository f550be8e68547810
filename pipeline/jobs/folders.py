"""Whether a job may name any folder.

Whoever may queue a job need not be allowed to write or read everywhere: a queued job stays below folders of the site. A command
that runs a job runs as its user, without such a limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["any_folder", "is_any_folder"]

_any_folder: ContextVar[bool] = ContextVar("any_folder", default=False)


@contextmanager
def any_folder() -> Iterator[None]:
    """Within the block folders are those of the process's user; relative ones count from where it is."""
    token = _any_folder.set(True)
    try:
        yield
    finally:
        _any_folder.reset(token)


def is_any_folder() -> bool:
    """Whether folders are those of the process's user."""
    return _any_folder.get()
