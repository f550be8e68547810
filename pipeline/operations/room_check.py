"""``room check``: compares the stored rows of rooms with the rows computed from the JSON of their events.

The command changes nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from events.arguments import can_be_stored
from events.integrity.compare import EVERYTHING, RoomReport
from events.integrity.repair import check_room
from pipeline.maintenance.room_tasks import MASTER
from pipeline.operations.resync_and_room_mend import Resync, compare_rooms
from streams.conf import stream_settings
from streams.jobs.command import CommandLine, command_line
from streams.jobs.run import run_job

__all__ = ["CheckRoom"]

_SHOWN = 50


@command_line
class CheckRoom(CommandLine):
    """Checks rooms. A single room is checked in this process, without a job; for several, a job runs, on Spark if it pays."""

    words = "room check"
    about = (
        "Work out what follows from rooms' stored events and compare it with what is stored: columns, edges, states, current "
        "state, extremities, who sees what. Exit status 1 when something differs, 2 for an unknown room. Changes nothing; "
        "manage.py room mend mends."
    )
    example = "room check '!room:example.org' --json"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("room_ids", nargs="*", metavar="ROOM_ID", help="these rooms")
        parser.add_argument(
            "--all", action="store_true", help="all rooms; those that are clean are printed by --json only"
        )
        MASTER.add_to(parser)
        parser.add_argument("--json", action="store_true", help="one JSON object a room")

    def run(self, command: BaseCommand, options: Mapping[str, Any]) -> None:
        """Exits with status 1 if a room has a difference, and with 2 if a room does not exist."""
        rooms, using, write = options["room_ids"], stream_settings().database, command.stdout.write
        if bool(rooms) == options["all"]:
            raise CommandError("Name rooms, or give --all.", returncode=2)
        unknown, is_clean = list[str](), True

        def report_room(room_id: str, report: RoomReport | None) -> None:
            nonlocal is_clean
            if report is None:
                unknown.append(room_id)
                return
            is_clean = is_clean and report.clean
            if options["json"]:
                write(json.dumps(report.as_json(), ensure_ascii=False, separators=(",", ":")))
            elif not options["all"] or report.doubtful or not report.clean:
                for line in _lines(report):
                    write(line)

        if len(rooms) == 1 and options["master"] is None:
            report_room(rooms[0], check_room(rooms[0], using) if can_be_stored(rooms[0]) else None)
        else:
            arguments = {"what": EVERYTHING, "rooms": rooms or None, "dry_run": True, "master": options["master"]}
            stream: Any = command.stderr  # used like a file
            summary = run_job(Resync.name, arguments, stream=stream, work=lambda run: compare_rooms(run, report_room))
            if not options["json"]:
                write(
                    f"{summary['rooms']} rooms, {summary['events']} events: {summary['rooms_wrong']} rooms differ, "
                    f"in {summary['left']} places"
                )
        if unknown:
            raise CommandError(f"There is no room {', '.join(map(repr, unknown[:5]))}.", returncode=2)
        if not is_clean:
            sys.exit(1)


def _lines(report: RoomReport) -> Sequence[str]:
    total = sum(report.totals.values())
    lines = [f"{report.room_id}: {report.events} events, {'clean' if report.clean else f'{total} differences'}"]
    for found in report.differences[:_SHOWN]:
        about = f"{found.table} {found.key} {found.column}: stored {found.stored!r}, should be {found.computed!r}"
        lines.append(f"  {about}" if found.mendable else f"  {about} (cannot be recomputed)")
    for (subject, table), count in sorted(report.totals.items()):
        lines.append(f"  {count} in {table}: resync {subject} {report.room_id}")
    return [*lines, *(f"  not decided: {doubt}" for doubt in report.doubts[:_SHOWN])]
