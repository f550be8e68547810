"""Writes the archive of what a purge is going to delete, before it does (``events.maintenance.archiving``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from events.maintenance.archiving import Archived, Archiver
from pipeline.archive.folders import folder_of_archives
from pipeline.archive.write import ArchiveRequest, archive_room
from pipeline.spark.arguments import master
from streams.jobs.arguments import Argument, Type
from streams.jobs.errors import UnusableArguments
from streams.jobs.job_run import JobRun

__all__ = ["SPARK", "ParquetArchiver", "archive_folder"]

SPARK = (
    Argument(
        "spark", Type.WHETHER, "Spark writes the files; left out: when there are many", must="true, false or null",
        in_form="whether Spark writes the archive",
    ),
    master(
        "Spark master, e.g. local[4] or spark://host:7077", in_form="URL of a Spark master for it; none: the site's"
    ),
)  # fmt: skip


def archive_folder(_: str, value: Any) -> str:
    """Returns the path of the folder in which an archive is to be made. Raises ``UnusableArguments``."""
    return str(folder_of_archives(value))


class ParquetArchiver(Archiver):
    """Writes archives that ``room restore`` takes."""

    arguments = (
        Argument(
            "archive", Type.TEXT, "write what goes to Parquet files there first, checked; restore takes them",
            typed="--archive FOLDER", in_form="folder of an archive that is written first; none: what is deleted is gone",
            check=archive_folder,
        ),
        *SPARK,
    )  # fmt: skip

    def check(self, checked: Mapping[str, Any]) -> None:
        if checked["archive"] is None and any(checked[argument.name] is not None for argument in SPARK):
            raise UnusableArguments("spark and master are for the archive: name its folder, too.")

    def write(self, run: JobRun, room_id: str, cut: int | None = None, *, delete_local: bool = False) -> Archived:
        given = run.arguments
        options = {argument.name: given[argument.name] for argument in SPARK}
        return archive_room(run, ArchiveRequest(room_id, Path(given["archive"]), cut, delete_local, **options))
