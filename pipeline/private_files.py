"""Files and folders with rooms' history in them: for their owner only, and on the disk for certain (no Django)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

__all__ = ["make_folder", "open_new", "settle"]


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing. Raises ``OSError``."""
    missing = [folder]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)


def open_new(path: Path) -> IO[bytes]:
    """A file to write, instead of one that may be there. Raises ``OSError``."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.fchmod(descriptor, 0o600)  # one that was there keeps its mode
    return os.fdopen(descriptor, "wb")


def settle(folder: Path) -> None:
    """What was made, renamed or removed in a folder is so after a power cut. Raises ``OSError``."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
