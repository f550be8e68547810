"""``manage.py resolve_rooms``: computes unknown states of events above filled gaps, as far as they can be known."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser

from events.arguments import can_be_stored
from events.errors import EventUnreadable, UnknownRoom
from events.models import Event
from events.persist.gap_filling import resolve_room
from streams.conf import stream_settings
from streams.jobs.command import as_command_errors
from streams.runtime.command_line import SiteCommand
from streams.writing.name import written_by

_MOST_ROOMS = 10_000
"""Most rooms that one run handles."""


class Command(SiteCommand):
    """The command ``resolve_rooms``.

    Exit status 0: all states are known. 1: some states are still unknown, because of gaps. 2: unusable arguments.
    """

    help = (
        "Give events above filled gaps their state, some thousands in each transaction; events.persist.batch does so itself "
        "but for very large gaps. Safe beside writers and readers; may be stopped and run again."
    )

    examples = (
        ("resolve_rooms", "all rooms that have such events"),
        ("resolve_rooms '!room:example.org' --json", "one room, the outcome as JSON"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Adds the arguments."""
        parser.add_argument(
            "rooms", nargs="*", metavar="ROOM_ID", help="only these; without any, all that have such events"
        )
        parser.add_argument("--json", action="store_true", help="a JSON object a line for each room")

    def handle(self, *args: Any, **options: Any) -> None:
        """Prints a line for each room when it is done."""
        using = stream_settings().database
        asked = dict.fromkeys(options["rooms"])
        if strange := [room_id for room_id in asked if not can_be_stored(room_id)]:
            raise CommandError(f"{strange[0]!r} is no room ID.", returncode=2)
        with as_command_errors():
            try:
                rooms = list(asked) or _unresolved_rooms(using)
                left = sum(self._report(room_id, using, as_json=options["json"]) for room_id in rooms)
            except UnknownRoom as error:
                raise CommandError(str(error), returncode=2) from error
        if left:
            raise CommandError(
                f"{left} events still lie above gaps: backfill what is below them, or give their state with them "
                f"(events.persist.batch.Incoming.state_before).",
                returncode=1,
            )

    @written_by("resolve_rooms")
    def _report(self, room_id: str, using: str, *, as_json: bool) -> int:
        resolved, trouble = 0, ""
        try:
            resolved = resolve_room(room_id, using)
        except EventUnreadable as error:  # the other rooms are resolved all the same
            trouble = str(error)
        left = Event.objects.using(using).filter(room_id=room_id, state_unresolved=True).count()
        outcome = {"room_id": room_id, "resolved": resolved, "left": left} | ({"error": trouble} if trouble else {})
        words = f"{room_id}: {resolved} resolved, {left} left{trouble and f'. {trouble}'}"
        self.stdout.write(json.dumps(outcome) if as_json else words)
        return left


def _unresolved_rooms(using: str) -> list[str]:
    """Returns the IDs of rooms that have events with an unknown state, at most ``_MOST_ROOMS``.

    A partial index finds these events.
    """
    found = Event.objects.using(using).filter(state_unresolved=True).order_by("room_id")
    return list(found.values_list("room_id", flat=True).distinct()[:_MOST_ROOMS])
