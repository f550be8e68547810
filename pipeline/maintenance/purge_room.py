"""Implements the job ``purge room``, which deletes a whole room. If the arguments name a folder, first writes an archive.

``events.maintenance.purge_room`` does the deletion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from events.errors import PurgeRefused
from events.maintenance.purge_history import purge_lock
from events.maintenance.purge_room import RoomPurge, is_purging
from events.operations.room_arguments import ROOM
from pipeline.archive.kind import ARCHIVE, archive_facts, check_archive
from pipeline.archive.write import ArchiveRequest, archive_room
from pipeline.maintenance.purge import table_lines
from pipeline.maintenance.purge_words import room_words
from pipeline.models import Job
from streams.jobs.arguments import JSON, YES, Argument, OneOf, Type, dry_run
from streams.jobs.run import JobKind, JobRun
from streams.jobs.throttle import throttled
from streams.runtime.text import safe_text

__all__ = ["PurgeRoomKind"]

_BLOCKING = OneOf()


class PurgeRoomKind(JobKind):
    """The kind of job that deletes a whole room."""

    name = "purge room"
    help = "Delete a room whole, from every table; refused while users of this server are joined, unless by force."
    arguments = (
        ROOM,
        Argument("force", Type.FLAG, "even while users of this server are joined"),
        Argument(
            "block", Type.FLAG, "the room is not made again when its events arrive", one_of=_BLOCKING,
            in_form="the room is not made again",
        ),
        Argument(
            "unblock", Type.FLAG, "delete nothing; let a blocked room be made again", one_of=_BLOCKING, stored=False
        ),
        *ARCHIVE,
        dry_run("only say what would be deleted"),
        YES,
        JSON,
    )  # fmt: skip

    def check_together(self, checked: dict[str, Any]) -> None:
        """Raises ``UnusableArguments`` if ``spark`` or ``master`` is given without a folder for an archive."""
        check_archive(checked)

    def plan(self, run: JobRun) -> Mapping[str, Any]:
        """Does the dry run. Returns the summary, with the numbers of rows that would be deleted."""
        return self._purge(run, lambda _run, _purge: {})

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """Writes an archive if the arguments name a folder for it. Then deletes the room. Returns the summary."""
        return self._purge(run, self._carry_out)

    def _purge(self, run: JobRun, carry_out: Callable[[JobRun, RoomPurge], dict[str, Any]]) -> Mapping[str, Any]:
        told, using = run.arguments, run.using
        with purge_lock(told["room"], using):
            purge = RoomPurge(told["room"], using)
            before = purge.figures()
            run.note_before(before)
            purge.check(force=told["force"])
            facts = carry_out(run, purge)
            after = dict.fromkeys(before, 0)
            if not told["dry_run"]:
                after |= purge.figures()
            run.note_after(after)
        folder = facts["archive"]["folder"] if "archive" in facts else None
        words = room_words(told, before["events_event"], folder)
        run.say(f"{safe_text(told['room'], None)}: {words}")
        tables = {table: [count, after.get(table, 0)] for table, count in before.items()}
        return {
            "room_id": told["room"],
            "words": words,
            "dry_run": told["dry_run"],
            "blocked": told["block"],
            "tables": tables,
            **facts,
        }

    def lines(self, summary: Mapping[str, Any]) -> Iterator[str]:
        return table_lines(summary)

    def _carry_out(self, run: JobRun, purge: RoomPurge) -> dict[str, Any]:
        told, facts, positions = run.arguments, dict[str, Any](), None
        if told["archive"] is not None:
            if is_purging(purge.room_id, run.using):
                raise PurgeRefused(
                    f"A purge of {purge.room_id} was interrupted, so it cannot be archived any more. Go on without an archive; "
                    "the first run has written one if it was asked to."
                )
            folder, manifest = archive_room(run, self._request(told))
            facts, positions = {"archive": archive_facts(folder, manifest)}, manifest.positions
        by = Job.objects.using(run.using).get(pk=run.id).asked_by
        purge.begin(by, block=told["block"], force=told["force"], positions=positions)
        with run.stage("rows", sum(purge.figures().values()), "rows") as count:
            for done in throttled(purge.carry_out()):
                count.add(sum(asdict(done).values()) - count())
        return facts

    @staticmethod
    def _request(told: Mapping[str, Any]) -> ArchiveRequest:
        return ArchiveRequest(told["room"], Path(told["archive"]), spark=told["spark"], master=told["master"])
