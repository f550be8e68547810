"""``manage.py timeline``: prints the events of a room, newest first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from django.core.management.base import CommandError, CommandParser

from events.errors import BadToken, NotReadable, UnknownRoom
from events.reading.event_json import ServedEvent
from events.reading.event_lines import event_lines, line_of
from events.reading.pages import timeline_of
from events.reading.timeline import TimelineEntry, timeline
from streams.conf import stream_settings
from streams.runtime.command_line import SiteCommand

_COLUMNS = ("event_id", "token", "stream_ordering", "topological_ordering")
#: The columns of the table for people.
_SHOWN = ("sent", "sender", "type", "value", "event", "token")
_EVENTS_PER_READ = 500


class Command(SiteCommand):
    help = (
        "Print the shown events of a room, newest first by (topological, stream), with time, sender, type and value. "
        "The token of a line continues below it. With --json: IDs, tokens and positions."
    )

    examples = (
        ("timeline '!room:example.org' --json", "the newest hundred events"),
        ("timeline '!room:example.org' --before TOKEN --limit 20 --json", "below the token of a line"),
        ("timeline '!room:example.org' --user @bob:example.org --json", "what Bob sees of it"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("room_id", metavar="ROOM_ID", help="the room")
        parser.add_argument("--user", metavar="USER", help="only what this user sees")
        parser.add_argument("--limit", type=int, default=100, help="at most so many events (100)")
        parser.add_argument("--before", metavar="TOKEN", help="only events below this token, which is not included")
        parser.add_argument("--json", action="store_true", help="one JSON object a line in place of a table")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["limit"] < 1:
            raise CommandError(f"--limit must be at least 1, not {options['limit']}.", returncode=2)
        try:
            page = (options["room_id"], options["limit"], options["before"], stream_settings().database)
            entries: Sequence[TimelineEntry | ServedEvent]
            entries = timeline(*page) if options["user"] is None else timeline_of(options["user"], *page)
        except BadToken as error:
            raise CommandError(str(error), returncode=2) from error
        except (UnknownRoom, NotReadable) as error:
            raise CommandError(str(error), returncode=1) from error
        if not options["json"]:
            self.print_table(_SHOWN, _rows(entries))
            return
        for entry in entries:
            line = {name: getattr(entry, name) for name in _COLUMNS}
            self.stdout.write(json.dumps(line, separators=(",", ":")))


def _rows(entries: Sequence[TimelineEntry | ServedEvent]) -> Iterator[Sequence[str]]:
    # The content of a ``TimelineEntry`` is loaded here. A ``ServedEvent`` has its content already, as the user sees it.
    using = stream_settings().database
    for first in range(0, len(entries), _EVENTS_PER_READ):
        part = entries[first : first + _EVENTS_PER_READ]
        loaded = event_lines([entry.event_id for entry in part if isinstance(entry, TimelineEntry)], using)
        for entry in part:
            line = loaded.get(entry.event_id) if isinstance(entry, TimelineEntry) else line_of(entry)
            if line is None:  # purged since
                yield ("", "", "", "", entry.event_id, entry.token)
                continue
            key = f"{line.type} {line.state_key}" if line.state_key else line.type
            yield (line.sent, line.sender, key, line.words, entry.event_id, entry.token)
