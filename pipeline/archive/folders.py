"""Resolves the folders of archives.

A user who may queue jobs need not have the right to read or write everywhere. So a queued job names folders relative to
the folder of archives (setting ``REPLSITE_ARCHIVE_FOLDER``) and cannot leave it. Commands run as their user, without such
a limit.
"""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.archive.format import MANIFEST
from pipeline.conf import pipeline_settings
from pipeline.errors import UnusableArguments
from pipeline.jobs.folders import is_any_folder
from pipeline.private_files import make_folder

__all__ = ["folder_of_archive", "folder_of_archives"]


def folder_of_archives(name: object) -> Path:
    """Returns an absolute folder that archives can be written to. Creates it if needed. Raises ``UnusableArguments``."""
    folder = _found(name)
    try:
        make_folder(folder)
    except OSError as error:
        raise UnusableArguments(f"Cannot write archives to {folder}: {error.strerror}.") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UnusableArguments(f"Cannot write archives to {folder}: permission denied.")
    return folder


def folder_of_archive(name: object) -> Path:
    """Returns the absolute folder of one finished archive. Raises ``UnusableArguments``."""
    folder = _found(name)
    if not (folder / MANIFEST).is_file():
        raise UnusableArguments(
            f"{folder} is no archive: it has no {MANIFEST}. Give the folder that archive or purge named."
        )
    return folder


def _found(name: object) -> Path:
    if not isinstance(name, str) or not name or "\0" in name:
        raise UnusableArguments(f"The folder of an archive must be a name, not {name!r:.100}.")
    if is_any_folder():
        return Path(name).absolute()
    limit = pipeline_settings().archives.resolve()
    folder = (limit / name).resolve()
    if not folder.is_relative_to(limit):
        raise UnusableArguments(
            f"{name!r:.200} is not below {limit}, where archives of queued jobs lie (setting REPLSITE_ARCHIVE_FOLDER)."
        )
    return folder
