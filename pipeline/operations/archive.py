"""``room archive``: writes a room, or its older history, to Parquet files (``pipeline.archive``).

An event, a time or a timeline token says where the older history ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from events.maintenance.cut import check_cut, cut_arguments, depth_of_cut
from events.maintenance.purge_lock import purge_lock
from events.maintenance.room_arguments import ROOM
from pipeline.archive.before_purge import SPARK, archive_folder
from pipeline.archive.write import ArchiveRequest, archive_room
from streams.jobs.arguments import JSON, Argument, Type
from streams.jobs.job_run import JobRun
from streams.jobs.operation import Operation, Words, operation

__all__ = ["Archive"]


@operation
class Archive(Operation):
    """Writes the archive of a room. Deletes nothing."""

    name = "archive"
    help = "Write a room, or its history below an event, a time or a token, to Parquet files that restore takes back."
    arguments = (
        ROOM,
        Argument(
            "folder", Type.TEXT, "where the archive's own folder is made", typed="FOLDER", required=True, check=archive_folder,
            in_form="where the archive is written, below the folder of archives",
        ),
        *cut_arguments(required=False),
        Argument(
            "delete_local", Type.FLAG, "with a cut: messages of this server, too",
            in_form="messages of this server go, too",
        ),
        *SPARK,
        JSON,
    )  # fmt: skip
    commands = (
        Words(
            "room archive",
            "Write a room, or its history below an event, a time or a token, to Parquet files that room restore takes back. "
            "Deletes nothing.",
            "room archive '!room:example.org' /backup --before '$event'",
        ),
    )

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
        given, using = run.arguments, run.using
        cut = depth_of_cut(given, using)
        options = {name: given[name] for name in ("spark", "master", "delete_local")}
        with purge_lock(given["room"], using):
            written = archive_room(run, ArchiveRequest(given["room"], Path(given["folder"]), cut, **options))
        return {"room_id": given["room"], "cut": cut, **written.figures}

    def lines(self, summary: Mapping[str, Any]) -> Iterator[str]:
        yield f"{summary['room_id']}: {summary['events']} events in {summary['folder']}, {summary['bytes']:,} bytes"
