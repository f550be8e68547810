"""``manage.py check_room``: everything that is stored of a room beside what its JSON says; changes nothing."""

from __future__ import annotations

import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from events.questions import can_be_stored
from events.room_comparison import RoomReport
from events.room_repair import check_room
from streams.conf import stream_settings

__all__ = ["Command"]

_SHOWN = 50


class Command(BaseCommand):
    """Rooms one after the other, each in one view of the database."""

    help = (
        "Work out what follows from a room's stored events and compare it with what is stored: columns, edges, states, current "
        "state, extremities, who sees what. Exit status 1 when something differs, 2 for an unknown room. Changes nothing; "
        "manage.py resync mends. Example: check_room '!abc:example.org'"
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("room_ids", nargs="+", metavar="ROOM_ID")
        parser.add_argument("--json", action="store_true", help="one JSON object a room")

    def handle(self, *args: Any, **options: Any) -> None:
        """Check every room; exit 1 when one has a difference."""
        using, clean = stream_settings().database, True
        for room_id in options["room_ids"]:
            report = check_room(room_id, using) if can_be_stored(room_id) else None
            if report is None:
                raise CommandError(f"There is no room {room_id!r}.", returncode=2)
            clean = clean and report.clean
            if options["json"]:
                self.stdout.write(json.dumps(report.as_json(), ensure_ascii=False, separators=(",", ":")))
            else:
                self._tell(report)
        if not clean:
            sys.exit(1)

    def _tell(self, report: RoomReport) -> None:
        total = sum(report.totals.values())
        verdict = "clean" if report.clean else f"{total} differences"
        self.stdout.write(f"{report.room_id}: {report.events} events, {verdict}")
        for found in report.differences[:_SHOWN]:
            about = f"{found.table} {found.key} {found.column}: stored {found.stored!r}, should be {found.computed!r}"
            self.stdout.write(f"  {about}" if found.mendable else f"  {about} (cannot be recomputed)")
        for (subject, table), count in sorted(report.totals.items()):
            self.stdout.write(f"  {count} in {table}: resync {subject} {report.room_id}")
        for doubt in report.doubts[:_SHOWN]:
            self.stdout.write(f"  not decided: {doubt}")
