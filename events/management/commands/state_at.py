"""``manage.py state_at``: the state before and after events."""

from __future__ import annotations

import json
import sys
from itertools import tee
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from events.errors import UnknownEvent
from events.event_id_arguments import add_event_ids, asked_event_ids
from events.states_at import State, StateAt, states_at
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
        asked, again = tee(asked_event_ids(options["event_ids"]))
        for event_id, found in zip(again, states_at(asked, stream_settings().database), strict=True):
            failed = failed or not isinstance(found, StateAt)
            answer = {"event_id": event_id, **_answer(found)}
            self.stdout.write(json.dumps(answer, ensure_ascii=False, separators=(",", ":")))
        if failed:
            sys.exit(1)


def _answer(found: StateAt | Exception) -> dict[str, Any]:
    if isinstance(found, StateAt):
        return {"before": _written(found.before), "after": _written(found.after)}
    return {"error": "unknown" if isinstance(found, UnknownEvent) else "unresolved"}


def _written(state: State | None) -> dict[str, str] | None:
    if state is None:
        return None
    return {f"{event_type}\0{state_key}": event_id for (event_type, state_key), event_id in sorted(state.items())}
