"""Decides which folders a job may name: only folders of the site, or any folder.

The server's process may read and write in more folders than a user who may queue a job. So a queued job may name only
the site's folders. A command that runs a job at once has the rights of its user, so the job may name any folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["any_folder", "is_any_folder"]

_any_folder: ContextVar[bool] = ContextVar("any_folder", default=False)


@contextmanager
def any_folder() -> Iterator[None]:
    """Lets jobs name any folder within the block, with the rights of the process's user.

    Relative paths are then relative to the current directory.
    """
    token = _any_folder.set(True)
    try:
        yield
    finally:
        _any_folder.reset(token)


def is_any_folder() -> bool:
    """Returns true if jobs may name any folder, because the caller runs inside a block of ``any_folder``."""
    return _any_folder.get()
