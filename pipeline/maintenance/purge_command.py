"""The subjects ``history``, ``room``, ``orphans`` and ``retention`` of the command ``purge``: each runs a job."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from django.core.management.base import BaseCommand, CommandError

from events.maintenance.purge_room import unblock_room
from pipeline.archive.cut import CUTS, add_cut_options, check_cut
from pipeline.archive.kind import ARCHIVE, ArchiveKind
from pipeline.archive.options import ARCHIVE_OPTIONS, add_archive_options, run_as_job
from pipeline.archive.restore import RESTORE, RestoreKind
from pipeline.errors import UnusableArguments
from pipeline.jobs.run import register as register_kind
from pipeline.maintenance.purge import (
    HISTORY,
    ORPHANS,
    RETENTION,
    PurgeHistoryKind,
    PurgeOrphansKind,
    PurgeRetentionKind,
)
from pipeline.maintenance.purge_room import ROOM, PurgeRoomKind
from streams.conf import stream_settings
from streams.maintenance.subjects import register
from streams.runtime.text import printable

__all__ = ["PurgeHistory", "PurgeOrphans", "PurgeRetention", "PurgeRoom", "register_purges"]


class _Telling(Protocol):
    def __call__(self, summary: Mapping[str, Any]) -> Iterable[str]:
        """Lines for a person."""


class _AsJob:
    """A subject that runs a job and tells its summary."""

    kind = ""

    def _run(self, command: BaseCommand, arguments: Mapping[str, Any], tell: _Telling, *, as_json: bool) -> None:
        summary = run_as_job(command, self.kind, arguments)
        figures = {name: value for name, value in summary.items() if name != "words"}  # alike before and after
        for line in [json.dumps(figures)] if as_json else tell(summary):
            command.stdout.write(line)

    def _ask(self, command: BaseCommand, arguments: Mapping[str, Any], *, is_sure: bool) -> None:
        """Say what would go and ask whether it shall; raises ``CommandError`` unless it shall. A script cannot answer."""
        if is_sure or arguments["dry_run"]:
            return
        if not _is_terminal():
            command.stderr.write(
                "Deleting without a question, since standard input is no terminal; with --yes this is not said."
            )
            return
        foreseen = run_as_job(command, self.kind, {**arguments, "dry_run": True})
        command.stderr.write(f"{printable(foreseen['room_id'])}: {foreseen['words']}")
        command.stderr.write("It cannot be taken back. Delete it? [y/N] ", ending="")
        command.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise CommandError("Nothing was deleted.", returncode=1)


def _moment(text: Any) -> Any:
    try:
        return check_cut({"before_time": text})["before_time"]
    except UnusableArguments as error:
        raise CommandError(str(error), returncode=2) from error


def _is_terminal() -> bool:
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()


def _add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask before it deletes; at a terminal it does")


class PurgeHistory(_AsJob):
    """``purge history``."""

    kind = HISTORY
    help = (
        "Delete a room's messages below an event, a time or a token; state events stay as outliers, and messages of this server "
        "unless --delete-local is given. Then state groups that nothing needs go. Safe beside writers and readers; may be "
        "interrupted and repeated. Example: purge history '!room:site' --before-time 30d --dry-run"
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("room", metavar="ROOM", help="the room")
        add_cut_options(parser, required=True)
        parser.add_argument("--delete-local", action="store_true", help="messages of this server go, too")
        add_archive_options(parser)
        parser.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
        _add_yes(parser)
        parser.add_argument("--json", action="store_true", help="the outcome as one JSON object")

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        """As a job."""
        names = ("room", *CUTS, "delete_local", "dry_run", *ARCHIVE_OPTIONS)
        arguments = {name: options[name] for name in names}
        if arguments["before_time"] is not None:  # an age is one moment, when it is asked about and when it is done
            arguments["before_time"] = _moment(arguments["before_time"])
        self._ask(command, arguments, is_sure=options["yes"])
        self._run(command, arguments, _history_lines, as_json=options["json"])


class PurgeRoom(_AsJob):
    """``purge room``."""

    kind = ROOM
    help = (
        "Delete a room whole, from every table; refused while users of this server are joined, unless --force is given. It is "
        "gone for everybody at once, then its rows go; may be interrupted and repeated. Example: purge room '!r:site' --dry-run"
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("room", metavar="ROOM", help="the room")
        parser.add_argument("--force", action="store_true", help="even while users of this server are joined")
        blocking = parser.add_mutually_exclusive_group()
        blocking.add_argument("--block", action="store_true", help="the room is not made again when its events come in")
        blocking.add_argument("--unblock", action="store_true", help="delete nothing; let a blocked room be made again")
        add_archive_options(parser)
        parser.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
        _add_yes(parser)
        parser.add_argument("--json", action="store_true", help="the outcome as one JSON object")

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        """As a job; unblocking at once."""
        if options["unblock"]:
            if not unblock_room(options["room"], stream_settings().database):
                raise CommandError(f"{options['room']} is not blocked.", returncode=1)
            command.stdout.write(f"{options['room']} may be made again")
            return
        names = ("room", "force", "block", "dry_run", *ARCHIVE_OPTIONS)
        arguments = {name: options[name] for name in names}
        self._ask(command, arguments, is_sure=options["yes"])
        self._run(command, arguments, _room_lines, as_json=options["json"])


class PurgeOrphans(_AsJob):
    """``purge orphans``."""

    kind = ORPHANS
    help = (
        "Delete the state groups that no event needs, and merge what stands between those that stay; never stores more rows than "
        "before. Safe beside writers and readers; may be interrupted and repeated. Example: purge orphans --dry-run"
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--room", metavar="ROOM", help="of this room only")
        parser.add_argument("--dry-run", action="store_true", help="only say how much would be deleted")
        parser.add_argument("--json", action="store_true", help="the outcome as one JSON object")

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        """As a job."""
        arguments = {"room": options["room"], "dry_run": options["dry_run"]}
        self._run(command, arguments, _orphan_lines, as_json=options["json"])


class PurgeRetention(_AsJob):
    """``purge retention``."""

    kind = RETENTION
    help = (
        "Delete the messages that rooms have kept for long enough: m.room.retention in their current state, "
        "REPLSITE_RETENTION_DEFAULT_SECONDS elsewhere. State stays. Safe beside writers and readers; may be interrupted and "
        "repeated. Example: purge retention --dry-run"
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        add_archive_options(parser)
        parser.add_argument("--dry-run", action="store_true", help="only say how much would be deleted")
        parser.add_argument("--json", action="store_true", help="the outcome as one JSON object")

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        """As a job."""
        arguments = {name: options[name] for name in ("dry_run", *ARCHIVE_OPTIONS)}
        self._run(command, arguments, _retention_lines, as_json=options["json"])


def _retention_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    verb = "would be deleted" if summary["dry_run"] else "deleted"
    yield (
        f"{summary['rooms']} rooms: {summary['deleted']} events {verb}, {summary['became_outliers']} kept as outliers, "
        f"{summary['state_groups_deleted']} state groups {verb}"
    )
    for room_id in summary["busy"]:
        yield f"{room_id} is being purged already, or may not be cut; left as it is"


def _history_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    yield f"{printable(summary['room_id'])}: {summary['words']}"
    yield from _table_lines(summary)
    yield from _left(summary)


def _room_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    yield f"{printable(summary['room_id'])}: {summary['words']}"
    yield from _table_lines(summary)


def _table_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    if "archive" in summary:
        yield f"archived in {summary['archive']['folder']}: {summary['archive']['events']} events"
    for table, (before, after) in summary["tables"].items():
        yield f"{table}: {before} -> {after} rows"


def _orphan_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    verb = "would be deleted" if summary["dry_run"] else "deleted"
    yield (
        f"{summary['rooms']} rooms: {summary['state_groups_deleted']} state groups and {summary['state_rows_deleted']} "
        f"of their rows {verb}"
    )
    yield from _left(summary)


def _left(summary: Mapping[str, Any]) -> Iterator[str]:
    if summary["state_groups_left"]:
        yield f"{summary['state_groups_left']} state groups came into use meanwhile and stay"


def register_purges() -> None:
    """Make kinds and subjects known."""
    register_kind(ARCHIVE, ArchiveKind())
    register_kind(RESTORE, RestoreKind())
    register_kind(HISTORY, PurgeHistoryKind())
    register_kind(ORPHANS, PurgeOrphansKind())
    register("purge", "history", PurgeHistory())
    register("purge", "orphans", PurgeOrphans())
    register_kind(ROOM, PurgeRoomKind())
    register("purge", "room", PurgeRoom())
    register_kind(RETENTION, PurgeRetentionKind())
    register("purge", "retention", PurgeRetention())
