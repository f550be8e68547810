"""Creates files and folders for the history of rooms: readable by their owner only, and durable. Needs no Django."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import IO

__all__ = ["fsync_folder", "make_folder", "open_new", "remove_folder"]

_MOST_TRIES = 10_000
"""A late file costs one more try, so this is far more than there are tasks at a time."""


def make_folder(folder: Path) -> None:
    """Creates a folder and its missing parents. Raises ``OSError``."""
    missing = [folder]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)


def open_new(path: Path) -> IO[bytes]:
    """Opens a file for writing, and removes the content if the file exists. Raises ``OSError``."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.fchmod(descriptor, 0o600)  # the mode of ``open`` applies to new files only; one that exists would keep its own
    return os.fdopen(descriptor, "wb")


def fsync_folder(folder: Path) -> None:
    """Calls fsync for a folder, so that new names and removals of files in it survive a power cut. Raises ``OSError``."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_folder(folder: Path) -> None:
    """Removes a folder and its files, even if late Spark tasks still create files in it. Raises ``OSError``."""
    # Spark gives a job up when one of its tasks fails, and does not wait for the others. Without a second try:
    # 1. this process lists the folder, 2. a task that still runs creates its file, 3. removing the folder fails, and an
    # archive that failed is left on the disk. Once the folder is gone, no task can create a file in it.
    for tries in range(1, _MOST_TRIES + 1):
        try:
            shutil.rmtree(folder)
            return
        except OSError as error:
            late = error.errno == errno.ENOTEMPTY or (error.errno == errno.ENOENT and folder.exists())
            if not late or tries == _MOST_TRIES:
                raise
