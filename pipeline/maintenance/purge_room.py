"""``purge room`` as a job: a room is deleted whole, after an archive of it if one is wanted (``events.maintenance`` does it)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from events.errors import PurgeRefused
from events.maintenance.purge_history import only_purge
from events.maintenance.purge_room import RoomPurge, is_purging
from pipeline.archive.kind import ARCHIVE_NAMES, archive_facts, check_archive
from pipeline.archive.write import ArchiveRequest, archive_room
from pipeline.errors import UnusableArguments
from pipeline.jobs.fields import ARCHIVE_FIELDS, ROOM_FIELD, Entry, JobField
from pipeline.jobs.kinds import flag, only
from pipeline.jobs.run import JobRun
from pipeline.jobs.throttle import resting
from pipeline.maintenance.purge_words import room_words
from pipeline.models import Job
from streams.runtime.text import printable

__all__ = ["ROOM", "PurgeRoomKind"]

ROOM = "purge room"
_FLAGS = ("force", "block", "dry_run")


class PurgeRoomKind:
    """Deletes a room whole."""

    help = "Delete a room whole, from every table; refused while users of this server are joined, unless by force."
    fields = (
        ROOM_FIELD,
        JobField("force", Entry.FLAG, "even while users of this server are joined"),
        JobField("block", Entry.FLAG, "the room is not made again"),
        *ARCHIVE_FIELDS,
    )

    def check(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """``room``; ``force``: with local users in it; ``block``: not made again; ``dry_run``; ``archive`` and its options."""
        only(arguments, "room", *_FLAGS, *ARCHIVE_NAMES)
        room = arguments.get("room")
        if not isinstance(room, str) or not room:
            raise UnusableArguments("room must be the ID of a room.")
        flags = {name: flag(arguments, name) for name in _FLAGS}
        return {"room": room, **flags, **check_archive(arguments)}

    def run(self, run: JobRun) -> Mapping[str, Any]:
        """The archive, then the room."""
        told, using = run.arguments, run.using
        with only_purge(told["room"], using):
            purge = RoomPurge(told["room"], using)
            before = purge.figures()
            run.note_before(before)
            purge.check(force=told["force"])
            facts: dict[str, Any] = {}
            after = dict.fromkeys(before, 0)
            if not told["dry_run"]:
                facts = self._carry_out(run, purge)
                after |= purge.figures()
            run.note_after(after)
        folder = facts["archive"]["folder"] if "archive" in facts else None
        words = room_words(told, before["events_event"], folder)
        run.say(f"{printable(told['room'])}: {words}")
        tables = {table: [count, after.get(table, 0)] for table, count in before.items()}
        return {
            "room_id": told["room"],
            "words": words,
            "dry_run": told["dry_run"],
            "blocked": told["block"],
            "tables": tables,
            **facts,
        }

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
            for done in resting(purge.carry_out()):
                count.add(sum(asdict(done).values()) - count())
        return facts

    @staticmethod
    def _request(told: Mapping[str, Any]) -> ArchiveRequest:
        return ArchiveRequest(told["room"], Path(told["archive"]), spark=told["spark"], master=told["master"])
