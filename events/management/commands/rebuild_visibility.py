"""``manage.py rebuild_visibility``: who sees what of stored rooms, worked out anew or checked."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.core.management.base import CommandError, CommandParser

from events.arguments import can_be_stored
from events.errors import RangesDisagree
from events.models import Room
from events.visibility.rebuild import accepted_places, ranges_anew, rebuild_visibility, stored_ranges, tell_the_same
from streams.conf import stream_settings
from streams.db.consistent_read import long_transaction
from streams.runtime.command_line import SiteCommand
from streams.runtime.text import printable

__all__ = ["Command"]


class Command(SiteCommand):
    """One room after the other, each in a transaction of its own."""

    help = (
        "Work out the ranges of visibility of rooms from what is stored and write them anew; with --check only compare. "
        "Exit status 1 when a room is unknown, or its ranges were not what they should be."
    )

    examples = (
        ("rebuild_visibility --all --check --json", "compare only"),
        ("rebuild_visibility '!room:example.org' --json", "work the ranges of one room out anew"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("room_ids", nargs="*", metavar="ROOM_ID", help="these rooms")
        parser.add_argument("--all", action="store_true", help="all rooms, in the order of their IDs")
        parser.add_argument("--check", action="store_true", help="write nothing")
        parser.add_argument("--json", action="store_true", help="one JSON object a line in place of words")

    def handle(self, *args: Any, **options: Any) -> None:
        """Take every room; exit 1 when one was not as it should be."""
        if bool(options["room_ids"]) == options["all"]:
            raise CommandError("Name rooms, or give --all.", returncode=2)
        using = stream_settings().database
        failed = False
        for room_id in _all_rooms(using) if options["all"] else options["room_ids"]:
            found = _room(room_id, using, write=not options["check"])
            failed = failed or not found.get("same", False)
            self.stdout.write(
                json.dumps(found, ensure_ascii=False, separators=(",", ":")) if options["json"] else _in_words(found)
            )
        if failed:
            sys.exit(1)


def _in_words(found: Mapping[str, Any]) -> str:
    room = printable(found["room_id"])
    if "error" in found:
        return f"{room}: {found['error']}"
    verdict = "as it should be" if found["same"] else "was not as it should be"
    unknown = "" if found["known"] else "; nobody can know who sees what"
    return f"{room}: {verdict}, {found['before']} rows, {found['rows']} worked out anew{unknown}"


def _all_rooms(using: str) -> Iterator[str]:
    """By key ranges, so that no list of all rooms is held."""
    last = ""
    while rooms := _rooms_after(last, using):
        yield from rooms
        last = rooms[-1]


def _rooms_after(last: str, using: str) -> Sequence[str]:
    rooms = Room.objects.using(using).filter(room_id__gt=last).order_by("room_id")
    return list(rooms.values_list("room_id", flat=True)[:1_000])


def _room(room_id: str, using: str, *, write: bool) -> dict[str, Any]:
    """What was found of a room; ``known`` is false where nobody can know who sees what."""
    with long_transaction(using):
        locked = Room.objects.using(using).select_for_update().filter(pk=room_id) if can_be_stored(room_id) else None
        if locked is None or locked.first() is None:
            return {"room_id": room_id, "error": "unknown"}
        before, anew = stored_ranges(room_id, using), ranges_anew(room_id, using)
        same = tell_the_same(before, anew or [], accepted_places(room_id, using))
        if write and not same:
            try:
                rebuild_visibility(room_id, using)
            except RangesDisagree as error:
                return {"room_id": room_id, "error": str(error)}
    return {"room_id": room_id, "known": anew is not None, "same": same, "before": len(before), "rows": len(anew or [])}
