"""Decides which folders a job may name: only folders of the site, or any folder.

A user who may queue a job need not be allowed to write or read everywhere. So a queued job is limited to folders of the
site. A command that runs a job at once has the rights of its user, without this limit.
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
    """Returns true inside a block of ``any_folder``: jobs may name any folder."""
    return _any_folder.get()
