"""The subjects that this package adds to the commands ``purge WHAT`` and ``resync WHAT``.

Each subject runs a job, except ``resync user``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from events.errors import EventsError
from events.maintenance.purge_room import unblock_room
from events.operations.room_arguments import ALL_ROOMS
from events.sync.sync import resync_user
from pipeline.maintenance.purge import PurgeHistoryKind, PurgeOrphansKind, PurgeRetentionKind
from pipeline.maintenance.purge_room import PurgeRoomKind
from pipeline.maintenance.remove_archive import RemoveArchiveKind
from pipeline.maintenance.resync import OF_ROOMS, WHAT, ResyncKind
from pipeline.maintenance.room_tasks import MASTER
from streams.conf import stream_settings
from streams.jobs.arguments import JSON, Argument
from streams.jobs.command import JobSubject
from streams.maintenance.subjects import register

__all__ = ["register_subjects"]

_RESYNC_HELP = {
    "state": "events' columns and verdicts, edges, auth events, states, current state, redactions and flags",
    "extremities": "the forward extremities and gaps of the graph",
    "visibility": "who sees what",
    "rooms": "state, extremities and visibility in one pass",
    "positions": "sequences of streams and tables that are behind, or not as they must be",
    "caches": "what processes keep of rooms: it is dropped everywhere",
}


class PurgeRoom(JobSubject):
    """The subject ``purge room``, which can also unblock a room."""

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        """Runs the job. If ``--unblock`` is given, unblocks the room at once and runs no job."""
        if not options["unblock"]:
            super().run(command, options)
            return
        if not unblock_room(options["room"], stream_settings().database):
            raise CommandError(f"{options['room']} is not blocked.", returncode=1)
        command.stdout.write(f"{options['room']} may be made again")


class Resync(JobSubject):
    """A subject of the command ``resync``, such as ``state``. The subject runs a job of ``ResyncKind``."""

    def __init__(self, what: str) -> None:
        self._what = what
        every = "" if what == "positions" else " --all"
        super().__init__(
            ResyncKind(),
            f"Compare and mend {_RESYNC_HELP[what]}. Each room is a transaction of its own, beside writers; what cannot be known "
            f"is told and left. Exit status 1 when something is wrong at the end. Example: resync {what} --dry-run{every}",
        )

    @property
    def arguments(self) -> Sequence[Argument]:
        """The arguments of ``ResyncKind`` that this subject takes."""
        without = {MASTER.name, "resume"} if self._what not in OF_ROOMS else set()
        if self._what == "positions":
            without |= {"rooms", ALL_ROOMS.name}
        return [one for one in super().arguments if one.name not in without]

    def given(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments from the command line, and adds the name of the subject as ``what``."""
        return {"what": self._what, **super().given(options)}


class ResyncUser:
    """The subject ``resync user``. It makes the user's next sync return a full answer, whatever token the client sends."""

    help = "Make the next sync answer to each token of a user a full one. Example: resync user @alice:example.org"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        parser.add_argument("user", metavar="USER", help="the user")
        JSON.add_to(parser)

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        """Appends a fact to the stream ``caches`` and prints its position. Exits with status 2 for an invalid user ID."""
        user = options["user"]
        try:
            position = resync_user(user, stream_settings().database)
        except EventsError as error:
            raise CommandError(str(error), returncode=2) from error
        told = {"user": user, "position": position}
        text = f"{user}: tokens from before caches {position} get a full answer"
        command.stdout.write(json.dumps(told) if options["json"] else text)


_PURGES = {
    "history": JobSubject(
        PurgeHistoryKind(),
        "Delete a room's messages below an event, a time or a token; state events stay as outliers, and messages of this server "
        "unless --delete-local is given. Then state groups that nothing needs go. Safe beside writers and readers; may be "
        "interrupted and repeated. Example: purge history '!room:site' --before-time 30d --dry-run",
    ),
    "room": PurgeRoom(
        PurgeRoomKind(),
        "Delete a room whole, from every table; refused while users of this server are joined, unless --force is given. It is "
        "gone for everybody at once, then its rows go; may be interrupted and repeated. Example: purge room '!r:site' --dry-run",
    ),
    "orphans": JobSubject(
        PurgeOrphansKind(),
        "Delete the state groups that no event needs, and merge what stands between those that stay; never stores more rows than "
        "before. Safe beside writers and readers; may be interrupted and repeated. Example: purge orphans --dry-run",
    ),
    "retention": JobSubject(
        PurgeRetentionKind(),
        "Delete the messages that rooms have kept for long enough: m.room.retention in their current state, "
        "REPLSITE_RETENTION_DEFAULT_SECONDS elsewhere. State stays. Safe beside writers and readers; may be interrupted and "
        "repeated. Example: purge retention --dry-run",
    ),
    "archive": JobSubject(
        RemoveArchiveKind(),
        "Remove an archive or an export from the site's folders, which frees its disk space. Messages that were purged after "
        "they were archived are gone with it. Example: purge archive room-example-org-5aed758959a6-12 --dry-run",
    ),
}


def register_subjects() -> None:
    """Registers the subjects with the commands ``purge`` and ``resync``."""
    for what, subject in _PURGES.items():
        register("purge", what, subject)
    for what in WHAT:
        register("resync", what, Resync(what))
    register("resync", "user", ResyncUser())
