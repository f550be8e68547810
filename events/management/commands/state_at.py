"""``manage.py state_at``: prints the state before and after events."""

from __future__ import annotations

import sys
from itertools import tee
from typing import Any

import orjson
from django.core.management.base import CommandParser

from events.errors import UnknownEvent
from events.management.arguments import add_event_ids, asked_event_ids
from events.reading.event_lines import event_lines
from events.reading.state_at import State, StateAt, states_at
from streams.conf import stream_settings
from streams.runtime.command_line import SiteCommand
from streams.runtime.text import safe_text


class Command(SiteCommand):
    help = (
        "Print the room's state before and after each event, with sender, time and value of each entry; "
        "an outlier has none. With --json: event IDs alone. "
        'Unknown events and events whose state is not known give {"error": …}, and the exit status is 1.'
    )

    examples = (
        ("state_at '$event' --json", "the state before and after it"),
        ("state_at - --json < ids.txt", "the same for every ID in a file"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_event_ids(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        failed = False
        asked, ids = tee(asked_event_ids(options["event_ids"]))
        states = _States()
        for event_id, found in zip(ids, states_at(asked, stream_settings().database), strict=True):
            failed = failed or not isinstance(found, StateAt)
            if options["json"]:
                self.stdout.write(orjson.dumps({"event_id": event_id, **_answer(found, states)}).decode())
            else:
                self._report(event_id, found)
        if failed:
            sys.exit(1)

    def _report(self, event_id: str, found: StateAt | Exception) -> None:
        if not isinstance(found, StateAt) or found.after is None:
            problem = (
                "an outlier, which has no state" if isinstance(found, StateAt) else _answer(found, _States())["error"]
            )
            self.stdout.write(f"{safe_text(event_id, None)}: {problem}")
            return
        changes = found.changes
        self.stdout.write(
            f"{safe_text(event_id, None)}: {len(found.after)} entries after it, {len(changes)} changed by it"
        )
        entries = event_lines(found.after.values(), stream_settings().database)
        rows = []
        for key, entry_id in sorted(found.after.items()):
            line = entries.get(entry_id)
            shown = (line.sender, line.sent, line.words) if line is not None else ("", "", "")
            rows.append((*key, *shown, entry_id, (changes[key][0] or "(none)") if key in changes else ""))
        self.print_table(("type", "state key", "sender", "sent", "value", "event", "before it"), rows)


def _answer(found: StateAt | Exception, states: _States) -> dict[str, Any]:
    if isinstance(found, StateAt):
        return {"before": states.written(found.before), "after": states.written(found.after)}
    return {"error": "unknown" if isinstance(found, UnknownEvent) else "unresolved"}


class _States:
    # Keeps its last four results: the state after an event is usually the state before the next event.
    def __init__(self) -> None:
        self._kept: list[tuple[State, orjson.Fragment]] = []

    def written(self, state: State | None) -> orjson.Fragment | None:
        if state is None:
            return None
        for known, text in self._kept:
            if known is state:
                return text
        entries = {
            f"{event_type}\0{state_key}": event_id for (event_type, state_key), event_id in sorted(state.items())
        }
        text = orjson.Fragment(orjson.dumps(entries))
        self._kept = [(state, text), *self._kept[:3]]
        return text
