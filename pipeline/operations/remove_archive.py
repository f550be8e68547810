"""``remove archive``, the words ``purge archive``: removes an archive or an export from the site's folders.

The job deletes files, but no rows. The folder must be below the site's folder of archives or of exports. This also
holds for the command: files elsewhere belong to the account that made them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

from events.maintenance.purge_lock import purge_lock
from events.models import Room
from pipeline.archive import format as archives
from pipeline.errors import ArchiveInUse
from pipeline.export import folder as exports
from pipeline.maintenance.written_folders import WrittenFolder, find_folder
from pipeline.private_files import fsync_folder, remove_folder
from streams.db import driver
from streams.jobs.arguments import JSON, YES, Argument, Type, dry_run
from streams.jobs.job_run import JobRun
from streams.jobs.operation import Operation, Words, operation
from streams.jobs.rows import hold_lock
from streams.runtime.amounts import byte_size
from streams.runtime.moments import moment_text
from streams.runtime.text import safe_text

__all__ = ["RemoveArchive", "folder_words"]

#: The number at the end of an unfinished archive's name: the job that writes it.
_JOB = re.compile(rf"-([0-9]{{1,18}})(?:{re.escape(archives.PARTIAL)})?\Z")


@operation
class RemoveArchive(Operation):
    name = "remove archive"
    help = (
        "Remove an archive or an export from the site's folders, which frees its disk space; what only it has is gone."
    )
    arguments = (
        Argument(
            "folder", Type.TEXT, "the archive or export, as archive, purge or export named it", typed="FOLDER",
            required=True, check=lambda _, value: str(find_folder(value).path),
            in_form="its path, or its place below the folder of archives or exports",
        ),
        dry_run("only say what would be removed"),
        YES,
        JSON,
    )  # fmt: skip
    commands = (
        Words(
            "purge archive",
            "Remove an archive or an export from the site's folders, which frees its disk space. Messages that were purged after "
            "they were archived are gone with it.",
            "purge archive room-example-org-5aed758959a6-12 --dry-run",
        ),
    )

    def plan(self, run: JobRun) -> Mapping[str, Any]:
        """Does the dry run. Returns the summary, which describes the folder that would be removed."""
        return self._summary(run, find_folder(run.arguments["folder"]))

    def run(self, run: JobRun) -> Mapping[str, Any]:
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
        summary = {
            "folder": str(found.path),
            "what": found.kind,
            "room_id": found.room_id,
            "made_at": moment_text(int(found.made_at) * 1000),
            "files": found.files,
            "bytes": found.bytes,
            "dry_run": run.arguments["dry_run"],
        }
        words = folder_words(summary, is_room_here=is_here)
        # The figures are texts, because numbers would be added to the sums of changed rows.
        run.store_before({"files": f"{found.files:,}", "size": byte_size(found.bytes)})
        run.store_after({"files": "0", "size": byte_size(0)})
        run.say(f"{safe_text(str(found.path), None)}: {words}")
        return {**summary, "words": words}


def folder_words(summary: Mapping[str, Any], *, is_room_here: bool) -> str:
    """Returns the sentence that describes the removal of an archive or export. ``summary`` is the job's summary.

    For example ``archive of !a:b, made 22 Nov 2026 02:00 UTC, 6.0 GB in 14 files: removed; messages that were purged
    meanwhile are gone with it``. ``is_room_here`` is true if the room of the archive is in the database.
    """
    of_room = f" of {safe_text(summary['room_id'], None)}" if summary["room_id"] else ""
    made = "made" if summary["what"] in ("archive", "export") else "last changed"
    size = f"{byte_size(summary['bytes'])} in {summary['files']:,} file{'' if summary['files'] == 1 else 's'}"
    done = "would be removed" if summary["dry_run"] else "removed"
    removed = f"{summary['what']}{of_room}, {made} {summary['made_at']}, {size}: {done}"
    if summary["what"] != "archive":
        return removed
    lost = (
        "messages that were purged meanwhile are gone with it" if is_room_here else "the room is in no other place here"
    )
    return f"{removed}; {lost}"


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
        elif (named := _JOB.search(found.path.name)) is not None:
            # Without a manifest the room is not known, but the job that writes the archive is: it holds its own lock.
            lock, job = stack.enter_context(hold_lock(using)), int(named[1])
            if not lock.acquire(job):
                raise ArchiveInUse(f"Job {job} is writing {found.path}. Wait for it, or cancel it.")
            stack.callback(lock.release, job)
        yield
