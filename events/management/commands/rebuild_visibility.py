"""``manage.py rebuild_visibility``: recomputes or checks the visibility ranges of stored rooms.

The command finds and repairs the same damage as ``resync visibility``, but room by room, in this process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError, CommandParser

from events.arguments import can_be_stored
from events.integrity.repair import all_rooms, resync_room
from events.integrity.room_mending import find_damage
from streams.conf import stream_settings
from streams.db.consistent_read import read_only_snapshot
from streams.runtime.command_line import SiteCommand
from streams.runtime.gc_pause import collector_paused
from streams.runtime.text import safe_text

_VISIBILITY = "visibility"


class Command(SiteCommand):
    """The command ``rebuild_visibility``. It handles one room after the other."""

    help = (
        "Recompute the visibility ranges of rooms from what is stored and replace them; with --check only compare. "
        "Exit status 1 when a room is unknown, or its ranges were not what they should be."
    )

    examples = (
        ("rebuild_visibility --all --check --json", "compare only"),
        ("rebuild_visibility '!room:example.org' --json", "recompute the ranges of one room"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Adds the arguments."""
        parser.add_argument("room_ids", nargs="*", metavar="ROOM_ID", help="these rooms")
        parser.add_argument("--all", action="store_true", help="all rooms, in the order of their IDs")
        parser.add_argument("--check", action="store_true", help="write nothing")
        parser.add_argument("--json", action="store_true", help="one JSON object a line in place of words")

    def handle(self, *args: Any, **options: Any) -> None:
        """Prints the result for each room. Exits with status 1 if a room is unknown or its ranges were wrong."""
        if bool(options["room_ids"]) == options["all"]:
            raise CommandError("Name rooms, or give --all.", returncode=2)
        using = stream_settings().database
        failed = False
        for room_id in all_rooms(using) if options["all"] else options["room_ids"]:
            found = _room(room_id, using, write=not options["check"])
            failed = failed or not found.get("same", False)
            self.stdout.write(
                json.dumps(found, ensure_ascii=False, separators=(",", ":")) if options["json"] else _in_words(found)
            )
        if failed:
            sys.exit(1)


def _in_words(found: Mapping[str, Any]) -> str:
    room = safe_text(found["room_id"], None)
    if "error" in found:
        return f"{room}: {found['error']}"
    verdict = "as it should be" if found["same"] else "was not as it should be"
    unknown = "" if found["known"] else "; who may see its events cannot be computed"
    return f"{room}: {verdict}, {found['before']} rows, {found['rows']} recomputed{unknown}"


def _room(room_id: str, using: str, *, write: bool) -> dict[str, Any]:
    """Checks the visibility ranges of a room, and returns the result for the output.

    If ``write`` is true, repairs the ranges. ``known`` in the result is false if it cannot be computed who may see the
    room's events.
    """
    found = None
    if can_be_stored(room_id):
        with read_only_snapshot(using, is_long=True) as cursor, collector_paused():
            found = find_damage(cursor, room_id)
    if found is None:
        return {"room_id": room_id, "error": "unknown"}
    stored, computed, same = found.computed.rows.ranges, found.computed.known_ranges, not found.report.of(_VISIBILITY)
    done = resync_room(room_id, _VISIBILITY, using) if write and not same else None
    if done is not None and (left := done.after.of(_VISIBILITY)):
        return {"room_id": room_id, "error": (done.after.doubts or [f"{left} differences are left"])[-1]}
    known = computed is not None
    return {"room_id": room_id, "known": known, "same": same, "before": len(stored), "rows": len(computed or [])}
