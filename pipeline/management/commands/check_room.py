"""``manage.py check_room``: compares the stored rows of rooms with the rows computed from the JSON of their events.

The command changes nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.core.management.base import CommandError, CommandParser

from events.arguments import can_be_stored
from events.integrity.compare import EVERYTHING, RoomReport
from events.integrity.repair import check_room
from pipeline.maintenance.resync import ResyncKind, compare_rooms
from pipeline.maintenance.resync_executor import RoomAnswer
from pipeline.maintenance.room_tasks import MASTER
from streams.conf import stream_settings
from streams.jobs.command import as_command_errors
from streams.jobs.run import run_job
from streams.runtime.command_line import SiteCommand

__all__ = ["Command"]

_SHOWN = 50


class Command(SiteCommand):
    """The command that checks rooms.

    A single room is checked in this process, without a job. For several rooms or all rooms, the command runs a job. The
    job uses Spark if there are many events.
    """

    help = (
        "Work out what follows from rooms' stored events and compare it with what is stored: columns, edges, states, current "
        "state, extremities, who sees what. Exit status 1 when something differs, 2 for an unknown room. Changes nothing; "
        "manage.py resync mends."
    )

    examples = (
        ("check_room '!room:example.org'", "one room, in this process"),
        ("check_room --all --json", "every room, as a job, an object each"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declares the options."""
        parser.add_argument("room_ids", nargs="*", metavar="ROOM_ID", help="these rooms")
        parser.add_argument(
            "--all", action="store_true", help="all rooms; those that are clean are printed by --json only"
        )
        MASTER.add_to(parser)
        parser.add_argument("--json", action="store_true", help="one JSON object a room")

    def handle(self, *args: Any, **options: Any) -> None:
        """Checks the rooms. Exits with status 1 if a room has a difference, and with 2 if a room does not exist."""
        rooms, using = options["room_ids"], stream_settings().database
        if bool(rooms) == options["all"]:
            raise CommandError("Name rooms, or give --all.", returncode=2)
        told = _Told(self.stdout.write, as_json=options["json"], clean_ones=not options["all"] or options["json"])
        if len(rooms) == 1 and options["master"] is None:
            told.add(rooms[0], check_room(rooms[0], using) if can_be_stored(rooms[0]) else None)
        else:
            self._many({"what": EVERYTHING, "rooms": rooms or None, "dry_run": True, "master": options["master"]}, told)
        if told.unknown:
            raise CommandError(f"There is no room {', '.join(map(repr, told.unknown[:5]))}.", returncode=2)
        if not told.all_clean:
            sys.exit(1)

    def _many(self, arguments: Mapping[str, Any], told: _Told) -> None:
        stream: Any = self.stderr  # used like a file

        def tell(answer: RoomAnswer) -> None:
            told.add(answer.room_id, answer.before)

        with as_command_errors():
            summary = run_job(ResyncKind.name, arguments, stream=stream, work=lambda run: compare_rooms(run, tell))
        if not told.as_json:
            self.stdout.write(
                f"{summary['rooms']} rooms, {summary['events']} events: {summary['rooms_wrong']} rooms differ, "
                f"in {summary['left']} places"
            )


class _Told:
    """The output of the command. Prints the report on each room at once, and remembers what the exit status depends on."""

    def __init__(self, write: Callable[[str], object], *, as_json: bool, clean_ones: bool) -> None:
        self.as_json = as_json
        self.all_clean = True
        self.unknown: list[str] = []
        self._write = write
        self._clean_ones = clean_ones

    def add(self, room_id: str, report: RoomReport | None) -> None:
        """Prints the report on a room. If ``report`` is null, there is no such room, and only the room's ID is remembered."""
        if report is None:
            self.unknown += [room_id]
            return
        self.all_clean = self.all_clean and report.clean
        if self.as_json:
            self._write(json.dumps(report.as_json(), ensure_ascii=False, separators=(",", ":")))
        elif self._clean_ones or report.doubtful or not report.clean:
            for line in _lines(report):
                self._write(line)


def _lines(report: RoomReport) -> Sequence[str]:
    total = sum(report.totals.values())
    lines = [f"{report.room_id}: {report.events} events, {'clean' if report.clean else f'{total} differences'}"]
    for found in report.differences[:_SHOWN]:
        about = f"{found.table} {found.key} {found.column}: stored {found.stored!r}, should be {found.computed!r}"
        lines.append(f"  {about}" if found.mendable else f"  {about} (cannot be recomputed)")
    for (subject, table), count in sorted(report.totals.items()):
        lines.append(f"  {count} in {table}: resync {subject} {report.room_id}")
    return [*lines, *(f"  not decided: {doubt}" for doubt in report.doubts[:_SHOWN])]
