"""``manage.py state_at``: the state before and after events."""

from __future__ import annotations

import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from events.errors import StateUnresolved, UnknownEvent
from events.event_id_arguments import add_event_ids, asked_event_ids
from events.reading import State, state_at
from streams.conf import stream_settings

__all__ = ["Command"]


class Command(BaseCommand):
    """Print a line for each event, in the order asked."""

    help = (
        "Print the room's state before and after each event, one JSON object a line; an outlier has null for both. "
        'Unknown events and events whose state is not known give {"error": …}, and the exit status is 1.'
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        add_event_ids(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Answer every ID; exit 1 when one had no answer."""
        failed = False
        for event_id in asked_event_ids(options["event_ids"]):
            answer = _answer(event_id)
            failed = failed or "error" in answer
            self.stdout.write(json.dumps(answer, ensure_ascii=False, separators=(",", ":")))
        if failed:
            sys.exit(1)


def _answer(event_id: str) -> dict[str, Any]:
    try:
        found = state_at(event_id, stream_settings().database)
    except UnknownEvent:
        return {"event_id": event_id, "error": "unknown"}
    except StateUnresolved:
        return {"event_id": event_id, "error": "unresolved"}
    return {"event_id": event_id, "before": _written(found.before), "after": _written(found.after)}


def _written(state: State | None) -> dict[str, str] | None:
    if state is None:
        return None
    return {f"{event_type}\0{state_key}": event_id for (event_type, state_key), event_id in sorted(state.items())}
