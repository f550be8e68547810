"""The archive that a purge writes before it deletes. The app that can write one says here how: ``pipeline``, to Parquet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from django.utils.module_loading import import_string

from streams.jobs.arguments import Argument
from streams.jobs.job_run import JobRun
from streams.runtime.text import safe_text


class Archived(NamedTuple):
    """An archive that was written: its figures for the summary, and the lowest and highest stream position in it."""

    figures: Mapping[str, Any]
    positions: tuple[int, int]


class Archiver:
    """Writes no archives. What writes some derives from this class."""

    arguments: Sequence[Argument] = ()
    """What a purge takes of it: the folder, ``archive``, and how the files are written."""

    def check(self, checked: Mapping[str, Any]) -> None:
        """Raises ``UnusableArguments`` if there are arguments for an archive, but no folder."""

    def write(self, run: JobRun, room_id: str, cut: int | None = None, *, delete_local: bool = False) -> Archived:
        """Writes what a purge below depth ``cut`` deletes, or the whole room, to the folder that the arguments name."""
        raise NotImplementedError


_writer = [f"{__name__}.Archiver"]


def archive_with(name: str) -> None:
    """Says which class writes archives, by its dotted name. To be called while Django loads the apps."""
    _writer[:] = [name]
    archiver.cache_clear()


@cache
def archiver() -> Archiver:
    """Returns what writes archives on this site."""
    made: Archiver = import_string(_writer[0])()
    return made


def archive_words(args: Mapping[str, Any], folder: str | None = None) -> str:
    """Returns a text that says where the archive is, or ``no archive``. ``args`` are the arguments of the job.

    If ``folder`` is given, the archive was written to this folder. Otherwise the archive is still to be written.
    """
    if args["archive"] is None:
        return "no archive"
    return (
        f"archive in {safe_text(args['archive'], None)}" if folder is None else f"archived in {safe_text(folder, None)}"
    )
