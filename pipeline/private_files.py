"""Creates files and folders for the history of rooms: readable by their owner only, and durable (no Django)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

__all__ = ["fsync_folder", "make_folder", "open_new"]


def make_folder(folder: Path) -> None:
    """Creates a folder and its missing parents. Raises ``OSError``."""
    missing = [folder]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)


def open_new(path: Path) -> IO[bytes]:
    """Opens a file for writing, and replaces the content of one that exists. Raises ``OSError``."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.fchmod(descriptor, 0o600)  # the mode of ``open`` applies to new files only; one that exists would keep its own
    return os.fdopen(descriptor, "wb")


def fsync_folder(folder: Path) -> None:
    """Syncs a folder, so that entries created, renamed or removed in it survive a power cut. Raises ``OSError``."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
