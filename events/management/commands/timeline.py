"""``manage.py timeline``: prints the events of a room, newest first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandError, CommandParser

from events.errors import BadToken, NotReadable, UnknownRoom
from events.reading.event_json import ServedEvent
from events.reading.timeline import TimelineEntry, timeline
from events.reading.user_timeline import timeline_of
from streams.conf import stream_settings
from streams.runtime.command_line import SiteCommand

__all__ = ["Command"]

_COLUMNS = ("event_id", "token", "stream_ordering", "topological_ordering")


class Command(SiteCommand):
    """The command ``timeline``. It prints one page of a room's timeline."""

    help = (
        "Print the shown events of a room, newest first by (topological, stream). "
        "The token of a line continues below it."
    )

    examples = (
        ("timeline '!room:example.org' --json", "the newest hundred events"),
        ("timeline '!room:example.org' --before TOKEN --limit 20 --json", "below the token of a line"),
        ("timeline '!room:example.org' --user @bob:example.org --json", "what Bob sees of it"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Adds the arguments."""
        parser.add_argument("room_id", metavar="ROOM_ID", help="the room")
        parser.add_argument("--user", metavar="USER", help="only what this user sees")
        parser.add_argument("--limit", type=int, default=100, help="at most so many events (100)")
        parser.add_argument("--before", metavar="TOKEN", help="only events below this token, which is not included")
        parser.add_argument("--json", action="store_true", help="one JSON object a line in place of a table")

    def handle(self, *args: Any, **options: Any) -> None:
        """Prints the page."""
        if options["limit"] < 1:
            raise CommandError(f"--limit must be at least 1, not {options['limit']}.", returncode=2)
        try:
            entries = _entries(options["user"], options["room_id"], options["limit"], options["before"])
        except BadToken as error:
            raise CommandError(str(error), returncode=2) from error
        except (UnknownRoom, NotReadable) as error:
            raise CommandError(str(error), returncode=1) from error
        if not options["json"]:
            self.print_table(_COLUMNS, ([getattr(entry, name) for name in _COLUMNS] for entry in entries))
            return
        for entry in entries:
            line = {name: getattr(entry, name) for name in _COLUMNS}
            self.stdout.write(json.dumps(line, separators=(",", ":")))


def _entries(
    user_id: str | None, room_id: str, limit: int, before: str | None
) -> Sequence[TimelineEntry | ServedEvent]:
    alias = stream_settings().database
    if user_id is None:
        return timeline(room_id, limit, before, alias)
    return timeline_of(user_id, room_id, limit, before, alias)
