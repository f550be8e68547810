"""Implements the job ``archive``, which writes a room, or its older history, to Parquet files. It deletes nothing.

An event, a time or a timeline token says where the older history ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from events.maintenance.purge_batch import PurgeRequest
from events.maintenance.purge_history import purge_lock
from events.operations.room_arguments import ROOM
from pipeline.archive.cut import check_cut, cut_arguments, depth_of_cut
from pipeline.archive.folders import folder_of_archives
from pipeline.archive.format import Manifest
from pipeline.archive.write import ArchiveRequest, archive_room
from pipeline.spark.arguments import master
from streams.jobs.arguments import JSON, Argument, Type
from streams.jobs.errors import UnusableArguments
from streams.jobs.run import JobKind, JobRun

__all__ = ["ARCHIVE", "ArchiveKind", "archive_facts", "archive_first", "check_archive"]

_SPARK = (
    Argument(
        "spark", Type.WHETHER, "Spark writes the files; left out: when there are many", must="true, false or null",
        in_form="whether Spark writes the archive",
    ),
    master(
        "Spark master, e.g. local[4] or spark://host:7077", in_form="URL of a Spark master for it; none: the site's"
    ),
)  # fmt: skip


def _folder(_: str, value: Any) -> str:
    return str(folder_of_archives(value))


ARCHIVE = (
    Argument(
        "archive", Type.TEXT, "write what goes to Parquet files there first, checked; restore takes them",
        typed="--archive FOLDER", in_form="folder of an archive that is written first; none: what is deleted is gone",
        check=_folder,
    ),
    *_SPARK,
)  # fmt: skip
"""Arguments of jobs that write an archive before they delete rows."""


def check_archive(checked: Mapping[str, Any]) -> None:
    """Raises ``UnusableArguments`` if ``spark`` or ``master`` is given without a folder for an archive."""
    if checked["archive"] is None and any(checked[one.name] is not None for one in _SPARK):
        raise UnusableArguments("spark and master are for the archive: name its folder, too.")


def archive_first(run: JobRun, request: PurgeRequest) -> tuple[PurgeRequest, dict[str, Any]]:
    """Archives the events that a purge of history is going to delete.

    Returns (purge request, entry about the archive for the job's summary). The purge request is limited to the archived
    positions. So the purge does not delete events that arrived after the archive was read.
    """
    told = run.arguments
    options = {one.name: told[one.name] for one in _SPARK}
    wanted = ArchiveRequest(request.room_id, Path(told["archive"]), request.cut, request.delete_local, **options)
    folder, manifest = archive_room(run, wanted)
    return replace(request, positions=manifest.positions), {"archive": archive_facts(folder, manifest)}


def archive_facts(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """Returns the figures of an archive for a job's summary: folder, events, state groups, files and bytes."""
    return {
        "folder": str(folder),
        "events": manifest.rows("event"),
        "state_groups": manifest.rows("group"),
        "files": len(manifest.files),
        "bytes": manifest.size,
    }


class ArchiveKind(JobKind):
    """The kind of job that writes the archive of a room. The job deletes nothing from the database."""

    name = "archive"
    help = "Write a room, or its history below an event, a time or a token, to Parquet files that restore takes back."
    arguments = (
        ROOM,
        Argument(
            "folder", Type.TEXT, "where the archive's own folder is made", typed="FOLDER", required=True, check=_folder,
            in_form="where the archive is written, below the folder of archives",
        ),
        *cut_arguments(required=False),
        Argument(
            "delete_local", Type.FLAG, "with a cut: messages of this server, too",
            in_form="messages of this server go, too",
        ),
        *_SPARK,
        JSON,
    )  # fmt: skip

    def check_together(self, checked: dict[str, Any]) -> None:
        """Raises ``UnusableArguments`` if more than one of the arguments for event, time and token is given.

        If none of these arguments is given, the whole room is archived.
        """
        check_cut(checked, optional=True)

    def look(self, arguments: Mapping[str, Any], using: str) -> None:
        """Raises ``UnknownRoom``, ``UnknownEvent`` or ``BadToken`` if the database does not have the room, event or token."""
        depth_of_cut(arguments, using)

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Writes the archive. Returns the summary: the room's ID, the depth of the cut, and the figures of the archive."""
        told, using = run.arguments, run.using
        cut = depth_of_cut(told, using)
        options = {name: told[name] for name in ("spark", "master", "delete_local")}
        with purge_lock(told["room"], using):
            folder, manifest = archive_room(run, ArchiveRequest(told["room"], Path(told["folder"]), cut, **options))
        return {"room_id": told["room"], "cut": cut, **archive_facts(folder, manifest)}

    def lines(self, summary: Mapping[str, Any]) -> Iterator[str]:
        yield f"{summary['room_id']}: {summary['events']} events in {summary['folder']}, {summary['bytes']:,} bytes"
