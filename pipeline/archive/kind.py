"""``archive`` as a job: a room, or its history below an event, a time or a token, as Parquet files; nothing is deleted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from events.maintenance.purge_batch import PurgeRequest
from events.maintenance.purge_history import only_purge
from pipeline.archive.cut import CUTS, check_cut, depth_of_cut
from pipeline.archive.folders import folder_of_archives
from pipeline.archive.format import Manifest
from pipeline.archive.write import ArchiveRequest, archive_room
from pipeline.errors import UnusableArguments
from pipeline.jobs.fields import CUT_FIELDS, DELETE_LOCAL_FIELD, ROOM_FIELD, SPARK_FIELDS, Entry, JobField
from pipeline.jobs.kinds import flag, only
from pipeline.jobs.run import JobRun
from pipeline.spark.masters import check_master

__all__ = ["ARCHIVE", "ARCHIVE_NAMES", "ArchiveKind", "archive_facts", "archive_first", "check_archive"]

ARCHIVE = "archive"
_OPTIONS = ("spark", "master")
ARCHIVE_NAMES = ("archive", *_OPTIONS)
"""Arguments of a job that archives before it deletes."""


def check_archive_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """``spark``: true, false, or null for as it suits; ``master``: a Spark master or null."""
    spark, master = arguments.get("spark"), arguments.get("master")
    if spark not in (None, True, False):
        raise UnusableArguments("spark must be true, false or null.")
    if master is not None and not isinstance(master, str):
        raise UnusableArguments("master must be the URL of a Spark master.")
    return {"spark": spark, "master": None if master is None else check_master(master)}


def check_archive(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a job that archives before it deletes: ``archive`` is a folder, or null for no archive."""
    folder = arguments.get("archive")
    options = check_archive_options(arguments)
    if folder is None and any(value is not None for value in options.values()):
        raise UnusableArguments("spark and master are for the archive: name its folder, too.")
    return {"archive": None if folder is None else str(folder_of_archives(folder)), **options}


def archive_first(run: JobRun, request: PurgeRequest) -> tuple[PurgeRequest, dict[str, Any]]:
    """Archive what a purge of history is going to delete; the same request for what is in the archive only, and the facts."""
    told = run.arguments
    options = {name: told[name] for name in _OPTIONS}
    wanted = ArchiveRequest(request.room_id, Path(told["archive"]), request.cut, request.delete_local, **options)
    folder, manifest = archive_room(run, wanted)
    return replace(request, positions=manifest.positions), {"archive": archive_facts(folder, manifest)}


def archive_facts(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """What a summary says of an archive."""
    return {
        "folder": str(folder),
        "events": manifest.rows("event"),
        "state_groups": manifest.rows("group"),
        "files": len(manifest.files),
        "bytes": manifest.size,
    }


class ArchiveKind:
    """Writes the archive of a room."""

    help = "Write a room, or its history below an event, a time or a token, to Parquet files that restore takes back."
    fields = (
        ROOM_FIELD,
        JobField("folder", Entry.TEXT, "where the archive is written, below the folder of archives", required=True),
        *CUT_FIELDS,
        DELETE_LOCAL_FIELD,
        *SPARK_FIELDS,
    )

    def check(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """``room``, ``folder``; a cut as in ``purge history``, none: the whole room; ``delete_local``, ``spark``, ``master``."""
        only(arguments, "room", "folder", *CUTS, "delete_local", *_OPTIONS)
        room = arguments.get("room")
        if not isinstance(room, str) or not room:
            raise UnusableArguments("room must be the ID of a room.")
        cut = check_cut(arguments, optional=True)
        flags = {"delete_local": flag(arguments, "delete_local"), **check_archive_options(arguments)}
        return {"room": room, "folder": str(folder_of_archives(arguments.get("folder"))), **cut, **flags}

    def look(self, arguments: Mapping[str, Any], using: str) -> None:
        """The cut, if one is given, is here."""
        depth_of_cut(arguments, using)

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """The summary names the archive."""
        told, using = run.arguments, run.using
        cut = depth_of_cut(told, using)
        options = {name: told[name] for name in (*_OPTIONS, "delete_local")}
        with only_purge(told["room"], using):
            folder, manifest = archive_room(run, ArchiveRequest(told["room"], Path(told["folder"]), cut, **options))
        return {"room_id": told["room"], "cut": cut, **archive_facts(folder, manifest)}
