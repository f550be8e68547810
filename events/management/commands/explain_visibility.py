"""``manage.py explain_visibility``: prints whether a user sees events, and by which rule."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandParser

from events.errors import UnknownEvent
from events.management.arguments import add_event_ids, asked_event_ids
from events.visibility.explain import Explanation, explain_visibility
from streams.conf import stream_settings
from streams.runtime.command_line import SiteCommand

#: Columns of the table. JSON has more fields.
_COLUMNS = ("event_id", "seen", "allowed", "pruned", "rule", "membership", "history_visibility", "reach", "error")


class Command(SiteCommand):
    help = (
        "Print whether USER sees each event and why: seen, allowed, pruned, the rule, and what it looked "
        'at. Unknown events and events whose state is not known give {"error": …}, and the exit status is 1.'
    )

    examples = (
        ("explain_visibility @bob:example.org '$event' --json", "whether Bob sees it, and by which rule"),
        ("explain_visibility @bob:example.org - --json < ids.txt", "the same for every ID in a file"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("user_id", metavar="USER", help="whose eyes it is seen with")
        add_event_ids(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        asked = list(asked_event_ids(options["event_ids"]))
        failed = False
        answers = explain_visibility(options["user_id"], asked, stream_settings().database)
        rows = []
        for event_id, answer in zip(asked, answers, strict=True):
            failed = failed or not isinstance(answer, Explanation)
            if isinstance(answer, Explanation):
                line = asdict(answer) | {"reachable": answer.reachable, "seen": answer.seen}
            else:
                error = "unknown" if isinstance(answer, UnknownEvent) else "unresolved"
                line = {"event_id": event_id, "error": error}
            if options["json"]:
                self.stdout.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")))
            else:
                rows.append([line.get(name) for name in _COLUMNS])
        if not options["json"]:
            self.print_table([name.replace("_", " ") for name in _COLUMNS], rows)
        if failed:
            sys.exit(1)
