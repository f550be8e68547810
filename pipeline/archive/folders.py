"""Resolves the folders of archives.

The server's process may read and write in more folders than a user who may queue jobs. So in a queued job, a folder's
path is relative to the folder of archives (setting ``REPLSITE_ARCHIVE_FOLDER``), and must not lead out of that folder.
A command runs with the rights of its user, so it may name any folder.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from pipeline.archive.format import MANIFEST
from pipeline.conf import pipeline_settings
from pipeline.private_files import make_folder
from streams.jobs.errors import UnusableArguments
from streams.jobs.folders import is_any_folder

__all__ = ["folder_of_archive", "folder_of_archives", "is_path"]


def folder_of_archives(name: object) -> Path:
    """Returns the absolute path of a folder for archives. Raises ``UnusableArguments`` if it is not writable.

    In a command, this function creates the folder. For a queued job it does not, because arguments are checked before
    it is known whether the user may queue the job. The job creates the folder when it runs.
    """
    folder = _found(name)
    try:
        if is_any_folder():
            make_folder(folder)
        if not os.access(_nearest(folder), os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "permission denied")
    except OSError as error:
        raise UnusableArguments(f"Cannot write archives to {folder}: {error.strerror}.") from error
    return folder


def _nearest(folder: Path) -> Path:
    """Returns the folder if it exists, otherwise its nearest parent folder that exists.

    Raises ``OSError`` if a file, or anything else that is no folder, has the name of one of these folders.
    """
    while True:
        try:
            if not stat.S_ISDIR(folder.stat().st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            return folder
        except FileNotFoundError:
            folder = folder.parent


def folder_of_archive(name: object) -> Path:
    """Returns the absolute path of the finished archive ``name``. Raises ``UnusableArguments`` if it is no archive."""
    folder = _found(name)
    if not os.path.isfile(folder / MANIFEST):  # noqa: PTH113 - Path.is_file raises if the name is too long
        raise UnusableArguments(
            f"{folder} is no archive: it has no {MANIFEST}. Give the folder that archive or purge named."
        )
    return folder


def is_path(name: str) -> bool:
    """Returns true if the operating system can take the text as a path."""
    try:
        return b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON may hold
        return False


def _found(name: object) -> Path:
    if not isinstance(name, str) or not name or not is_path(name):
        raise UnusableArguments(f"The folder of an archive must be a name, not {name!r:.100}.")
    if is_any_folder():
        return Path(name).absolute()
    limit = pipeline_settings().archive_folder.resolve()
    folder = Path(os.path.realpath(limit / name))  # Path.resolve raises for links in a circle, before Python 3.13
    if not folder.is_relative_to(limit):
        raise UnusableArguments(
            f"{name!r:.200} is not below {limit}, where archives of queued jobs lie (setting REPLSITE_ARCHIVE_FOLDER)."
        )
    return folder
