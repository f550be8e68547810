"""Implements the job ``remove archive``, which deletes an archive or an export from the site's folders.

The job deletes files, but no rows. The folder must be below the site's folder of archives or of exports. This also
holds for the command: files elsewhere belong to the account that made them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from events.maintenance.purge_history import purge_lock
from events.models import Room
from pipeline.archive import format as archives
from pipeline.errors import ArchiveInUse
from pipeline.export import folder as exports
from pipeline.maintenance.purge_words import folder_words
from pipeline.maintenance.written_folders import WrittenFolder, find_folder
from pipeline.private_files import fsync_folder, remove_folder
from streams.db import driver
from streams.jobs.arguments import JSON, YES, Argument, Type, dry_run
from streams.jobs.rows import hold_lock
from streams.jobs.run import JobKind, JobRun
from streams.runtime.amounts import byte_size
from streams.runtime.moments import moment_text
from streams.runtime.text import safe_text

__all__ = ["RemoveArchiveKind"]

#: The number at the end of an unfinished archive's name: the job that writes it.
_JOB = re.compile(rf"-([0-9]{{1,18}})(?:{re.escape(archives.PARTIAL)})?\Z")


def _folder(_: str, value: Any) -> str:
    return str(find_folder(value).path)


class RemoveArchiveKind(JobKind):
    """The kind of job that removes an archive or an export."""

    name = "remove archive"
    help = (
        "Remove an archive or an export from the site's folders, which frees its disk space; what only it has is gone."
    )
    arguments = (
        Argument(
            "folder", Type.TEXT, "the archive or export, as archive, purge or export named it", typed="FOLDER",
            required=True, check=_folder, in_form="its path, or its place below the folder of archives or exports",
        ),
        dry_run("only say what would be removed"),
        YES,
        JSON,
    )  # fmt: skip

    def plan(self, run: JobRun) -> Mapping[str, Any]:
        """Does the dry run. Returns the summary, which describes the folder that would be removed."""
        return self._summary(run, find_folder(run.arguments["folder"]))

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Removes the folder. Returns the summary."""
        path = run.arguments["folder"]
        with _unused(find_folder(path), run.using):
            found = find_folder(path)  # once more, as another process may have finished or removed it before the lock
            summary = self._summary(run, found)
            # The manifest goes first. If it went last: the process is killed halfway, and the remaining files look like
            # a whole archive. Without the manifest they are an unfinished archive, which this job can remove.
            (found.path / (exports.MANIFEST if found.is_export else archives.MANIFEST)).unlink(missing_ok=True)
            with suppress(FileNotFoundError):  # the next archive of the room removes unfinished ones, too
                remove_folder(found.path)
            fsync_folder(found.path.parent)
        return summary

    def lines(self, summary: Mapping[str, Any]) -> Iterator[str]:
        yield f"{safe_text(summary['folder'], None)}: {summary['words']}"

    @staticmethod
    def _summary(run: JobRun, found: WrittenFolder) -> Mapping[str, Any]:
        is_here = found.room_id is not None and Room.objects.using(run.using).filter(pk=found.room_id).exists()
        told = {
            "folder": str(found.path),
            "what": found.kind,
            "room_id": found.room_id,
            "made_at": moment_text(int(found.made_at) * 1000),
            "files": found.files,
            "bytes": found.bytes,
            "dry_run": run.arguments["dry_run"],
        }
        words = folder_words(told, is_room_here=is_here)
        # The figures are texts, because numbers would be added to the sums of changed rows.
        run.note_before({"files": f"{found.files:,}", "size": byte_size(found.bytes)})
        run.note_after({"files": "0", "size": byte_size(0)})
        run.say(f"{safe_text(str(found.path), None)}: {words}")
        return {**told, "words": words}


@contextmanager
def _unused(found: WrittenFolder, using: str) -> Iterator[None]:
    """Keeps other jobs from writing or reading the folder while the block runs, by holding the lock that these jobs take.

    Raises ``PurgeRefused`` if the archive's room is being archived, purged or restored, ``ArchiveInUse`` if a job writes the
    archive, and ``ExportRunning``.
    """
    with ExitStack() as stack:
        if found.is_export:
            connection = stack.enter_context(
                closing(driver.direct_connection(using, application_name="replsite export"))
            )
            stack.enter_context(exports.export_lock(stack.enter_context(connection.cursor()), found.path))
        elif found.room_id is not None:
            # A purge writes an archive, then deletes the events. Without the room's lock: A writes it, B removes it, A
            # deletes what the archive had. A restore, too, holds the lock until it has read all files.
            stack.enter_context(purge_lock(found.room_id, using))
        elif (job := _job_of(found.path)) is not None:
            # Without a manifest the room is not known, but the job that writes the archive is: it holds its own lock.
            lock = stack.enter_context(hold_lock(using))
            if not lock.take(job):
                raise ArchiveInUse(f"Job {job} is writing {found.path}. Wait for it, or cancel it.")
            stack.callback(lock.give_back, job)
        yield


def _job_of(path: Path) -> int | None:
    found = _JOB.search(path.name)
    return None if found is None else int(found[1])
